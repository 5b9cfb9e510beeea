"""Options of every command that analyses traces: which steps, which GPU, which FLOPs, which rules; and the bar on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from trace_doctor.cli import settings
from trace_doctor.cli.options import SectionOption, complete_codes, complete_conventions, complete_devices
from trace_doctor.cli.quantities import BYTES_RATE, COUNT, FLOPS, FLOPS_RATE, Finite
from trace_doctor.cli.settings import Setting
from trace_doctor.errors import UsageError
from trace_doctor.fixes import pages
from trace_doctor.options import GroupBy, Options, Thresholds

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

PROGRESS_AFTER_S = 0.5
US, MS = 1_000, 1_000_000
MOST, MOST_TIME = 1 << 40, 10**10
"""Of whatever is counted, and of a threshold in us or ms: hours are none."""


def _setting(section: str, *names: str, **more: Any) -> Decorator:
    return click.option(*names, cls=Setting, section=section, **more)


_table = partial(_setting, "Kernel table")
_window = partial(_setting, "Steps")
_hardware = partial(_setting, "Hardware")
_work = partial(_setting, "FLOPs")
_rules = partial(_setting, "Findings")
_cost = partial(_setting, "Cost")
_privacy = partial(_setting, "Privacy")
_run: Callable[..., Decorator] = partial(click.option, cls=SectionOption, section="Running")
_threshold = partial(_setting, "Thresholds of the accounting", table="thresholds")

_OPTIONS: tuple[Decorator, ...] = (
    _table(
        "--top-kernels",
        type=click.IntRange(min=0, max=MOST),
        default=10,
        show_default=True,
        metavar="N",
        help="Rows of the kernel table.",
    ),
    _table(
        "--group-by",
        type=click.Choice(get_args(GroupBy)),
        default="kernel",
        show_default=True,
        help="What a row of the kernel table stands for.",
    ),
    _window("--steps", metavar="RANGE", help="Use these steps only: 2-4 or 3,5, as the trace numbers them."),
    _window("--all-steps", is_flag=True, help="Use all steps: don't leave a slow first one out."),
    _window("--step-range", metavar="NAME", help="The annotation that is a step: a prefix or regex."),
    _window("--whole-trace", is_flag=True, help="Account for the whole trace, start-up included."),
    _hardware(
        "--device",
        metavar="NAME",
        shell_complete=complete_devices,
        help="The GPU, where the trace doesn't name it: see trace-doctor devices.",
    ),
    _hardware(
        "--peak-flops",
        type=FLOPS_RATE,
        metavar="RATE",
        help="Dense peak of the peak dtype: 989e12, 989T or '989 TFLOP/s'.",
    ),
    _hardware("--peak-dtype", metavar="DTYPE", help="The dtype that MFU is held against.  [default: bf16, else fp16]"),
    _hardware(
        "--memory-bandwidth", type=BYTES_RATE, metavar="RATE", help="Memory bandwidth: 3.35e12, 3.35T or 3350GB/s."
    ),
    _work(
        "--flops-per-step",
        type=FLOPS,
        metavar="FLOPS",
        help="Model FLOPs of one step of the whole job: 1.2e15 or 1.2P.",
    ),
    _work(
        "--model",
        type=click.Path(),
        metavar="FILE",
        help="The model, a Hugging Face config.json or TOML: with --tokens-per-step, its FLOPs by --convention.",
    ),
    _work(
        "--sequence-length",
        type=click.IntRange(min=1, max=MOST),
        metavar="N",
        help="Tokens of one sequence, for --model.",
    ),
    _work(
        "--convention",
        metavar="NAME",
        shell_complete=complete_conventions,
        help="How the FLOPs of --model are counted: palm, megatron, torchtitan, ...  [default: as shapes are]",
    ),
    _work(
        "--params",
        type=COUNT,
        metavar="N",
        help="Parameters of the model, such as 7B: with --tokens-per-step, a step is 6 N T FLOPs.",
    ),
    _work("--active-params", type=COUNT, metavar="N", help="Parameters that a token passes (mixture of experts)."),
    _work("--tokens-per-step", type=COUNT, metavar="T", help="Tokens of one step of the whole job."),
    _work(
        "--world-size",
        type=click.IntRange(min=1, max=MOST),
        metavar="N",
        help="GPUs of the job.  [default: as the trace says]",
    ),
    _work(
        "--kernel-patterns",
        type=click.Path(),
        metavar="FILE",
        help="TOML file of kernel-name patterns that come before the built-in ones.",
    ),
    _rules(
        "--select",
        multiple=True,
        metavar="CODE",
        shell_complete=complete_codes,
        help="Run these rules only: a code or a glob such as '*copy'. May repeat.",
    ),
    _rules(
        "--ignore",
        multiple=True,
        metavar="CODE",
        shell_complete=complete_codes,
        help="Don't run these rules: a code or a glob. May repeat.",
    ),
    _cost(
        "--gpus",
        type=click.IntRange(min=1, max=MOST),
        metavar="N",
        help="GPUs that a post-mortem counts.  [default: --world-size, else those in the traces]",
    ),
    _cost(
        "--gpu-hour-price", type=Finite(min=0, min_open=True, max=MOST), metavar="MONEY", help="Of one GPU for an hour."
    ),
    _privacy(
        "--redact", is_flag=True, help="Leave paths, hosts, users, stacks and your own names out of every format."
    ),
    _setting(
        "Running",
        "--jobs",
        type=click.IntRange(min=1, max=256),
        metavar="N",
        help="Worker processes for large files.  [default: as many as pay]",
    ),
    _run("--no-config", is_flag=True, is_eager=True, envvar="TRACE_DOCTOR_NO_CONFIG", help="Read no config file."),
    _run(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        envvar="TRACE_DOCTOR_CONFIG",
        callback=settings.load,
        metavar="FILE",
        help="Read options from FILE.  [default: the nearest trace-doctor.toml or pyproject.toml upwards]",
    ),
    _run("--nsys", metavar="PATH", help="The nsys that exports .nsys-rep files.  [default: NSYS, PATH, usual places]"),
    _run("-q", "--quiet", is_flag=True, help="No progress on stderr."),
    _threshold(
        "--launch-spacing-us",
        type=Finite(min=0, max=MOST_TIME),
        default=200,
        show_default=True,
        metavar="US",
        help="Launches closer together are one busy host.",
    ),
    _threshold(
        "--device-gap-us",
        type=Finite(min=0, max=MOST_TIME),
        default=20,
        show_default=True,
        metavar="US",
        help="A kernel that starts later after its launch was not merely launched late.",
    ),
    _threshold(
        "--blocked-call-us",
        type=Finite(min=0, max=MOST_TIME),
        default=50,
        show_default=True,
        metavar="US",
        help="A longer launch call was blocked.",
    ),
    _threshold(
        "--initialisation-ms",
        type=Finite(min=0, max=MOST_TIME),
        default=100,
        show_default=True,
        metavar="MS",
        help="A longer allocator call is start-up, not a lack of memory.",
    ),
    _threshold(
        "--small-copy-bytes",
        type=click.IntRange(min=0, max=MOST),
        default=65_536,
        show_default=True,
        metavar="BYTES",
        help="A smaller copy to the host is the host reading a value.",
    ),
    _threshold(
        "--outlier-ratio",
        type=Finite(min=1, max=MOST),
        default=1.25,
        show_default=True,
        metavar="RATIO",
        help="A first step longer than this many medians is left out.",
    ),
    _threshold(
        "--floor-us",
        type=Finite(min=0, max=MOST_TIME),
        metavar="US",
        help="Time that no kernel goes below.  [default: measured in the trace]",
    ),
)


def analysis_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of an analysis to a command; `options_of` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def options_of(ctx: click.Context, chosen: dict[str, Any]) -> Options:
    """The flags, variables and keys of the config file as Options; raises UsageError where two contradict each other."""
    _contradictions(ctx, chosen)
    for name in ("select", "ignore"):
        pages.check(chosen[name], where=settings.said(ctx, name))
    config, floor_us = chosen.pop("config"), chosen.pop("floor_us")
    thresholds = Thresholds(
        launch_spacing_ns=round(chosen.pop("launch_spacing_us") * US),
        device_gap_ns=round(chosen.pop("device_gap_us") * US),
        blocked_call_ns=round(chosen.pop("blocked_call_us") * US),
        initialisation_ns=round(chosen.pop("initialisation_ms") * MS),
        small_copy_bytes=chosen.pop("small_copy_bytes"),
        outlier_ratio=chosen.pop("outlier_ratio"),
        floor_ns=None if floor_us is None else round(floor_us * US),
    )
    return Options(thresholds=thresholds, limits=config.limits(), **chosen)


def _contradictions(ctx: click.Context, chosen: dict[str, Any]) -> None:
    """Of two options that exclude each other the one from the weaker source gives way; from the same source they are an error."""
    together = [
        (("steps", "all_steps"), "give one of them"),
        (("whole_trace", "steps"), "give one of them"),
        (("whole_trace", "all_steps"), "give one of them"),
        (("whole_trace", "step_range"), "give one of them"),
        (("flops_per_step", "params"), "give the FLOPs, or the parameters and tokens"),
        (("flops_per_step", "active_params"), "give the FLOPs, or the parameters and tokens"),
        (("flops_per_step", "model"), "give the FLOPs, or the model and tokens"),
    ]
    for (one, other), hint in together:
        if chosen[one] and chosen[other]:
            if not (loser := settings.weaker(ctx, one, other)):
                msg = f"{settings.said(ctx, one)} and {settings.said(ctx, other)} contradict each other"
                raise UsageError(msg, hint=hint)
            chosen[loser] = getattr(Options(), loser)
    if chosen.pop("no_config") and chosen["config"].path and not settings.weaker(ctx, "no_config", "config"):
        msg = "--no-config and --config contradict each other"
        raise UsageError(msg, hint="give one of them")
    if (chosen["params"] or chosen["active_params"]) and not chosen["tokens_per_step"]:
        msg = f"{settings.said(ctx, 'params')} needs --tokens-per-step: FLOPs of a step are 6 x parameters x tokens"
        raise UsageError(msg, hint="add --tokens-per-step T, the tokens of one step of the whole job")


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr once the work has taken half a second; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("reading", total=None)
    started = time.monotonic()

    def advance(done: int, total: int) -> None:
        if time.monotonic() - started > PROGRESS_AFTER_S:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()
