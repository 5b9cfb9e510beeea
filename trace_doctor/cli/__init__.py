"""The commands. A command's module is imported when it runs: `trace-doctor --help` loads no data frames."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Entry(NamedTuple):
    """Where a command lives, and its line in the help."""

    module: str
    summary: str


COMMANDS = {
    "analyze": Entry("trace_doctor.cli.analyze", "Say the MFU of a run and where the rest of the time went."),
    "compare": Entry("trace_doctor.cli.compare", "Say what changed between runs, why, and whether that is proven."),
    "mfu": Entry(
        "trace_doctor.cli.mfu", "Compute the MFU of a run from its model and its throughput, without a trace."
    ),
    "open": Entry("trace_doctor.cli.open", "Show a timeline in the Perfetto UI."),
    "explain": Entry("trace_doctor.cli.explain", "Explain a rule: what it sees, how, and what to do."),
    "rules": Entry("trace_doctor.cli.rules", "List the rules that findings come from."),
    "devices": Entry("trace_doctor.cli.devices", "List the GPUs whose peaks are known."),
}


class LazyGroup(click.Group):
    """Commands by name, imported on use; a path in place of a command gets told what was meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, without importing anything."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, which holds a function by the command's name."""
        entry = COMMANDS.get(cmd_name)
        return getattr(import_module(entry.module), cmd_name) if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from COMMANDS alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or guess that a file was meant to be analysed."""
        if args and args[0] not in COMMANDS and _looks_like_a_trace(args[0]):
            msg = f"there is no command {args[0]!r}; did you mean `trace-doctor analyze {' '.join(args)}`?"
            raise click.UsageError(msg, ctx)
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"there is no command {args[0]!r}{guess}"
            raise click.UsageError(msg, ctx)
        return super().resolve_command(ctx, args)


def _looks_like_a_trace(word: str) -> bool:
    return word == "-" or any(mark in word for mark in "/\\*.") or Path(word).exists()


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings=CONTEXT)
@click.version_option(package_name="trace-doctor", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Say where the FLOPs of a training run went: MFU, and every lost nanosecond by cause.

    \b
    trace-doctor analyze trace.json.gz
    trace-doctor analyze traces/ -o report.md -o report.json
    trace-doctor analyze trace.json --params 7B --tokens-per-step 4M
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)
