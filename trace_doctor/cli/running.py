"""Running the command line: exit codes, and messages in place of tracebacks."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from trace_doctor.cli import cli
from trace_doctor.errors import TraceDoctorError

COULD_NOT = 2
BUG = 101
INTERRUPTED = 130
MOST_THREADS = 4


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 2 could not be done, 101 a bug, 130 interrupted (docs/reference/cli.md)."""
    _open_streams()
    os.environ.setdefault("POLARS_MAX_THREADS", str(polars_threads(os.cpu_count() or 1)))
    with suppress(ValueError):  # signals are the main thread's
        signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(_run(arguments))


def polars_threads(cores: int) -> int:
    """How many threads Polars gets, which by itself takes a core each and with more than a few only costs CPU time and memory here."""
    return max(1, min(MOST_THREADS, cores // 2))


def _open_streams() -> None:
    """Where stdout or stderr was closed (`>&-`), nobody reads; and no file may get their number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - a number, for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _interrupt(number: int, frame: object) -> NoReturn:
    """A polite kill is an interrupt: what is half written goes."""
    raise KeyboardInterrupt


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(arguments, prog_name="trace-doctor", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _nobody_reads()
    except SystemExit as leaving:
        # click turns a broken pipe into exit code 1, which is a gate's, and wraps stdout so that the last flush is silent
        return _nobody_reads() if hasattr(sys.stdout, "wrapped") else _exit_code(leaving.code)
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    except click.ClickException as error:
        return _failed(error.format_message(), _help_of(error))
    except TraceDoctorError as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename or 'output'}: {error.strerror or error}")
    except MemoryError:
        return _failed("out of memory", "analyse fewer files at once, or use --jobs 1")
    except Exception as error:  # noqa: BLE001 - the last line of defence: 1 must mean "gate" and nothing else
        return _bug(error)
    return _exit_code(code)


def _exit_code(code: object) -> int:
    return code if isinstance(code, int) else 0


def _nobody_reads() -> int:
    """The reader of stdout has gone, as with `| head`: no message, and none from Python's own flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _help_of(error: click.ClickException) -> str | None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.command_path} --help" if context else None


def _failed(what: str, hint: str | None = None) -> int:
    _say(f"error: {what}" + (f"\n  next: {hint}" if hint else ""))
    return COULD_NOT


def _bug(error: Exception) -> int:
    if os.environ.get("TRACE_DOCTOR_DEBUG"):
        traceback.print_exception(error)
    _say(
        f"error: this is a bug in trace-doctor: {type(error).__name__}: {str(error)[:300]}\n"
        "  next: please report it; TRACE_DOCTOR_DEBUG=1 prints the traceback to send along"
    )
    return BUG


def _say(message: str) -> None:
    from trace_doctor.reporter.text import clean

    click.echo(clean(message, keep_lines=True), err=True)
