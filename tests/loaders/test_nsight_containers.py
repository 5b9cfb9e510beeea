"""The same run as SQLite, as folders of Parquet and Arrow files, and as a report that nsys exports."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.simulator import Run, nsight, work
from trace_doctor import Report, analyze, load
from trace_doctor.errors import CorruptTraceError, InputError, UnsupportedInputError
from trace_doctor.loaders import source
from trace_doctor.loaders.nsight import export

HEADER = b"NVIDIA Tegra Profiler Report 2025@5@2@266-255236693005v0.\0\1\2"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    run = Run()
    for _ in range(2):
        with run.step():
            run.do(work.mm(512, 512, 512))
            run.launch(work.copy("HtoD", 1_000_000))
    return nsight.write(tmp_path / "run.sqlite", run)


def written(database: Path, kind: str) -> Path:
    """The database's tables as `nsys export --type parquetdir` or `arrowdir` lays them out."""
    folder = database.with_name(f"run_{'pqtdir' if kind == 'parquet' else 'arwdir'}")
    folder.mkdir()
    connection = sqlite3.connect(database)
    for (table,) in connection.execute("SELECT name FROM sqlite_master").fetchall():
        rows = connection.execute(f"SELECT * FROM {table}")
        names = [column for column, *_ in rows.description]
        frame = pl.DataFrame(rows.fetchall(), schema=names, orient="row", infer_schema_length=None)
        if kind == "parquet":
            frame.write_parquet(folder / f"{table}.parquet")
        elif kind == "arrow":
            frame.write_ipc(folder / f"{table}.arrow")
        else:
            frame.write_ipc_stream(folder / f"{table}.arrow")
    connection.close()
    return folder


def content(report: Report) -> object:
    return report.window, report.partition, report.ledger, report.counts, report.metrics, report.device


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
def test_folders_of_tables_give_the_same_report(database: Path, kind: str) -> None:
    folder = written(database, kind)
    report = analyze([folder])
    assert content(report) == content(analyze([database]))
    assert report.sources[0].size_bytes == sum(file.stat().st_size for file in folder.iterdir())


def test_such_a_folder_is_one_trace_among_others(database: Path) -> None:
    folder = written(database, "parquet")
    assert source.find([str(database.parent)]) == (database, folder)
    assert source.find([str(folder)]) == (folder,)


def test_a_damaged_table_is_named(database: Path) -> None:
    table = written(database, "parquet") / "StringIds.parquet"
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(CorruptTraceError) as caught:
        load(table.parent)
    assert caught.value.where == str(table)


# ---- reports


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("NSYS", "CONDA_PREFIX", "PROGRAMFILES", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(export, "_PLACES", ())
    path = tmp_path / "a run; rm -rf $HOME.nsys-rep"
    path.write_bytes(HEADER)
    return path


def tool(path: Path, database: Path, *, knows_json: bool = True, fails: bool = False) -> Path:
    """A stand-in for nsys: notes its arguments, and copies the database to where the export shall go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    script = f"""#!{sys.executable}
import shutil, sys
with open({str(path) + ".log"!r}, "a") as log:
    log.write(repr(sys.argv[1:]) + "\\n")
if {fails} or ("--include-json" in sys.argv and not {knows_json}):
    sys.exit(1)
shutil.copy({str(database)!r}, sys.argv[sys.argv.index("--output") + 1])
"""
    path.write_text(script)
    path.chmod(0o755)
    return path


def calls(path: Path) -> list[list[str]]:
    return [eval(line) for line in Path(f"{path}.log").read_text().splitlines()]


needs_scripts = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for nsys is a script")


@needs_scripts
def test_a_report_is_exported_and_the_report_is_the_source(report: Path, database: Path, tmp_path: Path) -> None:
    nsys = tool(tmp_path / "bin/nsys", database)
    before = sorted(report.parent.iterdir())
    found = analyze([report])
    assert content(found) == content(analyze([database]))
    assert (found.sources[0].path, found.sources[0].size_bytes) == (str(report), len(HEADER))
    ((*options, output, include, yes, given),) = calls(nsys)
    assert options == ["export", "--type", "sqlite", "--force-overwrite", "true", "--output"]
    assert (include, yes, given) == ("--include-json", "true", str(report))
    assert Path(output).parent == tmp_path / "home/.cache/trace-doctor/nsight"
    assert set(report.parent.iterdir()) - set(before) == {tmp_path / "home"}


@needs_scripts
def test_an_export_is_made_once(report: Path, database: Path, tmp_path: Path) -> None:
    nsys = tool(tmp_path / "bin/nsys", database)
    load(report)
    source.load(report)
    assert len(calls(nsys)) == 1
    os.utime(report, ns=(0, report.stat().st_mtime_ns + 10**9))
    load(report)
    assert len(calls(nsys)) == 2


@needs_scripts
def test_an_older_nsys_knows_no_json(report: Path, database: Path, tmp_path: Path) -> None:
    nsys = tool(tmp_path / "bin/nsys", database, knows_json=False)
    load(report)
    assert [("--include-json" in call) for call in calls(nsys)] == [True, False]


@needs_scripts
def test_the_nsys_that_was_asked_for_is_run(
    report: Path, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_path, by_environment, by_flag = (tool(tmp_path / name / "nsys", database) for name in ("bin", "env", "flag"))
    assert export.find(None) == str(by_path)
    monkeypatch.setenv("NSYS", str(by_environment))
    assert export.find(None) == str(by_environment)
    assert export.find(str(by_flag)) == str(by_flag)


@needs_scripts
def test_of_the_usual_places_the_newest_counts(
    report: Path, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("2024.6.2", "2025.10.1", "2025.9.1"):
        tool(tmp_path / "opt" / version / "bin/nsys", database)
    monkeypatch.setattr(export, "_PLACES", (f"{tmp_path}/opt/*/bin/nsys",))
    assert export.find(None) == str(tmp_path / "opt/2025.10.1/bin/nsys")


def test_a_newer_export_beside_the_report_is_taken(report: Path, database: Path) -> None:
    beside = report.with_suffix(".sqlite")
    beside.write_bytes(database.read_bytes())
    os.utime(report, ns=(0, beside.stat().st_mtime_ns - 1))
    assert load(report).meta.path == str(report)
    os.utime(report, ns=(0, beside.stat().st_mtime_ns + 10**9))
    with pytest.raises(UnsupportedInputError):
        load(report)


def test_of_a_report_and_its_export_the_export_counts(database: Path) -> None:
    (database.parent / "run.nsys-rep").touch()
    assert source.find([str(database.parent)]) == (database,)


def test_without_nsys_the_writers_version_and_the_command_are_named(report: Path) -> None:
    with pytest.raises(UnsupportedInputError, match=r"Nsight Systems 2025\.5\.2") as caught:
        load(report)
    assert "nsys export --type sqlite" in str(caught.value.hint)
    assert "--nsys" in str(caught.value.hint)


def test_an_nsys_that_is_not_there_is_an_error(report: Path) -> None:
    with pytest.raises(InputError, match="no program") as caught:
        source.load(report, nsys="/nowhere/nsys")
    assert caught.value.where == "/nowhere/nsys"


@needs_scripts
def test_an_nsys_that_fails_is_named(report: Path, database: Path, tmp_path: Path) -> None:
    nsys = tool(tmp_path / "bin/nsys", database, fails=True)
    with pytest.raises(InputError, match=r"exit code 1") as caught:
        load(report)
    assert str(nsys) in caught.value.what
    assert list((tmp_path / "home/.cache/trace-doctor/nsight").iterdir()) == []


def test_a_report_with_an_empty_header_was_interrupted(report: Path) -> None:
    report.write_bytes(b"\0" * 64)
    with pytest.raises(CorruptTraceError, match="interrupted"):
        load(report)


def test_a_report_that_is_a_pointer_is_said_to_be_one(report: Path) -> None:
    report.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(InputError, match="LFS"):
        load(report)


def test_a_report_counts_whatever_its_name(tmp_path: Path, report: Path) -> None:
    other = report.rename(tmp_path / "profile.bin")
    with pytest.raises(UnsupportedInputError, match="binary report"):
        load(other)
