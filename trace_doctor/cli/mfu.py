"""`trace-doctor mfu`: parse, call, print. No arithmetic but that of units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from trace_doctor.cli.options import SectionCommand, SectionOption, complete_conventions, complete_devices
from trace_doctor.cli.quantities import COUNT, FLOPS_RATE, Finite

FORMATS = ("terminal", "json")


def _option(section: str, *names: str, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(*names, cls=SectionOption, section=section, **settings)


_model = partial(_option, "Model")
_speed = partial(_option, "Throughput")
_hardware = partial(_option, "Hardware")
_counting = partial(_option, "Counting")
_plan = partial(_option, "Training")
_output = partial(_option, "Report")
_positive = click.IntRange(min=1)
_above_zero = Finite(min=0, min_open=True, max=1e15)


@click.command(
    cls=SectionCommand, short_help="Compute the MFU of a run from its model and its throughput, without a trace."
)
@_model(
    "--model", type=click.Path(), metavar="FILE", help="A Hugging Face config.json (or its folder), or a TOML file."
)
@_model("--params", type=COUNT, metavar="N", help="Parameters, such as 7B, in place of a model: 6 N a token.")
@_model("--active-params", type=COUNT, metavar="N", help="Parameters that a token passes (mixture of experts).")
@_model("--sequence-length", type=_positive, metavar="N", help="Tokens of one sequence, as trained.")
@_model("--lora-rank", type=_positive, metavar="N", help="The weights are frozen, adapters of rank N are trained.")
@_speed("--tokens-per-second", type=COUNT, metavar="N", help="Throughput of the whole job.")
@_speed("--per-gpu", is_flag=True, help="--tokens-per-second is of one GPU, as torchtitan and Megatron log it.")
@_speed("--tokens-per-step", type=COUNT, metavar="T", help="Tokens of one step of the whole job.")
@_speed("--batch-size", type=COUNT, metavar="N", help="Sequences or images of one step of the whole job.")
@_speed("--step-time", type=_above_zero, metavar="S", help="Seconds of one step.")
@_speed("--gpus", type=_positive, default=1, show_default=True, metavar="N", help="GPUs of the whole job.")
@_hardware("--device", metavar="NAME", shell_complete=complete_devices, help="The GPU: see trace-doctor devices.")
@_hardware("--dtype", default="bf16", show_default=True, metavar="DTYPE", help="What the matmuls run in.")
@_hardware("--peak-dtype", metavar="DTYPE", help="The dtype that MFU is held against.  [default: bf16, else fp16]")
@_hardware("--peak-flops", type=FLOPS_RATE, metavar="RATE", help="Dense peak of the peak dtype: 989e12 or 989T.")
@_counting(
    "--convention",
    metavar="NAME",
    shell_complete=complete_conventions,
    help="How FLOPs are counted: palm, megatron, torchtitan, ...  [default: trace-doctor]",
)
@_counting(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    help="Activations computed again in backward; gives HFU.",
)
@_plan("--train-tokens", type=COUNT, metavar="N", help="Say what training on N tokens takes: 15T.")
@_plan("--price", type=_above_zero, metavar="MONEY", help="Of one GPU for an hour.")
@_output(
    "-f",
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="terminal",
    show_default=True,
    help="What to print.",
)
def mfu(format_: str, device: str | None, peak_dtype: str | None, peak_flops: float | None, **said: Any) -> None:
    """Compute the MFU of a run from its model and its throughput, without a trace.

    \b
    trace-doctor mfu --model config.json --sequence-length 8192 --tokens-per-second 4376 --per-gpu --device h100-sxm
    trace-doctor mfu --params 70B --tokens-per-step 4M --step-time 9.1 --gpus 256 --device h100-sxm --train-tokens 15T --price 2.5
    """
    import sys

    from trace_doctor.estimate import Run, to_json
    from trace_doctor.mfu import estimate
    from trace_doctor.options import Options
    from trace_doctor.reporter.estimate import render

    options = Options(device=device, peak_dtype=peak_dtype, peak_flops=peak_flops)
    found = estimate(Run(**said), options)
    if format_ == "json":
        sys.stdout.buffer.write(to_json(found))
    else:
        click.echo(render(found), nl=False)
