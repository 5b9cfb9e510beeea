"""Golden reports of the samples, and the report that the README shows: `python -m tests.simulator.golden` writes them anew."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.simulator.samples import SAMPLES
from trace_doctor import analyze
from trace_doctor.report import to_json
from trace_doctor.reporter import markdown, terminal

ROOT = Path(__file__).parents[2]
FOLDER = Path("sample_traces/golden")
SHOWN = re.compile(r"(?s)<!-- report:begin -->.*<!-- report:end -->")


def reports() -> Iterator[tuple[Path, str]]:
    """Every golden file with what it must hold; run from the root of the checkout, whose relative paths stand in the reports."""
    for name in SAMPLES:
        report = analyze([f"sample_traces/{name}.json.gz"])
        yield FOLDER / f"{name}.json", to_json(report).decode()
        yield FOLDER / f"{name}.markdown", markdown.render(report)
        yield FOLDER / f"{name}.nsight.markdown", markdown.render(analyze([f"sample_traces/{name}.sqlite"]))
    yield Path("README.md"), readme()


def readme() -> str:
    """The README with the first page, up to the second finding, of the sample that spends half of its time waiting for the network."""
    shown = terminal.render(analyze(["sample_traces/gpt-communication-bound.json.gz"]), width=80)
    first = shown[: shown.index("\n 2. ■")].rstrip()
    block = f"<!-- report:begin -->\n```text\n{first}\n  …\n```\n<!-- report:end -->"
    return SHOWN.sub(lambda _: block, Path("README.md").read_text(encoding="utf-8"))


def main() -> None:
    """Write all of them."""
    os.chdir(ROOT)
    FOLDER.mkdir(exist_ok=True)
    for path, text in reports():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
