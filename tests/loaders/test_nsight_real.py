"""What is known of other people's exports, where a `shared` folder beside the checkout holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor import Options, analyze, load
from trace_doctor.reporter import markdown, terminal


@pytest.fixture
def exports(shared: Path) -> Path:
    folder = shared / "traces/nsys"
    if not folder.is_dir():
        pytest.skip("no Nsight exports in the shared folder")
    return folder


def test_two_ranks_in_one_file(exports: Path) -> None:
    path = exports / "ddp-2ranks.sqlite"
    trace = load(path)
    kernels = trace.activities.filter(trace.activities["kind"] == "compute")
    assert (len(kernels), kernels["call"].null_count(), kernels["call"].n_unique()) == (4652, 0, 4652)
    assert len(trace.meta.devices) == 2
    assert len(trace.collectives) == 460


def test_start_up_broadcasts_are_not_the_steady_state(exports: Path) -> None:
    report = analyze([exports / "ddp-2ranks.sqlite"])
    assert len(report.gpus) == 2
    assert "from the end of the parameters' broadcast (111 collectives)" in report.window.rule
    assert "broadcast" not in {row.name for row in report.collectives}


def test_flops_from_emitted_sizes(exports: Path) -> None:
    report = analyze([exports / "transformer-step-A100.sqlite"], Options(whole_trace=True))
    assert report.workload.model_flops_per_step == pytest.approx(1.60e12, rel=0.01)
    assert report.metrics.mfu == pytest.approx(0.022, abs=0.0005)
    first = report.findings[0]
    assert (first.code, "FP32" in first.title) == ("wrong-precision", True)


def test_whole_graphs_are_no_idle_gpu(exports: Path) -> None:
    report = analyze([exports / "llm-2.7B-cudagraph.sqlite"])
    assert report.partition.compute_ns / report.window.duration_ns == pytest.approx(1, abs=1e-4)
    assert "idle" not in (terminal.render(report) + markdown.render(report)).lower()


def test_both_devices_without_any_description(exports: Path) -> None:
    report = analyze([exports / "diffusion-2xH100-before.sqlite"])
    assert [(gpu.process, gpu.device) for gpu in report.gpus] == [("144", "0"), ("145", "1")]
