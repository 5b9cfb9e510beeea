"""FLOPs and bytes of whole layers that run as one op: Transformer Engine's autograd functions, recurrent layers, experts.

One multiply-add counts as two FLOPs. A backward pass counts twice its forward: a gradient of the input and one of the weights.
"""

from __future__ import annotations

from trace_doctor.work.shapes import Argument, Call, Shape, Volume, Work, numel, read, volume, word


def linear(
    call: Call,
    *,
    weight: int | None = None,
    x: int | None = None,
    second: bool = False,
    grouped: bool = False,
    backward: bool = False,
) -> Work | None:
    """`2 * rows * (elements of the weights)` forward, twice that backward, of an autograd function around one or two linear layers.

    Unit FLOP. Positions are the forward's; without `x` the input is the last tensor whose last dimension the weight multiplies.
    `second`: another weight brings the features back (an MLP, gated or not). `grouped`: more weights share the rows among them; where
    they stand differs between versions, the last one tells their shape.
    Under sequence parallelism one of input and output is a slice, so rows are those of the longer; the output's are known by
    its gradient. Source: TransformerEngine transformer_engine/pytorch/module/{linear,layernorm_linear,layernorm_mlp,grouped_linear}.py.
    """
    forward = call.partner if backward else call
    weights = forward and (forward.shape(weight) if weight is not None else _last_matrix(forward))
    if forward is None or weights is None or len(weights) != 2:
        return None
    data = forward.argument(x) if x is not None else _last_with(forward, weights[1])
    down = _bringing_back(forward, weights) if second else None
    if not data.shape or data.shape[-1] != weights[1] or (second and down is None):
        return None
    features = down[0] if down else weights[0]
    rows = max(numel(data.shape[:-1]), _rows_of_gradient(call if backward else call.partner, features))
    elements = numel(weights) + (numel(down) if down else 0)
    groups = sum(argument.shape == weights for argument in forward.arguments[1:]) if grouped else 1
    dtype = call.argument(0).dtype if backward else data.dtype
    inputs = volume((rows, weights[1]), dtype) + volume((elements,), dtype).times(groups)
    moved = inputs.times(2 if backward else 1) + volume((rows, features), dtype)
    return Work((4.0 if backward else 2.0) * rows * elements, moved, word(dtype))


def recurrent(call: Call, *, backward: bool = False) -> Work | None:
    """`2 * steps * batch * (elements of the weight matrices)` of RNN, LSTM and GRU layers, twice that backward.

    Unit FLOP. Each matrix of each layer and direction multiplies one vector a time step and sequence; gates and biases are not
    counted. Bytes: input and weights once. Source: torch aten/src/ATen/native/cudnn/RNN.cpp.
    """
    data, weights = call.argument(0), call.argument(1)
    if not data.shape or not weights.members:
        return None
    steps = numel(data.shape[:-1])
    elements = sum(numel(member) for member in weights.members if len(member) == 2)
    moved = read(call, 0) + Volume(untyped_elements=float(sum(numel(member) for member in weights.members)))
    passes = 2 if backward else 1
    return Work(2.0 * passes * steps * elements, moved.times(passes), word(data.dtype))


def experts(call: Call) -> Work | None:
    """`2 * tokens * experts a token * (elements of an expert's two weights)` of a fused mixture-of-experts layer.

    Unit FLOP. Inputs: tokens `[T, K]`, weights `[E, 2N, K]` and `[E, K, N]`, routing weights and indices `[T, k]`.
    Bytes: tokens, all experts' weights, the result. Source: vLLM vllm/model_executor/layers/fused_moe/fused_moe.py.
    """
    tokens, up, down, chosen = (call.shape(position) for position in (0, 1, 2, 4))
    if not tokens or not up or not down or not chosen or len(up) != 3 or len(down) != 3 or len(chosen) != 2:
        return None
    if up[0] != down[0] or tokens[-1] != up[2] or tokens[-1] != down[1] or chosen[0] != numel(tokens[:-1]) or not up[0]:
        return None
    flops = 2.0 * numel(chosen) * (numel(up[1:]) + numel(down[1:]))
    return Work(flops, read(call, 0, 1, 2) + read(call, 0), word(call.argument(1).dtype))


def _last_with(call: Call, features: int) -> Argument:
    shaped = [argument for argument in call.arguments if argument.shape and len(argument.shape) > 1]
    return next((argument for argument in reversed(shaped) if (argument.shape or ())[-1] == features), Argument())


def _last_matrix(call: Call) -> Shape | None:
    matrices = [argument.shape for argument in call.arguments[1:] if argument.shape and len(argument.shape) == 2]
    return matrices[-1] if matrices else None


def _bringing_back(call: Call, up: Shape) -> Shape | None:
    """The MLP's second weight `[K, N]` for a first of `[N, K]`, or `[K, N / 2]` where the activation is gated."""
    inner = (up[0], up[0] // 2)
    fitting = [shape for shape in (argument.shape for argument in call.arguments) if shape and len(shape) == 2]
    fitting = [shape for shape in fitting if shape[0] == up[1] and shape[1] in inner]
    return fitting[-1] if fitting else None


def _rows_of_gradient(backward: Call | None, features: int) -> int:
    gradient = backward.shape(0) if backward else None
    return numel(gradient[:-1]) if gradient and gradient[-1] == features else 0
