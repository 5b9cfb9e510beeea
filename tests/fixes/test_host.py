"""What a finding on the host names."""

from __future__ import annotations

from tests.fixes.build import findings, ran
from tests.fixes.examples.host import python_runs_between_launches, the_batch_is_pageable, the_batch_is_pinned
from tests.simulator import US, Run
from tests.simulator.programs import MATMUL, matmul_until_idle
from trace_doctor.options import Options


def test_host_code_is_named_by_its_range() -> None:
    def tokenise(run: Run) -> None:
        with run.step():
            matmul_until_idle(run)
            with run.range("tokenise", "user_annotation"):
                run.host(300 * US)
            run.do(MATMUL)

    found = findings(ran(tokenise))["host-code"]
    assert found.title == "The GPU waits for host code in tokenise"
    assert found.evidence[0].name == "tokenise"


def test_host_code_without_a_name_is_named_by_the_op_that_follows() -> None:
    found = findings(ran(python_runs_between_launches))["host-code"]
    assert found.title == "The GPU waits for host code before aten::mm"
    assert found.evidence[0].name == "before aten::mm"


def test_pageable_and_pinned_copies_are_told_apart_whichever_rule_runs() -> None:
    def alone(code: str) -> list[bool]:
        options = Options(select=(code,))
        return [
            code in findings(ran(program), options=options) for program in (the_batch_is_pageable, the_batch_is_pinned)
        ]

    assert (alone("pageable-copy"), alone("exposed-input-copy")) == ([True, False], [False, True])
