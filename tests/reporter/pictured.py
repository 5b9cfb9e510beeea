"""Reports that fill every figure of the page, and names that mean harm."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tests.reporter import samples
from trace_doctor.report import Gpu, KernelRow, Kernels, Layer, LedgerRow, Predicted, Report, Spread, Strip, from_json

ROOT = Path(__file__).parents[2]

_MARKUP = (
    "<script>window.pwned = 1</script>", "</script><script>window.pwned = 1</script>", "<img src=x onerror='window.pwned = 1'>",
    "<svg/onload=window.pwned=1>", "--><script>window.pwned = 1</script>", "]]><script>window.pwned = 1</script>",
    "<!--", "<!--<script>", "</title><script>window.pwned = 1</script>", "</style><style>*{display:none}</style>",
    "\" onmouseover=\"window.pwned = 1", "' autofocus onfocus='window.pwned = 1", "\"><iframe src=//evil.example></iframe>",
    "javascript:window.pwned=1", "<a href='javascript:window.pwned=1'>x</a>", "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>", "<link rel=stylesheet href=//evil.example>",
    "<form action=//evil.example><button>", "<object data=//evil.example>", "<math><mtext></math>", "<template>", "<plaintext>",
    "<details open ontoggle=window.pwned=1>", "&lt;b&gt;", "&#60;script&#62;window.pwned=1", "{{ 7 * 7 }}", "{% raw %}", "${7*7}",
)  # fmt: skip
_OTHER = (
    "[x](http://evil.example)", "![x](http://evil.example/x.png)", "`a` ``b`` ```c", "| a | b |", "a\\|b", "# title", "@everyone #1",
    "\x1b[31mred\x1b[0m", "\x1b]8;;http://evil.example\x07link", "\x07\x08\x00\x7f", "\u202egnp.exe", "\u2066\u2069\u200f\u200b",
    "\u2028\u2029", "line\nbreak\r\ttab", "中文字符", "עברית", "😀" * 40, "%s%n%x", "../../etc/passwd", "a" * 10_000, "<" * 10_000,
)  # fmt: skip
HOSTILE_NAMES = _MARKUP + _OTHER


def full() -> Report:
    """20 GPUs with ledgers, a strip, kernels under every roof, and a fix whose gain is predicted."""
    report = samples.busy_but_slow()
    finding = replace(
        report.findings[0],
        predicted=Predicted(step_time_ns=34e6, mfu=0.2, saved_ns_low=5e6, saved_ns_high=7e6, money_per_day=1_250.0),
    )
    return replace(
        report,
        device=replace(report.device, memory_bandwidth=3.35e12),
        findings=[finding, *report.findings[1:]],
        gpus=[replace(gpu, ledger=_uneven(report.ledger, gpu)) for gpu in report.gpus],
        kernels=Kernels(rows=KERNELS, shown=2, more=7, more_ns=1_000_000),
        strip=STRIP,
    )


def _uneven(ledger: list[LedgerRow], gpu: Gpu) -> list[LedgerRow]:
    """Rank 7 waits less than the others."""
    return [
        replace(row, mfu_points=3.0, share=0.03) if gpu.rank == 7 and row.cause == "waiting or slow" else row
        for row in ledger
    ]


KERNELS = [
    KernelRow(
        name="nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", family="gemm", dtype="bf16", op="aten::mm", count=5_760,
        time_ns=32_000_000, share=0.267, duration_ns=Spread(median=110_000.0, p95=120_000.0), flops=5e10, bytes=1e8,
        intensity=500.0, ideal_ns=50_556.0, achieved_flops=450e12, achieved_bandwidth=0.9e12, efficiency=0.45, bound="compute",
    ),
    KernelRow(name=samples.ALL_REDUCE, family="communication", op="c10d::allreduce_", count=480, time_ns=21_600_000, share=0.18),
    KernelRow(
        name=samples.ADD, family="elementwise", op="aten::add", count=8_640, time_ns=18_000_000, share=0.15,
        duration_ns=Spread(median=40_000.0, p95=41_000.0), bytes=1e8, achieved_bandwidth=2.5e12, efficiency=0.75, bound="memory",
    ),
    KernelRow(
        name="gemv2T_kernel_val", family="gemm", dtype="bf16", op="aten::mv", count=60, time_ns=2_000_000, share=0.0167,
        duration_ns=Spread(median=30_000.0, p95=31_000.0), flops=1e8, bytes=1e8, intensity=1.0, achieved_flops=3e12,
        achieved_bandwidth=3e12, efficiency=0.9, bound="memory",
    ),
]  # fmt: skip

STRIP = Strip(
    rank=0, device="0", step=2, start_ns=34_000_000, duration_ns=40_000_000, merged_below_ns=20_000,
    segment_start_ns=[0, 10_000_000, 16_000_000, 30_000_000],
    segment_name=[0, 1, 2, 0], segment_stretches=[1, 1, 40, 1],
    names=["nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", samples.ALL_REDUCE, samples.ADD],
    layers=[
        Layer(wall="mfu", cause="model FLOPs", segments=[0, 3], time_ns=[6_000_000, 5_000_000]),
        Layer(wall="compute", cause="below the roofline", segments=[0, 3], time_ns=[4_000_000, 5_000_000]),
        Layer(wall="memory", cause="elementwise", segments=[2], time_ns=[10_000_000]),
        Layer(wall="communication", cause="waiting or slow", segments=[1], time_ns=[6_000_000]),
        Layer(wall="small_kernels", cause="device-side gap", segments=[2], time_ns=[4_000_000]),
    ],
)  # fmt: skip


def hostile() -> Report:
    """The full report, every string in it the next of the hostile names."""
    names = cycle(HOSTILE_NAMES)

    def walk(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {k: walk(v, str(k)) for k, v in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        kept = key in samples.ENUMERATED or value in samples.RESOURCES
        return next(names) if isinstance(value, str) and not kept else value

    return msgspec.convert(walk(msgspec.to_builtins(full())), Report)


def largest() -> Report:
    """1,024 GPUs, the longest strip there can be, a hundred kernels: every name long, and made of what escapes worst."""
    report = full()
    sizes = range(2_000)
    layers = [
        replace(layer, segments=list(sizes), time_ns=[4_000 if place else 4_001 for place in sizes])
        for layer in STRIP.layers
    ]
    names = [f"{'<&' * 600}{place}" for place in sizes]
    return replace(
        report,
        gpus=[replace(report.gpus[rank % 20], rank=rank, ledger=_noisy(report.ledger, rank)) for rank in range(1_024)],
        findings=report.findings * 40,
        kernels=Kernels(rows=[replace(KERNELS[place % 4], name=names[place], op=names[place]) for place in range(100)]),
        strip=replace(
            STRIP, segment_start_ns=[20_000 * place for place in sizes], segment_name=list(sizes), names=names,
            segment_stretches=[3] * 2_000, layers=layers * 3,
        ),
        warnings=[replace(warning, message=names[0]) for warning in report.warnings * 100],
    )  # fmt: skip


def _noisy(ledger: list[LedgerRow], rank: int) -> list[LedgerRow]:
    """So that no two neighbours are shaded alike."""
    return [replace(row, mfu_points=row.mfu_points + 20 * ((rank * 7 + place) % 5)) for place, row in enumerate(ledger)]


def sampled() -> Report:
    """What the tool says of a sample trace."""
    return from_json((ROOT / "sample_traces/golden/gpt-communication-bound.json").read_bytes())
