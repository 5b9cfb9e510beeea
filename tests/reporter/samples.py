"""Fabricated reports: one where everything is known, one where nearly nothing is, one of many GPUs, one hostile."""

from __future__ import annotations

import msgspec

from trace_doctor.report import (
    Abstained,
    Basis,
    Counts,
    Coverage,
    DeviceRow,
    Evidence,
    Finding,
    Fix,
    Gpu,
    LedgerRow,
    Message,
    Metrics,
    Partition,
    Report,
    Scope,
    Source,
    Span,
    Step,
    StepDifference,
    StepTime,
    Tool,
    Top,
    Utilisation,
    Wall,
    WindowRow,
    Workload,
)

H100 = "NVIDIA H100 80GB HBM3"
WINDOW_NS = 120_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)


def row(wall: Wall, cause: str, points: float, basis: Basis, *top: Top, window_ns: int = WINDOW_NS) -> LedgerRow:
    time_ns = round(points / 100 * window_ns)
    return LedgerRow(
        wall=wall, cause=cause, time_ns=time_ns, share=points / 100, mfu_points=points, basis=basis, top=list(top)
    )


def healthy() -> Report:
    """A tuned run: three steps of 40 ms on one H100, MFU 52 %, all FLOPs known."""
    gemm = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
    norm = "void (anonymous namespace)::layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*)"
    ledger = [
        row("mfu", "model FLOPs", 52.0, "modelled", Top(name=gemm, op="aten::mm", time_ns=62_400_000, count=432)),
        row(
            "compute",
            "below the roofline",
            24.0,
            "residual",
            Top(name=gemm, op="aten::mm", time_ns=25_000_000, count=432),
        ),
        row(
            "memory",
            "normalisation",
            9.0,
            "modelled",
            Top(name=norm, op="aten::native_layer_norm", time_ns=10_800_000, count=147),
        ),
        row("memory", "elementwise", 8.5, "modelled", Top(name=ADD, op="aten::add", time_ns=6_000_000, count=288)),
        row(
            "memory",
            "optimizer",
            4.0,
            "modelled",
            Top(name="multi_tensor_apply_kernel", op=None, time_ns=4_800_000, count=3),
        ),
        row("small_kernels", "too short to fill the GPU", 0.75, "modelled"),
        row("small_kernels", "device-side gap", 0.5, "measured"),
        row("host", "host code", 1.25, "measured", Top(name="aten::item", op=None, time_ns=1_500_000, count=3)),
    ]
    partition = Partition(compute_ns=117_900_000, idle_ns=2_100_000)
    metrics = Metrics(
        mfu=0.52,
        mfu_low=0.52,
        mfu_high=0.52,
        hfu=0.52,
        achieved_flops=514.28e12,
        tokens_per_s=204_800.0,
        gpu_utilisation=0.9825,
        tensor_share=0.76,
        memory_bandwidth_utilisation=0.31,
        pcie_utilisation=0.002,
        utilisations=[
            Utilisation(name="gpu", value=0.9825, basis="measured", of="the time"),
            Utilisation(name="tensor", value=0.76, basis="measured", of="the time"),
            Utilisation(
                name="memory_bandwidth",
                value=0.31,
                basis="modelled",
                of="the memory's bandwidth",
                rate=1.04e12,
                limit=3.35e12,
            ),
            Utilisation(
                name="pcie",
                value=0.002,
                basis="measured",
                of="PCIe, in the busier direction",
                rate=126e6,
                limit=63.02e9,
            ),
        ],
    )
    times = StepTime(mean=40e6, median=40e6, min=39_900_000, max=40_100_000, p90=40.08e6)
    steps = [
        Step(
            number=4,
            start_ns=0,
            duration_ns=63_000_000,
            used=False,
            why_not="the first step took 1.58 medians: warm-up",
        )
    ]
    steps += [
        Step(number=5 + k, start_ns=63_000_000 + k * 40_000_000, duration_ns=length)
        for k, length in enumerate((40_100_000, 39_900_000, 40_000_000))
    ]
    return Report(
        tool=Tool(version="0.1.0"),
        sources=[Source(path="runs/gpt/rank0.json.gz", format="kineto", rank=0, size_bytes=18_000_000)],
        device=DeviceRow(
            name=H100,
            count=1,
            peak_flops={"bf16": 989e12, "fp8": 1979e12},
            peak_dtype="bf16",
            memory_bandwidth=3.35e12,
            link_bandwidth=450e9,
            best_matmul_flops=800e12,
            basis="h100-sxm, recognised by its name; confidence high, from the vendor's datasheet",
        ),
        workload=Workload(flops_basis="shapes", model_flops_per_step=20.57e12, covered_share=1.0),
        window=WindowRow(
            rule="ProfilerStep annotations", start_ns=63_000_000, duration_ns=WINDOW_NS, step_time_ns=times, steps=steps
        ),
        metrics=metrics,
        partition=partition,
        ledger=ledger,
        gpus=[
            Gpu(
                rank=0,
                device="0",
                source="runs/gpt/rank0.json.gz",
                name=H100,
                window=Span(duration_ns=WINDOW_NS),
                partition=partition,
                ledger=ledger,
                metrics=metrics,
                step_time_ns=times,
            )
        ],
        counts=Counts(kernels=2610, copies=6, launches=2610),
        coverage=Coverage(kernels_linked_share=1.0, shapes_share=1.0, modelled_share=0.991),
    )


def poor() -> Report:
    """An unknown GPU without steps, shapes or launch records: nearly everything is null, and idle can't be believed."""
    ledger = [
        row("memory", "elementwise", 22.0, "estimated", Top(name=ADD, op=None, time_ns=26_400_000, count=90)),
        row("small_kernels", "device-side gap", 3.0, "measured"),
        row("unattributed", "tensor work without FLOPs", 35.0, "measured"),
        row("unattributed", "no host events", 40.0, "measured"),
    ]
    return Report(
        tool=Tool(version="0.1.0"),
        sources=[Source(path="C:\\traces\\gpu only.json", format="kineto")],
        device=DeviceRow(
            count=1,
            basis="no peak: the name is missing; give --device NAME, or --peak-flops X with --memory-bandwidth Y",
        ),
        window=WindowRow(rule="no steps found: the window is the hull of GPU activity", duration_ns=WINDOW_NS),
        metrics=Metrics(gpu_utilisation=0.57, tensor_share=0.35),
        partition=Partition(compute_ns=68_400_000, idle_ns=51_600_000),
        ledger=ledger,
        gpus=[Gpu(device="0", source="C:\\traces\\gpu only.json", window=Span(duration_ns=WINDOW_NS), ledger=ledger)],
        coverage=Coverage(
            kernels_linked_share=0.0,
            modelled_share=0.0,
            tables_missing=["host ops", "launch calls", "op shapes"],
            abstained=[Abstained(code="dependency", why="waits of one stream for another are not recorded")],
            trust="poor",
            why=["412 kernels were launched, but only 90 were recorded"],
        ),
        warnings=[
            Message(code="kernels-lost", message="412 kernels were launched, but only 90 were recorded"),
            Message(code="truncated", message="the file ends in the middle of an event: 1 event was left out"),
        ],
    )


def busy_but_slow() -> Report:
    """MFU as a range, recomputation, negative rows, an FP8 peak: 20 GPUs of an H100 job bound by memory and network."""
    ledger = [
        row("mfu", "model FLOPs", 17.3, "modelled"),
        row(
            "recompute",
            "recompute",
            3.0,
            "modelled",
            Top(name="flash_fwd_kernel<...>", op="aten::_flash_attention", time_ns=1_800_000, count=12),
        ),
        row("compute", "below the roofline", 9.4, "residual"),
        row("compute", "precision gain", -1.2, "modelled"),
        row(
            "memory",
            "poor access pattern",
            23.0,
            "modelled",
            Top(name=ADD, op="aten::add", time_ns=18_000_000, count=144),
        ),
        row("memory", "layout", 15.0, "modelled"),
        row(
            "communication",
            "waiting or slow",
            18.0,
            "residual",
            Top(name=ALL_REDUCE, op="c10d::allreduce_", time_ns=21_600_000, count=24),
        ),
        row("communication", "wire time", 2.5, "modelled"),
        row("small_kernels", "launch-bound", 4.0, "measured"),
        row("host", "synchronisation", 3.0, "measured"),
        row("unattributed", "tensor work without FLOPs", 6.0, "measured"),
    ]
    metrics = Metrics(
        mfu=0.173,
        mfu_low=0.173,
        mfu_high=0.205,
        hfu=0.203,
        mfu_by_peak={"fp8": 0.0865},
        achieved_flops=171.1e12,
        gpu_utilisation=0.93,
        tensor_share=0.345,
        communication_overlap=0.41,
        utilisations=[
            Utilisation(name="gpu", value=0.93, basis="measured", of="the time"),
            Utilisation(name="tensor", value=0.345, basis="measured", of="the time"),
            Utilisation(
                name="memory_bandwidth",
                of="the memory's bandwidth",
                limit=3.35e12,
                why="the bytes of most kernels are not known",
            ),
            Utilisation(
                name="link", value=0.21, basis="modelled", of="NVLink4, one direction", rate=94.5e9, limit=450e9
            ),
            Utilisation(
                name="network",
                of="the network between machines",
                rate=9.2e9,
                why="its bandwidth is not known",
            ),
        ],
    )
    times = StepTime(mean=40e6, median=35e6, min=34_000_000, max=51_000_000, p90=47.8e6)
    gpus = [
        Gpu(
            rank=rank,
            device=str(rank % 8),
            source=f"rank{rank}.json",
            name=H100,
            window=Span(duration_ns=WINDOW_NS),
            partition=Partition(compute_ns=87_000_000, exposed_communication_ns=24_600_000, idle_ns=8_400_000),
            metrics=msgspec.structs.replace(metrics, mfu=0.170 + rank / 5000),
            step_time_ns=msgspec.structs.replace(times, median=35e6 + rank * 10_000),
        )
        for rank in range(20)
    ]
    finding = Finding(
        code="exposed-communication",
        title="Exposed communication: all-reduce of group 0 is not overlapped with compute",
        wall="communication",
        cause="waiting or slow",
        severity="error",
        confidence="medium: measured as exposed; one rank alone can't tell a slow link from waiting",
        lost_ns=7_200_000,
        mfu_points=18.0,
        scope=Scope(ranks=list(range(20)), steps=[1, 2, 3]),
        evidence=[
            Evidence(
                kind="collective",
                name="all-reduce of group 0",
                rank=0,
                count=24,
                duration_ns=26_000_000,
                numbers={"exposed_ms": 21.6, "median_bus_bandwidth_gb_s": 94.5},
            ),
            Evidence(
                kind="activity",
                name=f"c10d::allreduce_ / {ALL_REDUCE}",
                rank=0,
                step=2,
                start_ns=70_000_000,
                duration_ns=1_900_000,
                count=24,
                numbers={"total_ms": 21.6, "mfu_points": 18.0, "message_bytes": 26214400.0},
            ),
        ],
        fix=Fix(
            summary="Let it overlap with the backward pass: smaller buckets.",
            code=(
                "model = DDP(\n    model, bucket_cap_mb=25)\n"
                "torch.distributed.init_process_group(backend='nccl', device_id=device)  # without it the first one is slow"
            ),
            framework="PyTorch",
            risk="Smaller buckets need more launches.",
            verify="The exposed communication of the table of GPUs falls.",
            doc="docs/rules/exposed-communication.md",
        ),
    )
    small = Finding(
        code="host-synchronisation",
        title="The host waits for the GPU and then launches late: synchronisation in aten::item",
        wall="host",
        cause="synchronisation",
        severity="info",
        confidence="high: the waits are recorded",
        lost_ns=400_000,
        mfu_points=1.0,
    )
    slow = [
        StepDifference(
            wall="host", cause="garbage collection", time_ns=14_000_000, median_ns=0, name="Python GC of generation 2"
        ),
        StepDifference(
            wall="communication", cause="waiting or slow", time_ns=12_000_000, median_ns=9_500_000, name=ALL_REDUCE
        ),
        StepDifference(wall="memory", cause="layout", time_ns=8_000_000, median_ns=8_500_000),
        StepDifference(wall="mfu", cause="model FLOPs", time_ns=6_900_000, median_ns=6_900_000),
    ]
    return Report(
        tool=Tool(version="0.1.0"),
        sources=[Source(path=f"rank{rank}.json", format="kineto", rank=rank) for rank in range(20)],
        device=DeviceRow(
            name=H100,
            count=20,
            peak_flops={"bf16": 989e12, "fp8": 1979e12},
            peak_dtype="bf16",
            best_matmul_flops=800e12,
        ),
        workload=Workload(flops_basis="shapes", covered_share=0.84),
        window=WindowRow(
            rule="annotation 'train_step'",
            duration_ns=WINDOW_NS,
            step_time_ns=times,
            steps=[
                Step(number=1, start_ns=0, duration_ns=34_000_000),
                Step(number=2, start_ns=34_000_000, duration_ns=35_000_000),
                Step(number=3, start_ns=69_000_000, duration_ns=51_000_000, median_step=2, differences=slow),
            ],
        ),
        metrics=metrics,
        ledger=ledger,
        findings=[finding, small],
        gpus=gpus,
        coverage=Coverage(
            kernels_linked_share=0.998,
            modelled_share=0.9,
            trust="partial",
            why=["2 of 480 kernels of a step were not recorded"],
        ),
    )


HOSTILE = (
    "\x1b[31mred\x1b]8;;http://evil\x07 [bold]markup[/] :smile: | `tick` <b>@everyone</b> [x](http://e.vil) #1 $x$ "
    "\u202egnp\nnext\r\ttab \\| 中文 *a* _b_"
)


ENUMERATED = ("language", "wall", "basis", "severity", "trust", "flops_basis", "schema_version", "group_by", "bound")
RESOURCES = ("gpu", "tensor", "memory_bandwidth", "pcie", "link", "network")
"""Names of utilisations: the tool's own."""


def hostile(name: str = HOSTILE) -> Report:
    """Every string of a full report is the given one."""

    def walk(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {k: walk(v, str(k)) for k, v in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        kept = key in ENUMERATED or value in RESOURCES
        return name if isinstance(value, str) and not kept else value

    report = busy_but_slow()
    filled = msgspec.to_builtins(msgspec.structs.replace(report, warnings=[Message(code="x", message="x")]))
    return msgspec.convert(walk(filled), Report)
