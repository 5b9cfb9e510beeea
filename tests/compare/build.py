"""Reports in a few words, for comparisons."""

from __future__ import annotations

from typing import Any

from trace_doctor.report import (
    DeviceRow,
    Finding,
    Gpu,
    KernelRow,
    Kernels,
    LedgerRow,
    Metrics,
    Partition,
    Report,
    Source,
    Step,
    StepTime,
    Top,
    Wall,
    WindowRow,
)

MS = 1_000_000


def row(wall: Wall, cause: str, *per_step_ms: float, names: tuple[str, ...] = ()) -> LedgerRow:
    """A row of the ledger by what it took in each step."""
    per_step = [round(value * MS) for value in per_step_ms]
    return LedgerRow(
        wall=wall,
        cause=cause,
        time_ns=sum(per_step),
        share=0.0,
        mfu_points=0.0,
        basis="measured",
        per_step_ns=per_step,
        top=[Top(name=name, time_ns=sum(per_step)) for name in names],
    )


def report(*rows: LedgerRow, path: str = "run/trace.json", mfu: float | None = 0.4, **more: Any) -> Report:
    """A report whose window is the sum of its rows; every row tells as many steps."""
    steps = len(rows[0].per_step_ns) if rows else 0
    lengths = [sum(one.per_step_ns[place] for one in rows) for place in range(steps)]
    times = sorted(lengths)
    median = (times[(steps - 1) // 2] + times[steps // 2]) / 2 if steps else None
    facts: dict[str, Any] = {
        "sources": [Source(path=path, format="kineto")],
        "device": DeviceRow(name="NVIDIA H100 80GB HBM3", count=1, peak_dtype="bf16"),
        "metrics": Metrics(mfu=mfu, gpu_utilisation=0.5),
        "window": WindowRow(
            duration_ns=sum(lengths),
            step_time_ns=StepTime(mean=sum(lengths) / steps if steps else None, median=median),
            steps=[Step(number=place, start_ns=0, duration_ns=length) for place, length in enumerate(lengths)],
        ),
        "partition": Partition(
            exposed_communication_ns=sum(one.time_ns for one in rows if one.wall == "communication")
        ),
        "ledger": list(rows),
        "gpus": [Gpu()],
    }
    return Report(**facts | more)


def without_steps(duration_ms: float, *kernels: KernelRow, **more: Any) -> Report:
    """A report of a capture of some length."""
    window = WindowRow(duration_ns=round(duration_ms * MS))
    whole = LedgerRow(
        wall="host", cause="host code", time_ns=window.duration_ns, share=1.0, mfu_points=100.0, basis="measured"
    )
    return report(window=window, ledger=[whole], kernels=Kernels(rows=list(kernels)), **more)


def kernel(name: str, *, family: str = "gemm", count: int = 1, time_ms: float = 1.0, **more: Any) -> KernelRow:
    """A row of the kernel table."""
    return KernelRow(name=name, family=family, count=count, time_ns=round(time_ms * MS), **more)


def finding(code: str, points: float, *, cause: str = "cause", severity: Any = "warning") -> Finding:
    """A finding."""
    return Finding(
        code=code, title=f"{code} of {points}", wall="host", cause=cause, severity=severity, confidence="high", lost_ns=1,
        mfu_points=points,
    )  # fmt: skip
