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


def attention(
    call: Call,
    *,
    layout: str,
    q: int = 0,
    causal: int | None = None,
    mask_kind: int | None = None,
    window: tuple[int, ...] | None = None,
    lengths: tuple[int, int, int, int] | None = None,
    backward: bool = False,
    bias: int | None = None,
) -> Work | None:
    """`2 * B * H * area * (d + d_v)` forward, twice that backward; area is `s_q * s_k` less what mask or window cut off.

    Unit FLOP. Positions: q (k and v follow), `causal` flag, xFormers' `mask_kind`, `window` left and perhaps right,
    `lengths` (cu_seqlens of q and k, longest q and k). Queries have all the heads, keys and values may have fewer (GQA).
    Without a flag the kernel's name may tell of the mask.
    FLOPs are null where the mask or the sequences' lengths are not told; they have a bound: no mask, as few sequences as can be.
    Bytes: q, k, v and the result once; backward reads those and the result's gradient and writes three gradients.
    """
    query, key, values = (call.shape(q + offset) for offset in range(3))
    if not query or not key or not values:
        return None
    is_packed = lengths is not None and call.shape(lengths[0]) is not None
    sizes = _packed(call, query, key, values, lengths) if is_packed and lengths else _dense(query, key, values, layout)
    if sizes is None and not is_packed:
        return None
    is_causal = _is_causal(call, causal, mask_kind)
    pairs = None if sizes is None else _pairs(call, sizes, window, is_causal=is_causal)
    most = None
    if pairs is None and sizes is not None:
        most = float(sizes.batch * sizes.heads * sizes.query * sizes.key)
    elif pairs is None and lengths is not None:
        most = _most_pairs(call, query, key, lengths, window, is_causal=bool(is_causal))
    each = (4.0 if backward else 2.0) * (query[-1] + values[-1])
    result = read(call, q).times(values[-1] / max(query[-1], 1))
    moved = (read(call, q, q + 1, q + 2) + result).times(2 if backward else 1)
    moved += read(call, *([bias] if bias is not None else []))
    flops, at_most = (None if count is None else each * count for count in (pairs, most))
    return Work(flops, moved, word(call.argument(q).dtype), at_most)


def function(
    call: Call, *, q: int = 0, layout: str | None = None, causal: int | None = None, backward: bool = False
) -> Work | None:
    """The same of an autograd function whose first three inputs from `q` on with three dimensions or more are q, k and v.

    Unit FLOP. Its backward learns them from its forward. FLOPs are null without a `layout`, and for a kernel that says in its name
    that it masks with a window, as no recorded input holds that. Source: flash-attention
    flash_attn/flash_attn_interface.py; TransformerEngine transformer_engine/pytorch/attention.
    """
    forward = call.partner if backward else call
    inputs = [argument for argument in forward.arguments[q:] if len(argument.shape or ()) > 2][:3] if forward else []
    if forward is None or len(inputs) < 3:
        return None
    inner = Call(call.name, (*inputs, forward.argument(causal)), mask=call.mask)
    moved = (read(inner, 0, 1, 2) + read(inner, 0)).times(2 if backward else 1)
    known = attention(inner, layout=layout, causal=3, backward=backward) if layout else None
    known = known or Work(None, moved, word(inputs[0].dtype))
    return known._replace(flops=None, most=known.most or known.flops) if call.mask == "local" else known


def flex(call: Call, *, backward: bool = False) -> Work | None:
    """FLOPs of Inductor's flex attention where no block is masked out; which blocks are is device data. Bytes always.

    Unit FLOP. Inputs: q, k, v `[B, H, S, D]`, later a table of block indices `[B, H, rows of blocks, blocks]`, of one block where
    there is no mask. Source: torch/_inductor/kernel/flex/flex_attention.py; torch.nn.attention.flex_attention.
    """
    tensors = tuple(argument for argument in call.arguments if argument.shape)
    inputs = tuple(
        argument for argument in tensors if len(argument.shape or ()) == 4 and word(argument.dtype) not in _INDEX
    )
    tables = [
        argument.shape for argument in tensors if argument.dtype in ("int", "long") and len(argument.shape or ()) == 4
    ]
    if len(inputs) < 3:
        return None
    is_full = bool(tables) and all(numel(table or ()) == 1 for table in tables)
    known = attention(Call(call.name, inputs[:3], mask="full"), layout="bhsd", backward=backward)
    return known if known is None or is_full else known._replace(flops=None, most=known.flops)


_INDEX = (None, "int8")


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
    """Kinds of xFormers: 0 none, 1 and 2 causal (from top left, from bottom right)."""
    told = flag(call.argument(causal))
    kind = integer(call.argument(mask_kind))
    if told is None and kind is None:
        return {"causal": True, "full": False}.get(call.mask or "")
    return told if told is not None else (kind or 0) > 0


def _window(call: Call, window: tuple[int, ...] | None, *, causal: bool) -> tuple[int | None, int | None]:
    left, right = (integer(call.argument(position)) for position in (*(window or ()), None, None)[:2])
    left = None if left is None or left < 0 else left
    right = None if right is None or right < 0 else right
    return left, 0 if causal else right


def _pairs(call: Call, sizes: Sizes, window: tuple[int, ...] | None, *, is_causal: bool | None) -> float | None:
    """Attended pairs of all heads; null where the trace does not say whether the mask is causal."""
    if sizes.query == 1:
        is_causal = False
    if is_causal is None:
        return None
    left, right = _window(call, window, causal=is_causal)
    return sizes.batch * sizes.heads * attended_area(sizes.query, sizes.key, left, right)


def _most_pairs(
    call: Call,
    query: Shape,
    key: Shape,
    lengths: tuple[int, int, int, int],
    window: tuple[int, ...] | None,
    *,
    is_causal: bool,
) -> float | None:
    """Attended pairs of packed self-attention if all sequences but one are the longest: the area grows faster than the length."""
    longest, tokens = integer(call.argument(lengths[2])), numel(query[:-2])
    if not longest or longest < 1 or longest != integer(call.argument(lengths[3])) or tokens != numel(key[:-2]):
        return None
    left, right = _window(call, window, causal=is_causal)
    whole, rest = divmod(tokens, longest)
    return query[-2] * (whole * attended_area(longest, longest, left, right) + attended_area(rest, rest, left, right))


def _dense(query: Shape, key: Shape, values: Shape, layout: str) -> Sizes | None:
    """Layout "bhsd" is torch's own, "bshd" that of flash-attention; heads may be cut in groups (xFormers, five dimensions)."""
    if not len(query) == len(key) == len(values) >= 4 or query[0] != key[0] or query[-1] != key[-1]:
        return None
    sequence = -2 if layout == "bhsd" else 1
    heads = numel(query[1:-2] if layout == "bhsd" else query[2:-1])
    return Sizes(query[0], heads, query[sequence], key[sequence]) if key[sequence] == values[sequence] else None


def _packed(call: Call, query: Shape, key: Shape, values: Shape, lengths: tuple[int, int, int, int]) -> Sizes | None:
    """Packed sequences `[tokens, heads, d]`; their lengths are known only where all are the longest."""
    longest_query, longest_key = integer(call.argument(lengths[2])), integer(call.argument(lengths[3]))
    batch = numel(call.shape(lengths[0]) or ()) - 1
    if not longest_query or not longest_key or batch < 1 or min(len(query), len(key), len(values)) < 3:
        return None
    tokens = (numel(query[:-2]), numel(key[:-2]))
    is_even = tokens == (batch * longest_query, batch * longest_key)
    return Sizes(batch, query[-2], longest_query, longest_key) if is_even else None
