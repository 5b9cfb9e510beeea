from __future__ import annotations

from pathlib import Path

from trace_doctor import analyze
from trace_doctor.options import Limits, Options, Thresholds, chosen

SAMPLE = Path(__file__).parents[1] / "sample_traces/gpt-launch-bound.json.gz"


def test_nothing_is_chosen_by_default() -> None:
    assert chosen(Options()) == {}


def test_what_is_chosen_is_recorded_but_for_what_bears_on_no_result() -> None:
    options = Options(
        device="h100-sxm",
        jobs=3,
        ignore=("offload",),
        limits=Limits(least_share=0.1),
        thresholds=Thresholds(floor_ns=3_000),
    )
    assert chosen(options) == {
        "device": "h100-sxm",
        "ignore": ("offload",),
        "limits": {"least_share": 0.1},
        "thresholds": {"floor_ns": 3_000},
    }


def test_the_report_says_what_was_chosen() -> None:
    assert analyze([SAMPLE], Options(peak_dtype="fp8", jobs=1)).tool.options == {"peak_dtype": "fp8"}
