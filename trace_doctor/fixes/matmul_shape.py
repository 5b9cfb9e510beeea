"""Why a matmul of some shape can't reach its roofline, and which shape could: alignment, tiles, waves, too few rows.

A GEMM kernel computes its result in tiles, a tile a thread block, and the blocks run in waves over the multiprocessors: what the last
tile of a row or the last wave leaves empty is lost. Source: NVIDIA, Matrix Multiplication Background User's Guide.
"""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple

ALIGNMENT = {"bf16": 8, "fp16": 8, "fp8": 16, "tf32": 4}
"""Elements that a tensor core's operand rows should be a multiple of: 16 bytes."""
UNALIGNED = re.compile(r"align([124])(?!\d)")
"""CUTLASS and cuBLAS name the alignment that the operands allowed, in elements."""
PERSISTENT = re.compile(r"(?i)nvjet|sm(90|100)_|persistent|stream_?k")
"""Kernels whose grid is the number of SMs whatever the shape."""
TILE = re.compile(r"(?:tilesize|MT|bt|_)(\d{2,3})x(\d{2,3})(?:x\d+)?(?=_|$)")
PADDED_TO = 64
FEW_TILES = 0.6
LARGE_TILE = 128 * 64
"""Tiles from this size on leave no room for a second block on a multiprocessor."""
WELL_FILLED = 0.85
FEW_ROWS = 64
"""Fewer are bound by the operands that they read, not by the tiles that they leave empty."""
FULL_WAVES = 0.8


class Matmul(NamedTuple):
    """`batch` products of `[m, k]` and `[k, n]`."""

    batch: int
    m: int
    n: int
    k: int


class Problem(NamedTuple):
    """What is wrong with a shape, and which to try."""

    reason: str
    attempt: str


def matmul_of(shapes: str | None) -> Matmul | None:
    """The product that `Input Dims` describe: the last two arguments with two dimensions or more; null where they don't fit."""
    try:
        dims = json.loads(shapes) if shapes else []
    except (ValueError, RecursionError):
        return None
    matrices = [
        dim for dim in dims if isinstance(dim, list) and len(dim) >= 2 and all(isinstance(size, int) for size in dim)
    ]
    if len(matrices) < 2:
        return None
    left, right = matrices[-2:]
    if left[-1] == right[-2]:
        columns = right[-1]
    elif left[-1] == right[-1]:
        columns = right[-2]
    else:
        return None
    is_batched = len(left) == len(right) == 3
    rows = left[-2] if is_batched else math.prod(left[:-1])
    found = Matmul(left[0] if is_batched else 1, rows, columns, left[-1])
    return found if min(found) > 0 else None


def problem_of(
    name: str, matmul: Matmul | None, *, dtype: str | None, blocks: int | None, processors: int | None
) -> Problem | None:
    """The first reason that holds. `blocks`: of the grid; `processors`: of the GPU; null is unknown."""
    tile = tile_of(name)
    tiles = _tiles(name, matmul, tile, blocks)
    return (
        _unaligned(name, matmul, ALIGNMENT.get(dtype or ""))
        or _few_tiles(name, matmul, blocks, processors)
        or (_partly_filled_tiles(matmul, tile) if matmul and tile else None)
        or (_partly_filled_waves(tiles, tile, processors) if tiles and tile and processors else None)
    )


def tile_of(name: str) -> tuple[int, int] | None:
    """Rows and columns of a result that one thread block computes, as the kernel's name tells."""
    found = TILE.search(name)
    return (int(found[1]), int(found[2])) if found else None


def _unaligned(name: str, matmul: Matmul | None, step: int | None) -> Problem | None:
    """Rows of the operands that are no multiple of what tensor cores load."""
    if not step:
        return None
    odd = next((size for size in (matmul.n, matmul.k) if size > 1 and size % step), None) if matmul else None
    if odd:
        padded = PADDED_TO * math.ceil(odd / PADDED_TO)
        return Problem(f"a dimension of {odd} is no multiple of {step}", f"pad {odd} to {padded}")
    if (aligned := UNALIGNED.search(name)) and int(aligned[1]) < step:
        return Problem(
            f"rows aligned to {aligned[1]} of {step} elements",
            f"pad what the rows are made of to a multiple of {step}, and keep views from starting in between",
        )
    return None


def _few_tiles(name: str, matmul: Matmul | None, blocks: int | None, processors: int | None) -> Problem | None:
    """A grid that leaves multiprocessors empty."""
    if not blocks or not processors or blocks >= FEW_TILES * processors or PERSISTENT.search(name):
        return None
    more = math.ceil(processors / blocks)
    rows = f"{matmul.m} rows to {more * matmul.m}" if matmul and matmul.m <= matmul.n else f"the work {more} times"
    return Problem(f"{blocks} tiles for {processors} SMs", f"batch {rows}")


def _partly_filled_tiles(matmul: Matmul, tile: tuple[int, int]) -> Problem | None:
    """Tiles at the border of the result that compute what nobody needs; libraries may turn the tile by 90 degrees."""
    if min(matmul.m, matmul.n) < FEW_ROWS:
        return None
    ways = [tile, tile[::-1]]
    rows, columns = max(ways, key=lambda way: _filled(matmul.m, way[0]) * _filled(matmul.n, way[1]))
    filled = _filled(matmul.m, rows) * _filled(matmul.n, columns)
    if filled >= WELL_FILLED:
        return None
    size, side = min((matmul.m, rows), (matmul.n, columns), key=lambda pair: _filled(*pair))
    return Problem(
        f"{matmul.m} x {matmul.n} fills its {rows} x {columns} tiles to {filled:.0%}",
        f"make {size} a multiple of {side}: {side * math.ceil(size / side)}",
    )


def _filled(size: int, side: int) -> float:
    return size / (side * math.ceil(size / side))


def _partly_filled_waves(tiles: int, tile: tuple[int, int], processors: int) -> Problem | None:
    """A last wave of tiles that leaves most multiprocessors idle."""
    waves = tiles / processors
    filled = waves / math.ceil(waves)
    if tile[0] * tile[1] < LARGE_TILE or filled >= FULL_WAVES or waves < FEW_TILES:
        return None
    whole = max(1, math.floor(waves))
    return Problem(
        f"{tiles} tiles on {processors} SMs take {math.ceil(waves)} waves, filled to {filled:.0%}",
        f"{whole * processors} tiles or fewer take {whole}, {math.ceil(waves) * processors} cost no more than these",
    )


def _tiles(name: str, matmul: Matmul | None, tile: tuple[int, int] | None, blocks: int | None) -> int | None:
    """Tiles of the result: the grid, or for kernels that stay on their multiprocessor what the shape needs."""
    if not PERSISTENT.search(name):
        return blocks
    if not matmul or not tile:
        return None
    ways = [tile, tile[::-1]]
    return min(matmul.batch * math.ceil(matmul.m / rows) * math.ceil(matmul.n / columns) for rows, columns in ways)
