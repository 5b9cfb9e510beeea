"""Where a report goes: options of every command that makes one, stdout, and files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import click

from trace_doctor.cli.options import SectionOption
from trace_doctor.errors import OutputError, UsageError
from trace_doctor.reporter import files

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
Draw = Callable[..., str]
"""Draws a report for a terminal of some `width`, in some `colour` system, maybe `ascii_only`."""

FORMATS = ("terminal", "markdown", "json")
"""What every command that makes a report can write."""
HTML, PERFETTO = "html", "perfetto"
OF_ANALYSES = {PERFETTO: ("a timeline", "annotated.perfetto.json.gz"), HTML: ("a page", "report.html")}
"""What only an analysis can be written as, with a name for the file."""
STDOUT = "-"

_output: Callable[..., Decorator] = partial(click.option, cls=SectionOption, section="Report")

_OPTIONS: tuple[Decorator, ...] = (
    _output(
        "-f",
        "--format",
        "format_",
        type=click.Choice((*FORMATS, *OF_ANALYSES)),
        help="What to print on stdout, or with --output how to write .json files.  [default: terminal]",
    ),
    _output("--json", "as_json", is_flag=True, help="The same as --format json."),
    _output(
        "-o",
        "--output",
        "outputs",
        metavar="FILE",
        multiple=True,
        help="Write the report to FILE: .json, .html, .md, .txt, or .perfetto.json.gz for the timeline; '-' is stdout. May repeat.",
    ),
    _output("--force", is_flag=True, help="Overwrite files that are there."),
    _output(
        "--color/--no-color",
        "colour",
        default=None,
        help="Colour on stdout or not.  [default: on a terminal, unless NO_COLOR is set]",
    ),
)


class Drawn(NamedTuple):
    """A report in every format, each drawn when it is asked for."""

    terminal: Draw
    content: Mapping[str, Callable[[], bytes | Iterable[bytes]]]
    """By format, as a file holds it: UTF-8, no colour; in pieces where it may be large."""


class Output(NamedTuple):
    """Where a report goes."""

    printed: str | None
    """Format of stdout; null where everything goes to files."""
    targets: dict[str, str]
    """Formats by path."""
    force: bool
    colour: bool | None

    def wants(self, format_: str) -> bool:
        """Whether the report goes anywhere in this format."""
        return format_ in (self.printed, *self.targets.values())

    def deliver(self, report: Drawn) -> None:
        """Write the files, then print."""
        for path, name in self.targets.items():
            files.write(path, report.content[name](), force=self.force)
        if self.printed:
            _print(report, self.printed, colour=self.colour)


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a report to a command; `output_of` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def output_of(
    format_: str | None,
    outputs: Sequence[str],
    *,
    as_json: bool,
    force: bool,
    colour: bool | None,
    formats: Sequence[str] = FORMATS,
    default: str = "terminal",
) -> Output:
    """Where the report goes; raises before the work what would fail after it.

    `formats`: those that the command has; `default`: that of stdout.
    """
    if as_json and format_ not in (None, "json"):
        msg = f"--json and --format {format_} contradict each other"
        raise UsageError(msg, hint="give one of them")
    format_ = format_ or ("json" if as_json else None)
    targets = {path: files.format_of(path, format_) for path in outputs if path != STDOUT}
    files.check(list(targets), force=force)
    is_printed = not targets or STDOUT in outputs or (format_ is not None and format_ != PERFETTO)
    output = Output((format_ or default) if is_printed else None, targets, force, colour)
    for name, (what, file) in OF_ANALYSES.items():
        if output.wants(name) and name not in formats:
            msg = f"{what} can be written of an analysis only"
            raise UsageError(msg, hint=f"trace-doctor analyze TRACE -o {file}")
    if output.printed == PERFETTO and sys.stdout.isatty():
        msg = "a timeline is nothing to read on a terminal"
        raise UsageError(msg, hint="write it to a file: -o annotated.perfetto.json.gz")
    return output


def _print(report: Drawn, format_: str, *, colour: bool | None) -> None:
    """The report on stdout, and nothing else; drawn for the terminal that stdout is."""
    content = _for_terminal(report.terminal, colour=colour) if format_ == "terminal" else report.content[format_]()
    stdout = sys.stdout.buffer
    try:
        stdout.writelines([content] if isinstance(content, bytes) else content)
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        msg = f"can't be written: {error.strerror}"
        raise OutputError(msg, where="stdout") from error


def _for_terminal(draw: Draw, *, colour: bool | None) -> bytes:
    from rich.console import Console

    from trace_doctor.reporter import terminal

    console = Console(force_terminal=True if colour else None)
    system = console.color_system if colour or (colour is None and not console.no_color) else None
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    ascii_only = not encoding.lower().replace("-", "").startswith("utf")
    width = console.width if console.is_terminal else terminal.WIDTH
    return draw(width=width, colour=system, ascii_only=ascii_only).encode(encoding)
