"""Every rule fires where its loss was built in, to the nanosecond, and not in a program near to it."""

from __future__ import annotations

import pytest

from tests.fixes.build import findings, ran
from tests.fixes.examples import EXAMPLES
from trace_doctor.fixes.registry import RULES


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_fires_where_it_should_and_only_there(name: str) -> None:
    example = EXAMPLES[name]
    found = findings(ran(example.program, example.made))
    assert (found[example.code].lost_ns if example.code in found else None) == example.lost_ns


def test_every_rule_has_a_program_that_fires_it_and_one_that_must_not() -> None:
    codes = {rule.code for rule in RULES}
    assert {example.code for example in EXAMPLES.values() if example.lost_ns is not None} == codes
    assert {example.code for example in EXAMPLES.values() if example.lost_ns is None} == codes
