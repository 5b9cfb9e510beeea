"""FLOPs and bytes of convolutions and their gradients. One multiply-add counts as two FLOPs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from trace_doctor.work.shapes import (
    Argument,
    Call,
    Shape,
    Volume,
    Work,
    flag,
    integer,
    integers,
    numel,
    read,
    total,
    volume,
    word,
)


def forward(
    call: Call,
    *,
    x: int = 0,
    weight: int = 1,
    bias: int | None = None,
    stride: int = 3,
    padding: int = 4,
    dilation: int = 5,
    transposed: int | None = None,
    always_transposed: bool = False,
    output_padding: int | None = None,
    groups: int | None = None,
) -> Work | None:
    """`2 * N * prod(positions) * numel(weight)`, positions being the output's, of a transposed convolution the input's.

    Unit FLOP; weight is `[out, in / groups, k..]`, so groups and depthwise need no care. The output follows from stride,
    padding and dilation; without them from `call.output`. Source: conv_flop_count of torch.utils.flop_counter.
    """
    data, filters = call.shape(x), call.shape(weight)
    if data is None or filters is None or len(data) != len(filters) or len(data) < 3:
        return None
    geometry = [_per_dimension(call.argument(position), len(data) - 2) for position in (stride, padding, dilation)]
    is_transposed = always_transposed or bool(flag(call.argument(transposed)))
    if is_transposed:
        extra = _per_dimension(call.argument(output_padding), len(data) - 2)
        output = _transposed_output(data, filters, geometry, extra, integer(call.argument(groups)))
    else:
        output = _output(data, filters, geometry)
    output = output or call.output
    positions = data if is_transposed else output
    if positions is None:
        return None
    written = volume(output, call.argument(x).dtype)
    moved = read(call, x, weight) + written + (read(call, bias) if bias is not None else Volume())
    return Work(_flops(positions, filters), moved, word(call.argument(x).dtype))


def backward(
    call: Call, *, grad: int = 0, x: int = 1, weight: int = 2, transposed: int = 7, output_mask: int = 10
) -> Work | None:
    """Forward's FLOPs once for the input's gradient and once for the weight's, as `output_mask` asks (both if unknown).

    Unit FLOP. Source: conv_backward_flop of torch.utils.flop_counter.
    """
    gradient, data, filters = call.shape(grad), call.shape(x), call.shape(weight)
    if gradient is None or data is None or filters is None or not len(gradient) == len(data) == len(filters) > 2:
        return None
    is_transposed = flag(call.argument(transposed))
    if is_transposed is None:
        is_transposed = filters[0] != gradient[1]
    wants_data, wants_filters = _mask(call.argument(output_mask))
    dtype = call.argument(x).dtype
    written = volume(data, dtype).times(wants_data) + volume(filters, dtype).times(wants_filters)
    flops = _flops(data if is_transposed else gradient, filters) * (wants_data + wants_filters)
    return Work(flops, read(call, grad, x, weight) + written, word(dtype))


def one_gradient(call: Call, *, grad: int = 1, other: int = 2) -> Work | None:
    """`2 * N * prod(positions of the gradient) * numel(weight)`: one of the two gradients, in ops of torch before 1.11.

    Unit FLOP. `other` is the weight, or the input in the weight's gradient; the result is `call.output`, which the op around
    tells. Source: cudnn_convolution_backward_input and _weight in torch 1.8 native_functions.yaml.
    """
    gradient, result = call.shape(grad), call.output
    filters = result if call.name.endswith("_weight") else call.shape(other)
    if gradient is None or result is None or filters is None or not len(gradient) == len(filters) == len(result) > 2:
        return None
    dtype = call.argument(grad).dtype
    return Work(_flops(gradient, filters), read(call, grad, other) + volume(result, dtype), word(dtype))


def template(call: Call) -> Work | None:
    """Forward's FLOPs of Inductor's convolution templates: input and weight first, the result later, a bias between.

    Unit FLOP; the work is known where all readings of the tensors agree. Source: torch/_inductor/kernel/conv.py.
    """
    tensors = [argument for argument in call.arguments if len(argument.shape or ()) > 2]
    shapes = [argument.shape or () for argument in tensors]
    found = {
        _flops(result, filters) for data, filters, result in combinations(shapes, 3) if _fit(data, filters, result)
    }
    moved = total(volume(argument.shape, argument.dtype) for argument in tensors)
    return Work(found.pop(), moved, word(tensors[0].dtype)) if len(found) == 1 else None


def complete(calls: Iterable[Call], around: Iterable[Call | None]) -> list[Call]:
    """The calls, those that lack their output's shape told it by others; `around` is the backward op that holds each call.

    Traces without `Concrete Inputs` do not say stride and padding, but a convolution's backward lists input, weight and the
    output's gradient. A pair of input and weight that went with several outputs stays unknown.
    """
    pairs = list(zip(calls, around, strict=True))
    outputs: dict[tuple[Shape, Shape], set[Shape]] = {}
    for call, _ in pairs:
        grad, data, filters = (
            call.shape(position) for position in _BACKWARD_ORDER.get(call.name, ()) or (None, None, None)
        )
        if grad and data and filters:
            outputs.setdefault((data, filters), set()).add(grad)
    return [_told(call, outer, outputs) for call, outer in pairs]


# Where grad_output, input and weight stand.
_BACKWARD_ORDER = {
    "aten::convolution_backward": (0, 1, 2),
    "aten::cudnn_convolution_backward": (1, 0, 2),
    "aten::miopen_convolution_backward": (1, 0, 2),
}
HOLDS_GRADIENTS = ["aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"]


def _told(call: Call, around: Call | None, outputs: dict[tuple[Shape, Shape], set[Shape]]) -> Call:
    if call.name.endswith(("_backward_weight", "_backward_input")):
        return call._replace(output=around.shape(2 if call.name.endswith("_weight") else 0) if around else None)
    found = outputs.get((call.shape(0) or (), call.shape(1) or ()), set())
    return call._replace(output=next(iter(found))) if len(found) == 1 else call


def _fit(data: Shape, filters: Shape, result: Shape) -> bool:
    """Whether the input's channels are whole groups of the weight's, which makes the result's."""
    if not len(data) == len(filters) == len(result) or data[0] != result[0] or filters[0] != result[1]:
        return False
    groups, rest = divmod(data[1], max(filters[1], 1))
    return not rest and groups > 0 and filters[0] % groups == 0


def _flops(positions: Shape, filters: Shape) -> float:
    return 2.0 * positions[0] * numel(positions[2:]) * numel(filters)


def _output(data: Shape, filters: Shape, geometry: list[Shape | None]) -> Shape | None:
    stride, padding, dilation = geometry
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    axes = zip(data[2:], filters[2:], stride, padding, dilation, strict=True)
    spatial = tuple((size + 2 * pad - step * (kernel - 1) - 1) // jump + 1 for size, kernel, jump, pad, step in axes)
    return (data[0], filters[0], *spatial) if min(spatial) > 0 else None


def _transposed_output(
    data: Shape, filters: Shape, geometry: list[Shape | None], extra: Shape | None, groups: int | None
) -> Shape | None:
    stride, padding, dilation = geometry
    if stride is None or padding is None or dilation is None or extra is None or not groups:
        return None
    axes = zip(data[2:], filters[2:], stride, padding, dilation, extra, strict=True)
    spatial = tuple(
        (size - 1) * jump - 2 * pad + step * (kernel - 1) + more + 1 for size, kernel, jump, pad, step, more in axes
    )
    return (data[0], filters[1] * groups, *spatial) if min(spatial) > 0 else None


def _per_dimension(argument: Argument, dimensions: int) -> Shape | None:
    values = integers(argument)
    if values is None:
        return None
    values = values * dimensions if len(values) == 1 else values
    return values if len(values) == dimensions else None


def _mask(argument: Argument) -> tuple[int, int]:
    wanted = [item.strip() in ("True", "true", "1") for item in argument.concrete.strip("[]").split(",")]
    return (int(wanted[0]), int(wanted[1])) if len(wanted) == 3 else (1, 1)
