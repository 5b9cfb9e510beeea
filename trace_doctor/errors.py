"""Everything that trace-doctor raises on purpose.

TraceDoctorError            what went wrong, where, and the next command; the CLI prints it and exits with `exit_code`
├── UsageError              the options contradict each other or name something that is not there
├── InputError              a file cannot be read, or is no trace
│   ├── CorruptTraceError   the file is a trace, but its meaning is not sure any more
│   └── UnsupportedInputError  a format or an accelerator that trace-doctor does not read
├── NothingToAnalyzeError   the trace is whole, but holds no GPU activity
└── OutputError             the report cannot be written where it was asked for
"""

from __future__ import annotations


class TraceDoctorError(Exception):
    """What went wrong (`what`), in which file or option (`where`), and what to do next (`hint`)."""

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  next: {self.hint}" if self.hint else ""
        return f"{place}{self.what}{advice}"


class UsageError(TraceDoctorError):
    """Options contradict each other or name something that is not there."""


class InputError(TraceDoctorError):
    """A file cannot be read, or is no trace."""


class CorruptTraceError(InputError):
    """The file is a trace, but its meaning is not sure any more."""


class UnsupportedInputError(InputError):
    """A format or an accelerator that trace-doctor does not read."""


class NothingToAnalyzeError(TraceDoctorError):
    """The trace is whole, but holds no GPU activity."""


class OutputError(TraceDoctorError):
    """The report cannot be written where it was asked for."""
