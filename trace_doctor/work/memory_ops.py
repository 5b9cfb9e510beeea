"""Bytes of ops that compute little: each input is read once, each output written once. No FLOPs are counted for them.

An in-place op reads what it changes and writes it: `aten::add_` moves as much as `aten::add`. Caches, strides and broadcast
views are left out, so the figures are what must be moved at least (an expanded input counts at its expanded size).
"""

from __future__ import annotations

import re

from trace_doctor.work.shapes import (
    SCALAR_TYPES,
    Argument,
    Call,
    Shape,
    Volume,
    Work,
    broadcast,
    element_bytes,
    integer,
    integers,
    numel,
    read,
    volume,
    word,
)


def elementwise(call: Call, *, inputs: int = 1, out: str | None = None) -> Work | None:
    """Bytes: the first `inputs` arguments that are tensors, plus their broadcast result in the widest dtype (or `out`)."""
    tensors = [argument for argument in call.arguments[:inputs] if argument.shape is not None]
    shape = broadcast([argument.shape or () for argument in tensors])
    if not tensors or shape is None:
        return None
    dtype = tensors[0].dtype if call.name.endswith("_") else _promoted(tensors)
    moved = sum((volume(argument.shape, argument.dtype) for argument in tensors), Volume())
    return Work(None, moved + volume(shape, out or dtype), word(dtype))


def like(call: Call, *, reads: list[int], writes: list[int], extra: dict[str, str] | None = None) -> Work | None:
    """Bytes: arguments `reads`, plus results of the size of arguments `writes`; `extra` is one more `{position: dtype}`."""
    main = call.argument(writes[0] if writes else reads[0])
    if main.shape is None and not main.members:
        return None
    more = [volume(call.shape(int(position)), dtype) for position, dtype in (extra or {}).items()]
    return Work(None, read(call, *reads) + read(call, *writes) + sum(more, Volume()), word(main.dtype))


def layer_norm(call: Call) -> Work | None:
    """Bytes of native_layer_norm(input, normalized_shape, weight, bias): read once; the result, and an fp32 mean and deviation a row."""
    shape, width = call.shape(0), call.shape(2) or call.shape(3)
    moved = like(call, reads=[0, 2, 3], writes=[0])
    if moved is None or shape is None or not width:
        return moved
    rows = numel(shape) // max(numel(width), 1)
    return moved._replace(moved=moved.moved + volume((rows,), "float").times(2))


def reduction(
    call: Call, *, dims: int | None = None, reads: list[int] | None = None, indices: bool = False
) -> Work | None:
    """Bytes: the inputs, plus the result (an int64 index each, with `indices`). Concrete dimensions stand before keepdim.

    The result is left out where `Concrete Inputs` do not tell the dimensions: it is small beside the input.
    """
    source = call.argument((reads or [0])[0])
    if source.shape is None:
        return None
    whole = dims is None or len(call.arguments) < dims + 2
    kept = () if whole else _kept(source.shape, integers(call.argument(dims)))
    written = Volume() if kept is None else volume(kept, source.dtype)
    written += volume(kept, "long") if indices and kept is not None else Volume()
    return Work(None, read(call, *(reads or [0])) + written, word(source.dtype))


def cast(call: Call, *, dtype: int = 1) -> Work | None:
    """Bytes: the input plus the same elements in the dtype named by a concrete scalar type (the same where none is given)."""
    source = call.argument(0)
    if source.shape is None:
        return None
    code = integer(call.argument(dtype))
    target = SCALAR_TYPES.get(code, source.dtype) if code is not None else source.dtype
    return Work(None, read(call, 0) + volume(source.shape, target), word(source.dtype))


def fill(call: Call, *, target: int = 0) -> Work | None:
    """Bytes: the tensor written, nothing read."""
    shape = call.shape(target)
    return None if shape is None else Work(None, read(call, target), word(call.argument(target).dtype))


def gathered(call: Call, *, table: int, index: int, rows: bool = True) -> Work | None:
    """Bytes: the indices, plus what they pick, read and written: whole rows (embedding) or single elements (gather)."""
    source, picks = call.shape(table), call.shape(index)
    if source is None or picks is None:
        return None
    axis = integer(call.argument(table + 1)) if index > table + 1 else 0
    is_axis = axis is not None and -len(source) <= axis < len(source)
    width = numel(source) // max(source[axis], 1) if rows and is_axis and axis is not None else 1
    picked = volume((numel(picks), width), call.argument(table).dtype)
    return Work(None, read(call, index) + picked.times(2), word(call.argument(table).dtype))


def scattered(call: Call, *, source: int, index: int | None = None, adds: bool = False) -> Work | None:
    """Bytes: source and indices read, as many elements written (and read before, where it adds)."""
    if call.shape(source) is None:
        return None
    values = read(call, source)
    positions = read(call, index) if index is not None else Volume()
    return Work(None, positions + values.times(3 if adds else 2), word(call.argument(source).dtype))


def embedding_backward(call: Call) -> Work | None:
    """Bytes: gradient and indices read, the table's gradient `[num_weights, d]` written whole (num_weights is concrete)."""
    gradient, rows = call.shape(0), integer(call.argument(2))
    if not gradient or rows is None:
        return None
    dtype = call.argument(0).dtype
    return Work(None, read(call, 0, 1) + volume((rows, gradient[-1]), dtype), word(dtype))


def concatenation(call: Call) -> Work | None:
    """Bytes: a list of tensors read and written once. Its dtype is not recorded; the kernel's name may tell it."""
    return Work(None, read(call, 0).times(2)) if call.arguments and call.arguments[0].members else None


def repetition(call: Call) -> Work | None:
    """Bytes of aten::repeat: the input, plus its elements times the product of the concrete repeats."""
    repeats = integers(call.argument(1))
    if call.shape(0) is None or repeats is None or min(repeats) < 0:
        return None
    return Work(None, read(call, 0) + read(call, 0).times(numel(repeats)), word(call.argument(0).dtype))


def resized(call: Call, *, size: int = 1, indices: bool = False) -> Work | None:
    """Bytes: the input, plus a result whose last dimensions are the concrete `size` (upsampling, adaptive pooling)."""
    source, spatial = call.shape(0), integers(call.argument(size))
    if source is None or spatial is None or len(spatial) >= len(source) or min(spatial) < 0:
        return None
    result = (*source[: -len(spatial)], *spatial)
    more = volume(result, "long") if indices else Volume()
    return Work(None, read(call, 0) + volume(result, call.argument(0).dtype) + more, word(call.argument(0).dtype))


def pooled(call: Call, *, indices: bool = False) -> Work | None:
    """Bytes: the input, plus one result (and an int64 index with `indices`) for each step of the concrete stride."""
    source, kernel, stride = call.shape(0), integers(call.argument(1)), integers(call.argument(2))
    stride = stride or kernel
    if source is None or not stride or min(stride) < 1 or len(source) < 3:
        return None
    steps = numel(stride) if len(stride) > 1 else stride[0] ** (len(source) - 2)
    results = volume((numel(source) // steps,), call.argument(0).dtype)
    more = volume((numel(source) // steps,), "long") if indices else Volume()
    return Work(None, read(call, 0) + results + more, word(call.argument(0).dtype))


def top(call: Call) -> Work | None:
    """Bytes of aten::topk: the input, plus k values and int64 indices along the concrete dimension (default last)."""
    source, k = call.shape(0), integer(call.argument(1))
    if not source or k is None or k < 0:
        return None
    axis = integer(call.argument(2))
    length = source[axis if axis is not None and -len(source) <= axis < len(source) else -1]
    picked = (numel(source) // max(length, 1), k)
    dtype = call.argument(0).dtype
    return Work(None, read(call, 0) + volume(picked, dtype) + volume(picked, "long"), word(dtype))


def tensor_lists(call: Call, *, reads: list[int] | None = None, writes: list[int] | None = None) -> Work | None:
    """Bytes of a foreach or fused optimizer op: lists `reads` (default all) and `writes` (default the first).

    The profiler records the lists' shapes, not their dtype (and in older traces not even those): the kernel's name may tell.
    """
    listed = [position for position, argument in enumerate(call.arguments) if argument.members]
    if 0 not in listed:
        return None
    return Work(
        None,
        read(call, *(reads if reads is not None else listed)) + read(call, *(writes if writes is not None else [0])),
    )


def triton(call: Call) -> Work | None:
    """Bytes of a kernel compiled by Inductor: each tensor argument once, inputs and outputs are listed alike.

    A tensor changed in place counts once, its other pass is unknown. An embedding or index kernel reads of its table no
    more than it has elements (the product of its concrete sizes).
    """
    tensors = [argument for argument in call.arguments if argument.shape is not None]
    if not tensors:
        return None
    limit = _elements(call) if re.search("_(embedding|index|gather)", call.name) else None
    moved = (_limited(argument.shape or (), argument.dtype, limit) for argument in tensors)
    return Work(None, sum(moved, Volume()), word(tensors[0].dtype))


def _limited(shape: Shape, dtype: str, limit: int | None) -> Volume:
    return volume(shape if limit is None else (min(numel(shape), limit),), dtype)


def _elements(call: Call) -> int | None:
    """Product of a Triton kernel's sizes, its trailing integer scalars."""
    sizes = [integer(argument) for argument in call.arguments if argument.dtype == "Scalar"]
    known = [size for size in sizes if size is not None and size > 0]
    return numel(known) if known else None


def _kept(shape: Shape, axes: tuple[int, ...] | None) -> Shape | None:
    if axes is None:
        return None
    reduced = {axis % len(shape) for axis in axes if shape and -len(shape) <= axis < len(shape)}
    return tuple(size for axis, size in enumerate(shape) if axis not in reduced)


def _promoted(tensors: list[Argument]) -> str:
    """Dtype of the result: a 0-dimensional tensor does not widen a larger one. Source: torch.result_type."""
    candidates = [argument for argument in tensors if argument.shape] or tensors
    return max((argument.dtype for argument in candidates), key=_promotion_rank)


def _promotion_rank(dtype: str) -> tuple[bool, float]:
    is_floating = word(dtype) is not None and word(dtype) != "int8"
    return is_floating, element_bytes(dtype) or 0.0
