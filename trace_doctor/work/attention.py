"""FLOPs and bytes of fused scaled dot product attention.

Convention: FLOPs are the model's. Forward is two matmuls (scores, values); backward is four, twice the forward, though
flash kernels do a fifth to recompute the scores; causal and windowed attention counts only the area that is attended to
(causal: half). torch.utils.flop_counter counts five in backward and never halves.
"""

from __future__ import annotations

from typing import NamedTuple

from trace_doctor.work.shapes import Call, Shape, Work, flag, integer, numel, read, word


class Sizes(NamedTuple):
    """Sizes of an attention call, in elements. `query` and `key` are sequence lengths."""

    batch: int
    heads: int
    query: int
    key: int
    depth: int
    depth_values: int


def attention(
    call: Call,
    *,
    layout: str,
    q: int = 0,
    causal: int | None = None,
    mask_kind: int | None = None,
    window: tuple[int, int] | None = None,
    lengths: tuple[int, int, int, int] | None = None,
    backward: bool = False,
    bias: int | None = None,
    out: int | None = None,
) -> Work | None:
    """`2 * B * H * area * (d + d_v)` forward, twice that backward; area is `s_q * s_k` less what mask or window cut off.

    Unit FLOP. Positions: q (k and v follow), `causal` flag, xFormers' `mask_kind`, `window` left and right,
    `lengths` (cu_seqlens of q and k, longest q and k). Queries have all the heads, keys and values may have fewer (GQA).
    FLOPs are null where the mask or the sequences' lengths are not told. Bytes: q, k, v and the result once; backward
    reads those and the result's gradient and writes three gradients.
    """
    sizes, packed = _sizes(call, layout, q, lengths)
    is_causal = _is_causal(call, causal, mask_kind)
    flops = None
    if sizes is not None and (is_causal is not None or sizes.query == 1):
        left, right = _window(call, window, causal=bool(is_causal) and sizes.query > 1)
        area = attended_area(sizes.query, sizes.key, left, right)
        flops = 2.0 * sizes.batch * sizes.heads * area * (sizes.depth + sizes.depth_values) * (2 if backward else 1)
    if sizes is None and not packed:
        return None
    extra = [bias] if bias is not None else []
    inputs, result = read(call, q, q + 1, q + 2), read(call, q)
    if backward:
        moved = inputs.times(2) + result.times(2) + read(call, *extra)
    else:
        moved = inputs + result + read(call, *extra)
    del out
    return Work(flops, moved, word(call.argument(q).dtype))


def attended_area(query: int, key: int, left: int | None, right: int | None) -> float:
    """Query-key pairs inside a band of `left` keys before and `right` after the diagonal (null: no limit), as an area.

    Full causal is exactly half a square, not `s (s + 1) / 2`. Unequal lengths are aligned at their ends, as in
    flash-attention since 2.1 and in decoding.
    """
    cut_right = 0.0 if right is None else _triangle(query - right) - _triangle(query - key - right)
    offset = key - query
    cut_left = 0.0 if left is None else _triangle(key - left) - _triangle(offset - left)
    return max(query * key - cut_left - cut_right, 0.0)


def _triangle(side: int) -> float:
    return max(side, 0) ** 2 / 2


def _is_causal(call: Call, causal: int | None, mask_kind: int | None) -> bool | None:
    """xFormers' kinds: 0 none, 1 and 2 causal (from top left, from bottom right)."""
    if causal is not None:
        return flag(call.argument(causal))
    kind = integer(call.argument(mask_kind))
    return None if kind is None else kind > 0


def _window(call: Call, window: tuple[int, int] | None, *, causal: bool) -> tuple[int | None, int | None]:
    left, right = (integer(call.argument(position)) for position in window) if window else (None, None)
    left = None if left is None or left < 0 else left
    right = None if right is None or right < 0 else right
    return left, 0 if causal else right


def _sizes(call: Call, layout: str, q: int, lengths: tuple[int, int, int, int] | None) -> tuple[Sizes | None, bool]:
    """The sizes, and whether the call packs sequences of unknown lengths."""
    shapes = [call.shape(q + offset) for offset in range(3)]
    query, key, values = shapes
    if query is None or key is None or values is None:
        return None, False
    cumulative = call.shape(lengths[0]) if lengths else None
    if cumulative is not None and lengths is not None:
        return _packed(call, (query, key, values), lengths), True
    if not len(query) == len(key) == len(values) == 4:
        return None, False
    sequence, heads = (2, 1) if layout == "bhsd" else (1, 2)
    fits = query[0] == key[0] and query[3] == key[3] and key[sequence] == values[sequence]
    return (Sizes(query[0], query[heads], query[sequence], key[sequence], query[3], values[3]) if fits else None), False


def _packed(call: Call, shapes: tuple[Shape, Shape, Shape], lengths: tuple[int, int, int, int]) -> Sizes | None:
    """Packed sequences `[tokens, heads, d]` are known only where all have the greatest length."""
    query, key, values = (shape[-3:] for shape in shapes)
    longest_query, longest_key = integer(call.argument(lengths[2])), integer(call.argument(lengths[3]))
    batch = numel(call.shape(lengths[0]) or ()) - 1
    if not longest_query or not longest_key or batch < 1 or not len(query) == len(key) == len(values) == 3:
        return None
    tokens_query = numel(shapes[0][:-2])
    tokens_key = numel(shapes[1][:-2])
    if tokens_query != batch * longest_query or tokens_key != batch * longest_key:
        return None
    return Sizes(batch, query[1], longest_query, longest_key, query[2], values[2])
