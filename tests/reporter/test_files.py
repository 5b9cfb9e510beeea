from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.errors import OutputError, UsageError
from trace_doctor.reporter import files


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.json", "json"),
        ("b/A.MD", "markdown"),
        ("a.markdown", "markdown"),
        ("r.html", "html"),
        ("r.HTM", "html"),
        ("c.txt", "terminal"),
    ],
)
def test_the_suffix_says_the_format(path: str, name: str) -> None:
    assert files.format_of(path) == name


@pytest.mark.parametrize("path", ["report", "report.pdf", "report.json.gz", ".json"])
def test_an_unknown_suffix_is_a_usage_error(path: str) -> None:
    with pytest.raises(UsageError, match=r"suffix|don't know"):
        files.format_of(path)


def test_written_whole_and_alone(tmp_path: Path) -> None:
    files.write(str(tmp_path / "r.json"), b"{}")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("r.json", b"{}")]


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    there = tmp_path / "r.md"
    there.write_text("old")
    with pytest.raises(OutputError, match="there already") as caught:
        files.write(str(there), b"new")
    assert (there.read_text(), "--force" in str(caught.value)) == ("old", True)
    files.write(str(there), b"new", force=True)
    assert there.read_text() == "new"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "r.md"
    there.write_text("old")

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left"):
        files.write(str(there), b"new", force=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("r.md", "old")]


def test_what_would_fail_later_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        files.check([str(tmp_path / "no" / "r.md")], force=False)
    with pytest.raises(UsageError, match="twice"):
        files.check([str(tmp_path / "r.md"), f"{tmp_path}/./r.md"], force=False)
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(OutputError, match="no ordinary file"):
        files.check([str(tmp_path / "folder.md")], force=True)
