"""Why a shape is slow, by hand: an H100 has 132 multiprocessors."""

from __future__ import annotations

import pytest

from trace_doctor.fixes.matmul_shape import Matmul, Problem, matmul_of, problem_of, tile_of

AMPERE = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
NVJET = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ("[[64, 32], [32, 16]]", Matmul(1, 64, 16, 32)),
        ("[[16], [64, 32], [32, 16], [], []]", Matmul(1, 64, 16, 32)),
        ("[[4, 64, 32], [4, 32, 16]]", Matmul(4, 64, 16, 32)),
        ("[[2, 64, 32], [16, 32]]", Matmul(1, 128, 16, 32)),
        ("[[64, 32], [31, 16]]", None),
        ("[[64, 32]]", None),
        ("[[0, 32], [32, 16]]", None),
        ("{", None),
        (None, None),
    ],
)
def test_the_product_of_the_recorded_shapes(shapes: str | None, found: Matmul | None) -> None:
    assert matmul_of(shapes) == found


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        (AMPERE, (128, 128)),
        (NVJET, (128, 256)),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x256x64_stage4_kernel", (64, 256)),
        ("Cijk_Ailk_Bljk_BBS_BH_MT32x64x64_MI16x16x16x1_SN_1LDSB0", (32, 64)),
        ("volta_sgemm_128x64_nn", (128, 64)),
        ("gemmk1_kernel", None),
    ],
)
def test_the_tile_stands_in_the_name(name: str, tile: tuple[int, int] | None) -> None:
    assert tile_of(name) == tile


def problem(name: str, matmul: Matmul | None, blocks: int | None = 132) -> Problem | None:
    return problem_of(name, matmul, dtype="bf16", blocks=blocks, processors=132)


def test_an_odd_dimension_is_padded_to_64() -> None:
    assert problem(AMPERE, Matmul(1, 4096, 50257, 4096)) == Problem(
        "a dimension of 50257 is no multiple of 8", "pad 50257 to 50304"
    )
    assert problem(AMPERE, Matmul(1, 50257, 4096, 4096), 50_000) is None


def test_kernels_for_unaligned_rows_say_so() -> None:
    found = problem("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align2", None)
    assert found is not None
    assert found.reason == "rows aligned to 2 of 8 elements"


def test_a_grid_that_leaves_multiprocessors_empty_needs_more_rows() -> None:
    assert problem(AMPERE, Matmul(1, 128, 4096, 4096), 32) == Problem("32 tiles for 132 SMs", "batch 128 rows to 640")
    assert problem(NVJET, Matmul(1, 4096, 8448, 4096), 132) is None


def test_border_tiles_that_are_half_empty() -> None:
    # 192 rows take two tiles of 128: 75 % full, the columns fit
    assert problem(AMPERE, Matmul(1, 192, 8448, 4096)) == Problem(
        "192 x 8448 fills its 128 x 128 tiles to 75%", "make 192 a multiple of 128: 256"
    )
    # turned by 90 degrees, 256 x 128 tiles fit 8192 x 128 whole
    assert problem("volta_h884gemm_128x256_ldg8_nn", Matmul(1, 8192, 128, 4096), 132) is None


def test_a_last_wave_that_is_nearly_empty() -> None:
    assert problem(AMPERE, Matmul(1, 1536, 1536, 4096), 144) == Problem(
        "144 tiles on 132 SMs take 2 waves, filled to 55%", "132 tiles or fewer take 1, 264 cost no more than these"
    )
    assert problem(AMPERE, Matmul(1, 2048, 2048, 4096), 256) is None
    # small tiles share a multiprocessor: waves are not known
    assert problem("ampere_bf16_s16816gemm_bf16_64x64_ldg8_tn", Matmul(1, 768, 768, 4096), 144) is None


def test_tiles_of_persistent_kernels_come_from_the_shape() -> None:
    # 16 x 9 tiles of 256 x 128 whichever way: 144
    found = problem(NVJET, Matmul(1, 2048, 2304, 4096), 132)
    assert found is not None
    assert found.reason == "144 tiles on 132 SMs take 2 waves, filled to 55%"
