"""What the categories of Kineto events are, from categories.toml."""

from __future__ import annotations

import tomllib
from importlib.resources import files

_DATA = tomllib.loads(files("trace_doctor.loaders").joinpath("categories.toml").read_text())
_IGNORED = frozenset(_DATA["ignored"]["categories"])


def _places() -> dict[str, tuple[str, str]]:
    groups = [("activities", kind, names) for kind, names in _DATA["activities"].items()]
    groups += [("annotations", kind, names) for kind, names in _DATA["annotations"].items()]
    groups += [(frame, "", names) for frame, names in _DATA["host"].items()]
    return {name: (frame, kind) for frame, kind, names in groups for name in names}


_PLACES = _places()


def frame(category: str) -> str:
    """The frame that complete events of the category belong to; "" for none."""
    return _PLACES.get(category.lower(), ("", ""))[0]


def kind(category: str) -> str:
    """The kind of activities or annotations that the category holds; "" for none."""
    return _PLACES.get(category.lower(), ("", ""))[1]


def known(category: str) -> bool:
    """Whether events of the category are read, or left out on purpose."""
    return category.lower() in _PLACES or category.lower() in _IGNORED


def unsupported(category: str) -> str | None:
    """The accelerator that the category belongs to, where trace-doctor does not read it."""
    names: dict[str, str] = _DATA["unsupported"]
    return next((name for start, name in names.items() if category.lower().startswith(start)), None)
