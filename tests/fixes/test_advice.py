"""Advice: complete, well-formed, and made of names that exist."""

from __future__ import annotations

import ast
import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from trace_doctor.fixes import advice
from trace_doctor.fixes.advice import Entry, entries
from trace_doctor.fixes.registry import RULES

FRAMEWORKS = ("PyTorch", "FSDP2", "FSDP1", "Megatron-Core", "DeepSpeed", "Transformers", "Lightning", "vLLM", "SGLang")
LANGUAGES = {"Megatron-Core": "shell", "DeepSpeed": "json", "vLLM": "shell", "SGLang": "shell"}
LONGEST_TITLE = 80

NAMES = {
    framework: set(names)
    for framework, names in tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8")).items()
}


def snippets() -> list[tuple[str, str, str, str]]:
    """Code and variant, framework, language and text of every snippet."""
    return [
        (f"{entry.code} {entry.variant}".strip(), framework, language, text)
        for entry in entries().values()
        for framework, by_language in entry.snippet.items()
        for language, text in by_language.items()
    ]


SNIPPETS = snippets()
IDS = [f"{name}: {framework}" for name, framework, _, _ in SNIPPETS]


@pytest.mark.parametrize("rule", [rule.code for rule in RULES])
def test_every_rule_has_advice_that_is_complete(rule: str) -> None:
    base = entries()[rule, ""]
    assert base.title and base.fix and base.risk and base.verify


def test_there_is_no_advice_for_rules_that_do_not_exist() -> None:
    assert {code for code, _ in entries()} == {rule.code for rule in RULES}


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: f"{entry.code} {entry.variant}")
def test_titles_are_short_and_blanks_are_plain(entry: Entry) -> None:
    assert len(entry.title) <= LONGEST_TITLE
    for text in (entry.title, entry.fix, entry.risk, entry.verify):
        assert all(name is None or name.isidentifier() for _, name, _, _ in Formatter().parse(text))


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: f"{entry.code} {entry.variant}")
def test_a_snippet_has_one_language_and_a_known_framework(entry: Entry) -> None:
    for framework, by_language in entry.snippet.items():
        assert framework in FRAMEWORKS
        (language,) = by_language
        assert framework == "PyTorch" or language == LANGUAGES.get(framework, "python")


@pytest.mark.parametrize(("name", "framework", "language", "text"), SNIPPETS, ids=IDS)
def test_a_snippet_parses_as_what_it_says(name: str, framework: str, language: str, text: str) -> None:
    assert text == text.strip("\n")
    assert all(len(line) <= 130 for line in text.splitlines())
    if language == "python":
        compile(text, name, "exec")
    elif language == "json":
        assert json.loads(text)
    else:
        assert shlex.split(text, comments=True)


@pytest.mark.parametrize(("name", "framework", "language", "text"), SNIPPETS, ids=IDS)
def test_a_snippet_names_what_its_framework_has(name: str, framework: str, language: str, text: str) -> None:
    assert names_in(framework, text) <= NAMES.get(framework, set())


def names_in(framework: str, text: str) -> set[str]:
    """The flags, keys or arguments of the framework that a snippet uses."""
    if framework == "DeepSpeed":
        return set(keys(json.loads(text)))
    if framework == "Transformers":
        return {key for call, key in keywords(text) if call == "TrainingArguments"}
    if framework == "FSDP2":
        return {flag for flag in flags(text) if "." in flag}
    return flags(text) if framework in NAMES and not text.startswith("pip ") else set()


def flags(text: str) -> set[str]:
    """The `--flags` of a snippet, those in its comments too."""
    return {word.rstrip(".,").removeprefix("--") for word in text.split() if word.startswith("--")}


def keys(found: dict[str, Any], above: str = "") -> Iterator[str]:
    """The innermost keys of a JSON object, with those around them: `a.b`."""
    for key, value in found.items():
        if isinstance(value, dict):
            yield from keys(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def keywords(text: str) -> Iterator[tuple[str, str]]:
    """Function and keyword of every argument given by name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg:
                    yield ast.unparse(node.func), keyword.arg


# ---- names of PyTorch, looked up in the one that is installed

OTHERS = ("liger_kernel", "torchao", "accelerate", "transformers", "lightning", "torchrec")
"""Packages that the tests don't install."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "framework", "language", "text"), SNIPPETS, ids=IDS)
def test_names_of_pytorch_exist(name: str, framework: str, language: str, text: str) -> None:
    torch = pytest.importorskip("torch")
    if language != "python" or any(other in text for other in OTHERS):
        return
    known = names_of_torch(torch)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
            looked_up(ast.unparse(node), known)
        if isinstance(node, ast.Call) and (called := looked_up(ast.unparse(node.func), known)) is not None:
            assert accepts(called, {keyword.arg for keyword in node.keywords if keyword.arg})


def names_of_torch(torch: Any) -> dict[str, Any]:
    """What a snippet calls by its last name."""
    import torch.distributed.checkpoint
    import torch.distributed.optim
    import torch.utils.checkpoint
    from torch.distributed import fsdp, pipelining
    from torch.profiler import ProfilerActivity, profile

    return {
        "torch": torch,
        "DataLoader": torch.utils.data.DataLoader,
        "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
        "ZeroRedundancyOptimizer": torch.distributed.optim.ZeroRedundancyOptimizer,
        "FSDP": fsdp.FullyShardedDataParallel,
        "BackwardPrefetch": fsdp.BackwardPrefetch,
        "fully_shard": fsdp.fully_shard,
        "MixedPrecisionPolicy": fsdp.MixedPrecisionPolicy,
        "OffloadPolicy": fsdp.OffloadPolicy,
        "block.set_modules_to_forward_prefetch": fsdp.FSDPModule.set_modules_to_forward_prefetch,
        "model.set_requires_gradient_sync": fsdp.FSDPModule.set_requires_gradient_sync,
        "model.no_sync": torch.nn.parallel.DistributedDataParallel.no_sync,
        "block.compile": torch.nn.Module.compile,
        "ScheduleInterleaved1F1B": pipelining.ScheduleInterleaved1F1B,
        "checkpoint": torch.utils.checkpoint.checkpoint,
        "create_selective_checkpoint_contexts": torch.utils.checkpoint.create_selective_checkpoint_contexts,
        "profile": profile,
        "ProfilerActivity": ProfilerActivity,
        "optimizer.zero_grad": torch.optim.Optimizer.zero_grad,
    }


def looked_up(name: str, known: dict[str, Any]) -> Any:
    """The object of this name; null for names of the user's own."""
    if name in known:
        return known[name]
    first, *rest = name.split(".")
    if first not in known or "(" in name:
        return None
    found = known[first]
    for part in rest:
        found = getattr(found, part)
    return found


def accepts(called: Any, names: set[str]) -> bool:
    """Whether a function takes arguments of these names."""
    import inspect

    try:
        parameters = inspect.signature(called).parameters
    except ValueError:  # built in
        return True
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return takes_any or names <= set(parameters)


# ---- which of it is told


def test_the_first_framework_with_a_snippet_is_told() -> None:
    told = advice.advise("memory-bound", "optimizer", ("DeepSpeed", "Transformers"), {"family": "optimizer"})
    assert (told.framework, told.language) == ("DeepSpeed", "json")
    told = advice.advise("input-pipeline", "", ("DeepSpeed", "Transformers"), {})
    assert (told.framework, told.language) == ("Transformers", "python")
    told = advice.advise("input-pipeline", "", ("vLLM",), {})
    assert (told.framework, told.language) == ("PyTorch", "python")


def test_a_variant_takes_from_the_rule_what_it_leaves_out() -> None:
    base, variant = (
        advice.advise("launch-bound", name, (), {"kernels": "9", "per": "a step"}) for name in ("", "compiled")
    )
    assert (variant.title, variant.risk, variant.verify) == (base.title, base.risk, base.verify)
    assert variant.fix != base.fix
    assert variant.snippet != base.snippet


def test_advice_without_a_snippet_names_no_framework() -> None:
    told = advice.advise("profiler-overhead", "", ("Megatron-Core",), {})
    assert (told.snippet, told.language, told.framework) == (None, None, None)
