"""FLOPs and bytes of matrix products. One multiply-add counts as two FLOPs; bytes are inputs once plus the output once."""

from __future__ import annotations

import math
import operator
from itertools import accumulate, combinations

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
    numel,
    read,
    total,
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


def grouped_template(call: Call) -> Work | None:
    """`2 * M * N * K` of Inductor's template of `[M, K] x [G, K, N]`, whose weights may be stored `[G, N, K]`; the result stands last.

    Unit FLOP. Source: torch/_inductor/kernel/mm_grouped.py.
    """
    tensors = [argument for argument in call.arguments if len(argument.shape or ()) > 1]
    weights = [argument.shape for argument in tensors[:2] if argument.shape and len(argument.shape) == 3]
    data, result = (tensors[0].shape, tensors[-1].shape) if len(tensors) > 2 else (None, None)
    if len(weights) != 1 or not data or not result or len(data) != 2 or len(result) != 2 or data[0] != result[0]:
        return None
    if sorted(weights[0][1:]) != sorted((data[1], result[1])):
        return None
    moved = total(volume(argument.shape, argument.dtype) for argument in (*tensors[:2], tensors[-1]))
    return Work(2.0 * numel(data) * result[1], moved, word(tensors[0].dtype))


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


def template(call: Call, *, batched: bool = False) -> Work | None:
    """`2 * B * M * N * K` of Inductor's matmul templates: two matrices, later the result, among biases and what an epilogue reads.

    Unit FLOP. Buffers stand as they are stored, transposed or with more dimensions than the matmul saw; the work is known where
    all readings of them agree. Source: torch/_inductor/kernel/mm.py, bmm.py.
    """
    tensors = [argument for argument in call.arguments if argument.shape and numel(argument.shape) > 1]
    if not 3 <= len(tensors) <= _MOST_TENSORS:
        return None
    shapes = [argument.shape or () for argument in tensors]
    found = {
        product
        for left, right, result in combinations(shapes, 3)
        for product in (_batched(left, right, result) if batched else _stored(left, right, result))
    }
    if len(found) != 1:
        return None
    moved = total(volume(argument.shape, argument.dtype) for argument in tensors)
    return Work(2.0 * found.pop(), moved, _operand(tensors))


def stored(call: Call, *, a: int, b: int, out: int) -> Work | None:
    """`2 * M * N * K` of three matrices whose layouts flags of the call decide: the product of their sizes is `(M * N * K) ** 2`.

    Unit FLOP. Source: TransformerEngine transformer_engine/pytorch/csrc/ts_fp8_op.cpp, te_gemm_ts.
    """
    left, right, result = (call.shape(position) for position in (a, b, out))
    products = _stored(left, right, result) if left and right and result else set()
    return (
        Work(2.0 * products.pop(), read(call, a, b, out), word(call.argument(a).dtype)) if len(products) == 1 else None
    )


def only(call: Call) -> Work | None:
    """`2 * B * M * N * K` of an op that is in no table, where its tensors can be read as one matmul only.

    Unit FLOP. With a result among the arguments the three must agree; else two inputs must share one inner dimension, the
    second being a matrix, or both a batch. Where several readings differ, as for square or equal inputs, nothing is known.
    """
    tensors = [
        argument for argument in call.arguments if len(argument.shape or ()) > 1 and 1 not in (argument.shape or ())
    ]
    if not 2 <= len(tensors) <= _MOST_TENSORS:
        return None
    shapes = [argument.shape or () for argument in tensors]
    found = {product for three in combinations(shapes, 3) for product in _stored(*three) | _batched(*three)}
    found = found or {product for left, right in combinations(shapes, 2) for product in _contracted(left, right)}
    moved = total(volume(argument.shape, argument.dtype) for argument in tensors)
    return Work(2.0 * found.pop(), moved, _operand(tensors)) if len(found) == 1 else None


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


_MOST_TENSORS = 12


def _operand(tensors: list[Argument]) -> str | None:
    """The dtype computed in: the narrowest, as scales and biases are wider than what they belong to."""
    words = [(element_bytes(argument.dtype), word(argument.dtype)) for argument in tensors]
    return min(((width, name) for width, name in words if width and name), default=(0.0, None))[1]


def _stored(left: Shape, right: Shape, result: Shape) -> set[int]:
    """`M * N * K` if these can be `[M, K]`, `[K, N]` and `[M, N]`, each stored in any order and cut into more dimensions."""
    sizes = [numel(shape) for shape in (left, right, result)]
    squared = math.prod(sizes)
    multiplied = math.isqrt(squared)
    if not squared or multiplied**2 != squared or any(multiplied % size for size in sizes):
        return set()
    columns, rows, inner = (multiplied // size for size in sizes)
    fits = _cuts(left, rows, inner) and _cuts(right, inner, columns) and _cuts(result, rows, columns)
    return {multiplied} if fits else set()


def _cuts(shape: Shape, one: int, other: int) -> bool:
    """Whether the leading dimensions make one of the two sizes."""
    return bool({one, other} & set(accumulate(shape, operator.mul, initial=1)))


def _batched(left: Shape, right: Shape, result: Shape) -> set[int]:
    """`B * M * N * K` for each `B` that leading dimensions of all three make, two dimensions being left at least."""
    cuts = [
        dict(zip(accumulate(shape, operator.mul), range(1, len(shape) - 1), strict=False))
        for shape in (left, right, result)
    ]
    return {
        batch * multiplied
        for batch in set.intersection(*(set(cut) for cut in cuts))
        for multiplied in _stored(left[cuts[0][batch] :], right[cuts[1][batch] :], result[cuts[2][batch] :])
    }


def _contracted(left: Shape, right: Shape) -> set[int]:
    """`B * M * N * K` for each inner dimension that two inputs may share."""
    batch = left[:-2] if len(left) == len(right) else ()
    if batch != (right[:-2] if batch else ()):
        return set()
    tall, flat = (left, right) if len(left) >= len(right) else (right, left)
    if not batch and len(flat) != 2:
        return set()
    rows = tall[-2] if batch else numel(tall[:-1])
    sizes, others = (rows, tall[-1]), flat[-2:]
    return {numel(batch) * rows * tall[-1] * others[1 - j] for i in (0, 1) for j in (0, 1) if sizes[i] == others[j]}


def _result_shape(left: Shape, right: Shape) -> Shape | None:
    rows, inner = (left[-2] if len(left) > 1 else 1), left[-1]
    columns, shared = (right[-1], right[-2]) if len(right) > 1 else (1, right[0])
    batch = broadcast([left[:-2], right[:-2]])
    return None if batch is None or inner != shared else (*batch, rows, columns)


def _out_dtype(requested: Argument, dtype: str) -> str:
    code = integer(requested)
    return SCALAR_TYPES.get(code, dtype) if code is not None else dtype
