from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reporter import samples
from trace_doctor.classifiers import charges
from trace_doctor.classifiers.host import named_causes
from trace_doctor.report import WALLS
from trace_doctor.reporter import text
from trace_doctor.work.kernels import FAMILIES


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "unknown"), (0, "0 ns"), (850, "850 ns"), (12_340, "12.3 µs"), (999_999, "1.00 ms"), (35_200_000, "35.2 ms"),
        (12_920_200_000, "12.9 s"), (-2_500_000, "-2.50 ms"),
    ],
)  # fmt: skip
def test_durations_take_the_unit_that_reads_best(ns: int | None, shown: str) -> None:
    assert text.plain(text.duration(ns)) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (989e12, "FLOP/s", "989 TFLOP/s"),
        (1979e12, "FLOP/s", "1,979 TFLOP/s"),
        (3.35e12, "B/s", "3.35 TB/s"),
        (450e9, "B/s", "450 GB/s"),
    ],
)
def test_rates_are_written_as_data_sheets_write_them(value: float, unit: str, shown: str) -> None:
    assert text.plain(text.rate(value, unit)) == shown


@pytest.mark.parametrize(("share", "shown"), [(None, "unknown"), (0.173, "17.3 %"), (0.0, "0.0 %"), (1.0, "100.0 %")])
def test_shares_are_per_cent_and_unknown_is_said(share: float | None, shown: str) -> None:
    assert text.plain(text.percent(share)) == shown


def test_points_have_no_negative_zero() -> None:
    assert [text.points(value) for value in (57.34, -0.04, -1.2)] == ["57.3", "0.0", "-1.2"]


@pytest.mark.parametrize(
    ("longest_ns", "shown"),
    [(35_200_000, "35.20"), (1_077_100_000, "1,077.1"), (12_920_000_000, "12.92"), (4_400_000, "4.400")],
)
def test_a_column_has_one_unit_and_four_digits(longest_ns: int, shown: str) -> None:
    assert text.column(longest_ns).show(longest_ns) == shown


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (samples.ADD, "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
            "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
            "elementwise_kernel<MulFunctor>",
        ),
        (samples.ALL_REDUCE, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>(float*)", "softmax_warp_forward"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_gemm>(Params)", "Kernel2<cutlass_80_tensorop_bf16_gemm>"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<Main> > >(P)", "device_kernel<FlashAttnFwdSm90>"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("_ZN2ck6device10fused_gemmILi1EEEvPKf", "fused_gemm"),
        ("_Z6kernelPf", "kernel"),
        ("_Z99999999999999999999x", "_Z99999999999999999999x"),
        ("", ""),
    ],
)  # fmt: skip
def test_kernel_names_are_shortened_to_what_tells_them_apart(name: str, short: str) -> None:
    assert text.kernel(name) == short


@given(st.text())
def test_any_name_can_be_shortened(name: str) -> None:
    assert len(text.clip(text.kernel(name), 30)) <= 30


@given(st.text(alphabet=st.characters()))
def test_clean_text_has_nothing_that_steers_a_terminal(name: str) -> None:
    cleaned = text.clean(name)
    assert cleaned.isprintable() or not set(cleaned) & set(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2028]))
    assert cleaned == text.clean(cleaned)


def test_cleaning_reaches_every_string_of_the_report() -> None:
    cleaned = msgspec.json.encode(text.cleaned(samples.hostile("a\x1b[31mb\nc"))).decode()
    assert r"a\\x1b[31mb c" in cleaned
    assert "\\u001b" not in cleaned


def test_lines_are_kept_in_the_code_of_a_fix_alone() -> None:
    finding = text.cleaned(samples.busy_but_slow()).findings[0]
    assert finding.fix is not None
    assert (finding.fix.code or "").startswith("model = DDP(\n    model, bucket_cap_mb=25)\n")


@pytest.mark.parametrize(
    ("low", "high", "drawn"),
    [
        (0, 100, "████████"), (25, 50, "··██····"), (0, 0, "········"), (50, 50, "········"), (0, 0.1, "▏·······"),
        (99.9, 100, "·······▏"), (6.25, 25, "▐█······"), (0, 18.75, "█▌······"), (6.25, 12.5, "▐·······"), (-5, 120, "████████"),
    ],
)  # fmt: skip
def test_bars_are_drawn_to_half_a_character(low: float, high: float, drawn: str) -> None:
    assert text.bar(low, high, 8) == drawn


@given(st.floats(-50, 150), st.floats(-50, 150), st.integers(1, 60))
def test_a_bar_is_as_long_as_asked(low: float, high: float, cells: int) -> None:
    assert len(text.bar(low, high, cells)) == cells


def test_every_wall_has_words_and_a_colour_of_its_own() -> None:
    assert list(text.WALLS) == list(WALLS)
    assert len({words.colour for words in text.WALLS.values()}) == len(WALLS)


def test_every_cause_of_the_ledger_is_explained() -> None:
    causes = {row.cause for row in vars(charges).values() if isinstance(row, charges.Row)} | {
        row.cause for row, _ in named_causes()
    }
    assert {cause for cause in causes - {"model FLOPs", ""} if cause not in text.MEANINGS} == set()


def test_every_memory_bound_family_is_explained() -> None:
    families = set(FAMILIES) - {"gemm", "grouped_gemm", "convolution", "attention", "communication", "unknown"}
    assert {family for family in families if family not in text.MEANINGS} == set()


def test_listing() -> None:
    assert [text.listing(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
