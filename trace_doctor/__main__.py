"""The command line: `trace-doctor` and `python -m trace_doctor`."""

from __future__ import annotations

from trace_doctor.cli.running import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
