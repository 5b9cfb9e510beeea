"""`--fail-on` of every command that judges: how gates and their waivers are read, and which exit code they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from trace_doctor.cli.options import SectionOption
from trace_doctor.cli.settings import Setting
from trace_doctor.config import Config
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.comparing.gates import Gate, NewFinding
    from trace_doctor.comparing.waivers import Waiver
    from trace_doctor.comparison import GateResult

HIT, UNSURE = 1, 3


def gate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of gates to a command."""
    unsure = click.option(
        "--allow-inconclusive",
        is_flag=True,
        cls=SectionOption,
        section="Gates",
        help="Exit with 0 where a gate, or the whole comparison, is inconclusive.",
    )
    fail_on = click.option(
        "--fail-on",
        multiple=True,
        cls=Setting,
        section="Gates",
        metavar="EXPR",
        help="Exit with 1 where this holds: 'mfu<40%', 'idle>20%'; of compare also 'mfu<-1pt', 'step_time>+3%', 'new:error'. May repeat.",
    )
    return fail_on(unsure(command))


def gates_of(ctx: click.Context, expressions: Sequence[str], *, has_base: bool) -> list[Gate | NewFinding]:
    """The parsed gates. Without a base those that need one are an error on the command line, and left out of a file's."""
    from trace_doctor.comparing import gates

    parsed = [gates.parse(expression) for expression in expressions]
    needy = [gate for gate in parsed if not has_base and gates.needs_base(gate)]
    if needy and ctx.get_parameter_source("fail_on") == ParameterSource.COMMANDLINE:
        msg = f"{needy[0].expression!r} is a change: it needs a base to compare with"
        raise UsageError(
            msg,
            where="--fail-on",
            hint="trace-doctor compare BASE NEW --fail-on ..., or an absolute limit such as 'mfu<40%'",
        )
    return [gate for gate in parsed if gate not in needy]


def waivers_of(config: Config) -> list[Waiver]:
    """The waivers of the config file; UsageError where one lacks its gate, reason or day, and a word on stderr for those expired."""
    from trace_doctor.comparing.waivers import Waiver, expired

    listed = config.values.get("waivers", [])
    try:
        waivers = msgspec.convert(listed, list[Waiver])
    except msgspec.ValidationError as error:
        msg = f"waivers: {error}"
        hint = 'each [[waivers]] has gate = "mfu<-1pt", reason = "...", expires = 2026-12-31'
        raise UsageError(msg, where=config.where("waivers"), hint=hint) from None
    for waiver in expired(waivers, today()):
        click.echo(f"warning: the waiver of {waiver.gate} expired on {waiver.expires}: {waiver.reason}", err=True)
    return waivers


def today() -> Any:
    """The day that waivers are held against."""
    from datetime import date

    return date.today()


def exit_code(results: Sequence[GateResult], *, can_compare: bool, allow_inconclusive: bool) -> int:
    """1: a gate fails; 3: one is inconclusive, or the reports can't be compared; else 0."""
    left = {result.result for result in results if not result.waived}
    if can_compare and "fail" in left:
        return HIT
    unsure = not can_compare or "inconclusive" in left
    return UNSURE if unsure and not allow_inconclusive else 0
