"""Every rule fires where its loss was built in, to the nanosecond, and not in a program near to it."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tests.fixes import examples
from tests.fixes.build import EXAMPLES, findings, ran

for _module in pkgutil.iter_modules(examples.__path__):
    importlib.import_module(f"{examples.__name__}.{_module.name}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_fires_where_it_should_and_only_there(name: str) -> None:
    example = EXAMPLES[name]
    found = findings(ran(example.program, example.made))
    assert (found[example.code].lost_ns if example.code in found else None) == example.lost_ns
