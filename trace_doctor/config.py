"""The config file: trace-doctor.toml, or [tool.trace-doctor] of a pyproject.toml; the nearest to the working directory counts.

A file is held against the names that it may hold before anything of it is used: a key that nobody reads is an error.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trace_doctor.errors import UsageError
from trace_doctor.options import Limits

FILE, SHARED_FILE = "trace-doctor.toml", "pyproject.toml"
SECTION = ("tool", "trace-doctor")
"""Where our table lies in a shared file."""
REPEATED = ("waivers",)
"""Tables that may stand more than once."""
REFERENCE = "docs/reference/configuration.md lists the keys"

_HEADER = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+")
_ASSIGNMENT = re.compile(r"""\s*([\w."'\s-]+?)\s*=""")


class Config(NamedTuple):
    """What a config file says; without a file, nothing."""

    path: Path | None = None
    values: Mapping[str, Any] = {}
    """As TOML has them; a table is a mapping."""

    def table(self, name: str) -> Mapping[str, Any]:
        """The keys of a table, "" for those outside of any."""
        return self.values.get(name, {}) if name else {k: v for k, v in self.values.items() if not isinstance(v, dict)}

    def where(self, *names: str) -> str:
        """File and line of a key or table, for messages."""
        if self.path is None:
            return ""
        section = SECTION if self.path.name == SHARED_FILE else ()
        line = line_of(self.path.read_text(encoding="utf-8"), *section, *names)
        return f"{self.path}:{line}" if line else str(self.path)

    def limits(self) -> Limits:
        """The thresholds of the findings, from [limits]; UsageError where one is no such number."""
        for key, value in self.table("limits").items():
            try:
                msgspec.convert({key: value}, Limits)
            except msgspec.ValidationError as error:
                msg = f"{key}: {str(error).partition(' - at ')[0]}"
                raise UsageError(msg, where=self.where("limits", key), hint=REFERENCE) from None
        return msgspec.convert(self.table("limits"), Limits)


def find(folder: Path) -> Path | None:
    """The config file of `folder`, or of the nearest folder above it that has one."""
    for place in (folder, *folder.parents):
        if (place / FILE).is_file():
            return place / FILE
        shared = place / SHARED_FILE
        if shared.is_file() and SECTION[-1].encode() in shared.read_bytes() and _section(_parsed(shared)) is not None:
            return shared
    return None


def read(path: Path, known: Mapping[str, Collection[str]]) -> Config:
    """What a config file says. `known`: the keys that it may have by table, "" for those outside of any.

    Raises UsageError for a file that is no TOML, a shared one without our table, and an unknown key or table.
    """
    values: Any = _parsed(path)
    if path.name == SHARED_FILE and (values := _section(values)) is None:
        msg = f"has no [{'.'.join(SECTION)}]"
        raise UsageError(msg, where=str(path), hint="add it, or use --no-config")
    config = Config(path, values)
    for name, value in values.items():
        if name in known and name:
            for one in _tables(config, name, value):
                _check(config, (name,), one, known)
        elif isinstance(value, dict) or name not in known[""]:
            raise _unknown(config, (name,), known)
    return config


def _tables(config: Config, name: str, value: Any) -> list[dict[str, Any]]:
    """The table of that name, or all that repeat; UsageError where the value is neither."""
    repeats = name in REPEATED
    tables: list[Any] = value if repeats and isinstance(value, list) else [value]
    if isinstance(value, list) != repeats or not all(isinstance(one, dict) for one in tables):
        msg = f"{name} {'are tables' if repeats else 'is a table'}: write {f'[[{name}]]' if repeats else f'[{name}]'}"
        raise UsageError(msg, where=config.where(name), hint=REFERENCE)
    return tables


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"is no TOML: {error}"
        raise UsageError(msg, where=str(path), hint="correct it, or use --no-config") from None


def _section(values: Any) -> Any:
    for name in SECTION:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _check(config: Config, table: tuple[str], values: Mapping[str, Any], known: Mapping[str, Collection[str]]) -> None:
    for key in values:
        if key not in known[table[0]]:
            raise _unknown(config, (*table, key), known)


def _unknown(config: Config, names: tuple[str, ...], known: Mapping[str, Collection[str]]) -> UsageError:
    """The error for a key or table that nobody reads, with what it may have been meant for."""
    homes = {key: table for table, keys in known.items() for key in keys} | {table: "" for table in known if table}
    near = difflib.get_close_matches(names[-1].replace("_", "-"), homes, n=2)
    guesses = [f"{name} in [{homes[name]}]" if homes[name] else f"[{name}]" if name in known else name for name in near]
    guess = f"did you mean {' or '.join(guesses)}? " if guesses else ""
    return UsageError(
        f"nothing is called {'.'.join(names)}",
        where=config.where(*names),
        hint=f"{guess}{REFERENCE}",
    )


def line_of(text: str, *names: str) -> int | None:
    """The line of a TOML text where a key or table is first spelt out, from 1; null where it can't be told."""
    wanted, header = list(names), []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _HEADER.match(line):
            header = here = _parts(found[1])
        elif found := _ASSIGNMENT.match(line):
            here = [*header, *_parts(found[1])]
        else:
            continue
        if here[: len(wanted)] == wanted:
            return number
    return None


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
