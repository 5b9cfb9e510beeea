"""The config file: where it is found, what it may hold, and that messages name its lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor import config
from trace_doctor.config import Config, line_of
from trace_doctor.errors import UsageError
from trace_doctor.options import Limits

KNOWN = {"": {"device", "select"}, "thresholds": {"floor-us"}, "limits": {"least-share", "few-kernels"}}


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(UsageError) as error:
        config.read(path, KNOWN)
    return str(error.value)


# ---- where it is found


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    far = written(tmp_path / "trace-doctor.toml", "")
    assert config.find(tmp_path / "a" / "b") == far
    near = written(tmp_path / "a" / "pyproject.toml", "[tool.trace-doctor]\n")
    assert config.find(tmp_path / "a" / "b") == near
    own = written(tmp_path / "a" / "trace-doctor.toml", "")
    assert config.find(tmp_path / "a") == own


def test_a_shared_file_without_our_table_is_passed_by(tmp_path: Path) -> None:
    far = written(tmp_path / "trace-doctor.toml", "")
    written(tmp_path / "a" / "pyproject.toml", '[project]\ndependencies = ["trace-doctor"]\n')
    written(tmp_path / "a" / "b" / "pyproject.toml", "not = our = business")
    assert config.find(tmp_path / "a" / "b") == far


# ---- what it may hold


def test_both_files_say_the_same(tmp_path: Path) -> None:
    text = 'device = "h100-sxm"\nselect = ["*copy"]\n[{}limits]\nleast-share = 0.01\n'
    own = config.read(written(tmp_path / "trace-doctor.toml", text.format("")), KNOWN)
    shared = config.read(
        written(tmp_path / "pyproject.toml", "[tool.trace-doctor]\n" + text.format("tool.trace-doctor.")), KNOWN
    )
    assert own.values == shared.values
    assert own.table("") == {"device": "h100-sxm", "select": ["*copy"]}
    assert own.table("limits") == {"least-share": 0.01}
    assert own.table("thresholds") == {}
    assert own.limits() == shared.limits() == Limits(least_share=0.01)


def test_without_a_file_nothing_is_said() -> None:
    assert (Config().table(""), Config().limits(), Config().where("device")) == ({}, Limits(), "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# about\ndevise = 1", ":2: nothing is called devise\n  next: did you mean device? "),
        ("[limits]\n\nlest-share = 1", ":3: nothing is called limits.lest-share\n  next: did you mean least-share in [limits]? "),
        ("[limits]\nleast_share = 1", ":2: nothing is called limits.least_share\n  next: did you mean least-share in [limits]? "),
        ("least-share = 1", ":1: nothing is called least-share\n  next: did you mean least-share in [limits]? "),
        ("[limit]\nleast-share = 1", ":1: nothing is called limit\n  next: did you mean [limits]? "),
        ("limits.few-kernel = 1", ":1: nothing is called limits.few-kernel\n  next: did you mean few-kernels in [limits]? "),
        ("limits = 3", ":1: limits is a table: write [limits]\n  next: "),
        ("[device]\nname = 3", ":1: nothing is called device\n  next: did you mean device? "),
        ("colour = true", ":1: nothing is called colour\n  next: "),
    ],
)  # fmt: skip
def test_a_name_that_nobody_reads_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path / "trace-doctor.toml", text)
    assert error_of(path) == f"{path}{message}docs/reference/configuration.md lists the keys"


def test_lines_of_a_shared_file_are_those_of_our_table(tmp_path: Path) -> None:
    path = written(
        tmp_path / "pyproject.toml", "[tool.other]\ndevise = 1\n[tool.trace-doctor]\ndevice = 'x'\ndevise = 2\n"
    )
    assert error_of(path).startswith(f"{path}:5: nothing is called devise")


def test_what_is_no_toml_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "trace-doctor.toml", "device = \n")
    assert (
        error_of(path)
        == f"{path}: is no TOML: Invalid value (at line 1, column 10)\n  next: correct it, or use --no-config"
    )
    path.write_bytes(b"device = '\xff'")
    assert error_of(path).startswith(f"{path}: is no TOML: ")


def test_a_shared_file_without_our_table_is_an_error_where_it_was_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "pyproject.toml", "[tool.other]\n")
    assert error_of(path) == f"{path}: has no [tool.trace-doctor]\n  next: add it, or use --no-config"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("least-share = 'much'", "least-share: Expected `float`, got `str`"),
        ("least-share = 2.5", "least-share: Expected `float` <= 1.0"),
        ("few-kernels = -1", "few-kernels: Expected `int` >= 0"),
        ("few-kernels = 1.5", "few-kernels: Expected `int`, got `float`"),
    ],
)
def test_a_limit_that_is_none_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path / "trace-doctor.toml", f"[limits]\n{line}\n")
    with pytest.raises(UsageError) as error:
        config.read(path, KNOWN).limits()
    assert str(error.value) == f"{path}:2: {message}\n  next: docs/reference/configuration.md lists the keys"


# ---- lines


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("device",), 1),
        (("limits",), 3),
        (("limits", "least-share"), 4),
        (("thresholds", "floor-us"), 6),
        (("waivers", "code"), 8),
        (("missing",), None),
    ],
)
def test_lines(names: tuple[str, ...], line: int | None) -> None:
    text = """device = 'x'
# limits.least-share
[ limits ]
  "least-share" = 1
[thresholds]
floor-us = 3
[[waivers]]
code = 'x'
"""
    assert line_of(text, *names) == line
