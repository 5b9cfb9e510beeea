"""Recognising devices: names, traps among names, properties, the user's own numbers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from trace_doctor.errors import UsageError
from trace_doctor.hardware.devices import DTYPES, Device, Row, catalogue, default_peak_dtype, identify, peak
from trace_doctor.options import Options
from trace_doctor.trace import DeviceInfo

SHARED = Path(os.environ.get("TRACE_DOCTOR_SHARED", Path(__file__).parents[3] / "shared"))
SHARED_NAMES = {"NVIDIA H100", "AMD Instinct MI250X/MI250"}
GIB = 2**30
DEFAULTS = Options()


def device(name: str | None, options: Options = DEFAULTS, **properties: object) -> Device:
    return identify(DeviceInfo(label="0", name=name, **properties), options)  # type: ignore[arg-type]


OWN_NAMES = [(name, row.id) for row in catalogue() for name in row.names if name not in SHARED_NAMES]


@pytest.mark.parametrize(("name", "row"), OWN_NAMES)
def test_every_name_finds_its_row_exactly_and_by_regex(name: str, row: str) -> None:
    assert device(name).id == row
    assert device(f"{name.upper()} (rev a1)").id == row
    assert [other.id for other in catalogue() if re.search(other.regex, name, re.IGNORECASE)] == [row]


def test_table_is_whole() -> None:
    ids = [row.id for row in catalogue()]
    assert len(ids) == len(set(ids)) == 49
    assert all(set(row.peak_tflops) <= set(DTYPES) and row.sources and row.memory_gb_s for row in catalogue())


def test_basis_names_the_first_sources_once_each() -> None:
    assert device("NVIDIA A30").basis == (
        "a30, recognised by its name, NVIDIA A30; confidence medium, from GindaChen/nsys-ai, the vendor's datasheet as recalled"
    )
    assert device("NVIDIA B200").basis.endswith(
        "from pytorch/torchtitan, stas00/ml-engineering, glennklockwood.com and 5 more"
    )


@pytest.mark.parametrize(
    ("name", "row", "bf16"),
    [
        ("NVIDIA A10", "a10", 125e12),
        ("NVIDIA A10G", "a10g", 70e12),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80", 312e12),
        ("NVIDIA A100-PG509-200", "a100-sxm-40", 312e12),
        ("NVIDIA H20-3e", "h20", 148e12),
        ("NVIDIA H200", "h200-sxm", 989.4e12),
        ("NVIDIA H200 NVL", "h200-nvl", 835.5e12),
        ("NVIDIA L4", "l4", 121e12),
        ("NVIDIA L40", "l40", 181e12),
        ("NVIDIA L40S", "l40s", 362.05e12),
        ("NVIDIA B200", "b200", 2250e12),
        ("NVIDIA GB200", "gb200", 2500e12),
        ("NVIDIA  H100 80GB HBM3 ", "h100-sxm", 989.4e12),
        ("AMD Instinct MI300X VF", "mi300x", 1307.4e12),
        ("AMD Instinct MI250X", "mi250x-gcd", 191.5e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 5090 D", None, None),
        ("NVIDIA H800 PCIe", None, None),
        ("Quadro GP100", None, None),
    ],
)
def test_names_that_contain_each_other(name: str, row: str | None, bf16: float | None) -> None:
    assert (device(name).id, peak(device(name), "bf16")) == (row, bf16)


def test_numbers_are_in_base_units() -> None:
    h100 = device("NVIDIA H100 80GB HBM3")
    assert (h100.memory_bandwidth, h100.link_bandwidth, h100.pcie_bandwidth) == (3350e9, 450e9, 63.02e9)
    assert h100.best_matmul_flops == 794.5e12
    assert h100.peaks == {
        "fp64": 67e12, "fp32": 67e12, "tf32": 494.7e12, "fp16": 989.4e12, "bf16": 989.4e12, "fp8": 1979e12, "int8": 1979e12,
    }  # fmt: skip
    assert "confidence high" in h100.basis


def test_default_dtype_is_bf16_where_there_is_one() -> None:
    assert default_peak_dtype(device("NVIDIA A10")) == "bf16"
    assert default_peak_dtype(device("Tesla V100-SXM2-16GB")) == "fp16"
    assert default_peak_dtype(device("NVIDIA A10", Options(peak_dtype="tf32"))) == "tf32"
    assert default_peak_dtype(device("Quadro GP100")) is None
    assert peak(device("Tesla V100-SXM2-16GB"), "bf16") is None
    assert peak(device("NVIDIA A10"), None) is None


@pytest.mark.parametrize(
    ("multiprocessors", "memory_gib", "row"),
    [(132, 79.2, "h100-sxm"), (114, 79.2, "h100-pcie"), (132, 93.1, "h100-nvl"), (None, None, None), (132, None, None)],
)
def test_bare_h100_is_decided_by_properties(
    multiprocessors: int | None, memory_gib: float | None, row: str | None
) -> None:
    memory = int(memory_gib * GIB) if memory_gib else None
    assert device("NVIDIA H100", multiprocessors=multiprocessors, memory_bytes=memory).id == row


@pytest.mark.parametrize("name", [None, " ", "gfx942:sramecc+:xnack-"])
def test_missing_name_is_decided_by_properties(name: str | None) -> None:
    found = device(name, vendor="amd", compute_capability="9.4", multiprocessors=304, memory_bytes=206141652992)
    assert (found.id, found.known) == ("mi300x", True)


def test_properties_that_fit_two_rows_give_candidates() -> None:
    found = device("", vendor="amd", compute_capability="9.0", multiprocessors=104, memory_bytes=68702699520)
    assert (found.known, found.peaks, found.candidates) == (False, {}, ("mi210", "mi250-gcd"))


def test_nothing_known_gives_no_candidates() -> None:
    assert (device(None).known, device(None).candidates) == (False, ())


def test_generic_name_never_gets_a_peak() -> None:
    found = device(
        "NVIDIA Graphics Device", compute_capability="10.0", multiprocessors=148, memory_bytes=int(178 * GIB)
    )
    assert (found.known, found.peaks) == (False, {})
    assert found.candidates == ("b100", "b200", "gb200")


def test_unknown_device_names_near_rows_and_flags() -> None:
    found = device("NVIDIA H100 80GB HBM2e")
    assert (found.known, found.peaks, found.near[0]) == (False, {}, "h100-sxm")
    assert found.basis.startswith("no peak: unknown GPU, ")
    assert "--device" in found.basis and "--peak-flops" in found.basis


def test_row_without_peak_says_so() -> None:
    found = device("AMD Instinct MI308X")
    assert (found.known, found.peaks, default_peak_dtype(found)) == (True, {}, None)
    assert "--peak-flops" in found.basis


def test_partitions_are_scaled() -> None:
    cpx = device("AMD Instinct MI300X", multiprocessors=38)
    assert peak(cpx, "bf16") == pytest.approx(1307.4e12 / 8)
    assert "scaled to 38 of 304" in cpx.basis
    mig = device("NVIDIA A100-SXM4-40GB MIG 3g.20gb", multiprocessors=42)
    assert peak(mig, "bf16") == pytest.approx(312e12 * 42 / 108)
    assert peak(device("AMD Instinct MI300X", multiprocessors=132), "bf16") == 1307.4e12


@pytest.mark.parametrize(
    ("wanted", "row"),
    [("h100-sxm", "h100-sxm"), ("H100-SXM", "h100-sxm"), ("NVIDIA L40S", "l40s"), ("L4", "l4"), ("4090", "rtx-4090"),
     ("H200", "h200-sxm"), ("mi325", "mi325x"), ("a10", "a10"), ("a100 80gb pcie", "a100-pcie-80")],
)  # fmt: skip
def test_chosen_device(wanted: str, row: str) -> None:
    assert device("whatever", Options(device=wanted)).id == row


@pytest.mark.parametrize(
    ("wanted", "listed"),
    [("h100", "h100-sxm, h100-pcie, h100-nvl"), ("NVIDIA H100", "h100-sxm"), ("a100-80", "a100-sxm-80, a100-pcie-80"),
     ("h10O", "no device"), ("??", "no device")],
)  # fmt: skip
def test_chosen_device_must_be_one(wanted: str, listed: str) -> None:
    with pytest.raises(UsageError, match=listed):
        device("NVIDIA L4", Options(device=wanted))


def test_own_numbers_win() -> None:
    unknown = device("Quadro GP100", Options(peak_flops=1e13, memory_bandwidth=7e11))
    assert (unknown.peaks, unknown.memory_bandwidth, default_peak_dtype(unknown)) == ({"bf16": 1e13}, 7e11, "bf16")
    assert unknown.basis == "bf16 peak from --peak-flops; unknown GPU"
    known = device("NVIDIA L4", Options(peak_flops=2e14, peak_dtype="fp8"))
    assert (peak(known, "fp8"), peak(known, "bf16"), default_peak_dtype(known)) == (2e14, 121e12, "fp8")


def test_profiler_bandwidth_is_used_where_the_row_has_none() -> None:
    assert device("NVIDIA GeForce RTX 3080", memory_bandwidth=760e9).memory_bandwidth == 760e9
    assert device("NVIDIA L4", memory_bandwidth=760e9).memory_bandwidth == 300e9


@pytest.mark.parametrize(
    "options",
    [
        Options(peak_flops=0.0),
        Options(peak_flops=-1.0),
        Options(memory_bandwidth=float("nan")),
        Options(peak_dtype="float16"),
        Options(peak_dtype="fp4"),
    ],
)
def test_senseless_numbers_are_refused(options: Options) -> None:
    with pytest.raises(UsageError):
        device("NVIDIA L4", options)


def peaks_of_case(folder: str) -> list[tuple[str, float | None]]:
    file = SHARED / "cases" / folder / "expect.json"
    if not file.exists():
        return []
    return [(run["gpu"], run["peak_tflops"]) for run in json.loads(file.read_text())["extra_commands"]]


@pytest.mark.parametrize(("name", "tflops"), peaks_of_case("40_gpu_peak_table"))
def test_peaks_of_the_shared_case(name: str, tflops: float | None) -> None:
    found = peak(device(name, compute_capability="9.0", multiprocessors=132, memory_bytes=85029158912), "bf16")
    assert found == (None if tflops is None else pytest.approx(tflops * 1e12, rel=1e-3))


def test_catalogue_rows_are_public() -> None:
    assert isinstance(catalogue()[0], Row)
