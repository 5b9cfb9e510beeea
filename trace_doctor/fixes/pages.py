"""The pages of the rules (docs/rules): what `explain` prints and `rules` lists.

Nothing here needs data frames, so that the command line starts without them; a test holds the pages against the registry.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from trace_doctor.errors import UsageError

_HEAD = re.compile(
    r"# (?P<code>[a-z0-9-]+)\n\n(?P<summary>.+)\n\n"
    r"\| wall \| severity \| reported from \|\n\|---\|---\|---\|\n"
    r"\| (?P<walls>[^|]+) \| (?P<severities>[^|]+) \| (?P<least>[^|]+) \|\n"
)


class Page(NamedTuple):
    """The page of a rule, and what its head says."""

    code: str
    summary: str
    """What happens, in one line."""
    walls: tuple[str, ...]
    """Walls of the ledger that its loss can lie in, the usual one first."""
    severities: tuple[str, ...]
    """What its findings can be: "info", "warning", "error"."""
    least: str
    """From which loss on it is said."""
    text: str
    """The whole page, Markdown."""


@cache
def pages() -> dict[str, Page]:
    """All pages by code, in alphabetical order."""
    files = sorted(_folder().iterdir(), key=lambda file: file.name)
    texts = [
        file.read_text(encoding="utf-8") for file in files if file.name.endswith(".md") and file.name != "README.md"
    ]
    return {page.code: page for page in map(parse, texts)}


def _folder() -> Traversable:
    """Beside the package where it is installed, in docs/ where it runs from its repository."""
    installed = resources.files("trace_doctor") / "rules"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs" / "rules"


def parse(text: str) -> Page:
    """The page that `text` is; raises ValueError where its head is not that of a page."""
    head = _HEAD.match(text)
    if not head:
        msg = f"no head of a rule's page: {text[:40]!r}"
        raise ValueError(msg)
    walls, severities = (tuple(head[column].split(", ")) for column in ("walls", "severities"))
    return Page(head["code"], head["summary"], walls, severities, head["least"].replace("`", ""), text)


def find(code: str) -> Page:
    """The page of a rule; UsageError with the names near it where there is none."""
    if code.lower() not in pages():
        raise _unknown(code)
    return pages()[code.lower()]


def check(patterns: Sequence[str], *, where: str) -> None:
    """UsageError where a code, or a glob of codes, is that of no rule. `where`: what the user wrote it in."""
    for pattern in patterns:
        if not any(fnmatchcase(code, pattern) for code in pages()):
            raise _unknown(pattern, where)


def _unknown(code: str, where: str | None = None) -> UsageError:
    near = difflib.get_close_matches(code.lower(), pages(), n=3)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"no rule is called {code!r}", where=where, hint=f"{guess}trace-doctor rules lists them")
