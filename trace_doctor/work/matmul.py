"""FLOPs and bytes of matrix products. One multiply-add counts as two FLOPs; bytes are inputs once plus the output once."""

from __future__ import annotations

import math

from trace_doctor.work.shapes import (
    SCALAR_TYPES,
    Argument,
    Call,
    Shape,
    Volume,
    Work,
    broadcast,
    integer,
    numel,
    read,
    volume,
    word,
)


def product(
    call: Call,
    *,
    a: int = 0,
    b: int = 1,
    added: int | None = None,
    transposed_b: bool = False,
    out_dtype: int | None = None,
    out: str | None = None,
    out_like: int | None = None,
) -> Work | None:
    """`2 * batch * M * N * K` for `[.., M, K] x [.., K, N]`, as torch.utils.flop_counter counts mm, addmm, bmm, baddbmm.

    Batch dimensions broadcast; a vector is a matrix of one row or column. `transposed_b`: b is stored `[N, K]`.
    `added` is the position of a bias or of beta's matrix, `out_dtype` that of a concrete scalar type,
    `out_like` that of the tensor written, `out` names the result's dtype where it is always the same. FP4 packs two values of
    K into an element.
    """
    left, right = call.shape(a), call.shape(b)
    if not left or not right:
        return None
    right = (*right[:-2], right[-1], right[-2]) if transposed_b and len(right) > 1 else right
    result = _result_shape(left, right)
    if result is None:
        return None
    dtype = call.argument(a).dtype
    written = out or call.argument(out_like).dtype or _out_dtype(call.argument(out_dtype), dtype)
    moved = read(call, a, b) + (read(call, added) if added is not None else Volume()) + volume(result, written)
    packed = 2.0 if dtype.endswith("_x2") else 1.0
    return Work(2.0 * numel(result) * left[-1] * packed, moved, word(dtype))


def grouped(call: Call, *, a: int = 0, b: int = 1, offsets: int = 2) -> Work | None:
    """`2 * M * N * K` summed over the groups of a grouped matmul, unit FLOP.

    `[M, K] x [G, K, N]`, `[M, K] x [K, N]` (K is cut), `[G, M, K] x [K, N]` (N is cut) or `[G, M, K] x [G, K, N]`.
    Every row is taken to belong to a group, for the groups' sizes are in no trace. Source: torch.nn.functional.grouped_mm.
    """
    left, right = call.shape(a), call.shape(b)
    if left is None or right is None or {len(left), len(right)} - {2, 3} or left[-1] != right[-2]:
        return None
    batch = left[0] if len(left) == len(right) == 3 else 1
    one_result = (batch, left[-2], right[-1])
    results = numel(call.shape(offsets) or (1,)) if len(left) == len(right) == 2 else 1
    dtype = call.argument(a).dtype
    moved = read(call, a, b) + volume(one_result, dtype).times(results)
    return Work(2.0 * numel(one_result) * left[-1], moved, word(dtype))


def packed_int4(call: Call) -> Work | None:
    """`2 * M * N * K` of aten::_weight_int4pack_mm: activations `[M, K]`, scales and zeros `[K / group, N, 2]`.

    Unit FLOP. The weight is stored in tiles whose shape hides N; its bytes are those of the packed int32 tensor.
    Source: torch aten/src/ATen/native/cuda/int4mm.cu.
    """
    left, scales = call.shape(0), call.shape(3)
    if left is None or scales is None or len(left) != 2 or len(scales) != 3:
        return None
    dtype = call.argument(0).dtype
    out = (left[0], scales[1])
    return Work(2.0 * numel(out) * left[1], read(call, 0, 1, 3) + volume(out, dtype), word(dtype))


def triton_template(call: Call) -> Work | None:
    """`2 * M * N * K` of Inductor's `triton_tem_fused_mm` kernels, whose inputs are the three matrices in any layout.

    Unit FLOP. The product of the three sizes is `(M * N * K) ** 2`; with more tensors (bias, epilogue) it is unknown.
    """
    tensors = [argument for argument in call.arguments if argument.shape]
    sizes = [numel(argument.shape or ()) for argument in tensors]
    if len(tensors) != 3 or any(len(argument.shape or ()) != 2 for argument in tensors):
        return None
    multiplied = math.isqrt(math.prod(sizes))
    if multiplied**2 != math.prod(sizes):
        return None
    moved = sum((volume(argument.shape, argument.dtype) for argument in tensors), Volume())
    return Work(2.0 * multiplied, moved, word(tensors[0].dtype))


def gram(call: Call) -> Work | None:
    """`B * M * (M + 1) * K` of `A A^T` for `[B, M, K]`: the result is symmetric, so that one triangle of it is all that must be computed.

    Unit FLOP. Muon's Triton kernels take A and the result; BLAS counts syrk the same way. Source: modded-nanogpt `XXT_kernel`,
    `ba_plus_cAA_kernel`.
    """
    matrix, result = call.shape(0), call.shape(1)
    if matrix is None or result is None or len(matrix) < 2 or result != (*matrix[:-1], matrix[-2]):
        return None
    dtype = call.argument(0).dtype
    return Work(1.0 * numel(matrix) * (matrix[-2] + 1), read(call, 0, 1), word(dtype))


def _result_shape(left: Shape, right: Shape) -> Shape | None:
    rows, inner = (left[-2] if len(left) > 1 else 1), left[-1]
    columns, shared = (right[-1], right[-2]) if len(right) > 1 else (1, right[0])
    batch = broadcast([left[:-2], right[:-2]])
    return None if batch is None or inner != shared else (*batch, rows, columns)


def _out_dtype(requested: Argument, dtype: str) -> str:
    code = integer(requested)
    return SCALAR_TYPES.get(code, dtype) if code is not None else dtype
