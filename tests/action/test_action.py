"""The GitHub Action: its shell runs against a local server that speaks the few API calls it makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / ".github/action"
SAMPLES = ROOT / "sample_traces"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "jq"))), reason="the Action's shell needs bash, curl and jq"
)


class GitHub:
    """Comments of pull request 7, and how many calls were made."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.forbids = False
        self.url = ""


@pytest.fixture
def github() -> Iterator[GitHub]:
    state = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, method: str) -> None:
            state.calls.append(f"{method} {self.path}")
            length = int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length)) if length else {}
            assert self.headers["Authorization"] == "Bearer secret"
            status, body = 200, json.dumps({})
            if state.forbids and method != "GET":
                status = 403
            elif method == "GET":
                page = int(re.search(r"page=(\d+)$", self.path)[1])  # type: ignore[index]
                body = json.dumps(state.comments[100 * (page - 1) : 100 * page])
            elif method == "POST" and self.path == "/repos/o/r/issues/7/comments":
                state.comments.append({"id": 1000 + len(state.comments), "body": sent["body"]})
            elif method == "PATCH":
                wanted = int(self.path.rsplit("/", 1)[1])
                next(one for one in state.comments if one["id"] == wanted)["body"] = sent["body"]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_GET(self) -> None:
            self.answer("GET")

        def do_POST(self) -> None:
            self.answer("POST")

        def do_PATCH(self) -> None:
            self.answer("PATCH")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


class Job:
    """A job of a workflow: its folder, and what its steps leave behind."""

    def __init__(self, folder: Path, github: GitHub) -> None:
        self.folder, self.github = folder, github
        (folder / "bin").mkdir()
        command = folder / "bin/trace-doctor"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trace_doctor "$@"\n')
        command.chmod(0o755)
        (folder / "event.json").write_text('{"pull_request": {"number": 7}}')

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RUNNER_TEMP": str(self.folder),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
            "GITHUB_API_URL": self.github.url,
            "GITHUB_REPOSITORY": "o/r",
            "TOKEN": "secret",
            "KEY": "report",
        }
        return subprocess.run(
            ["bash", SCRIPTS / script], env=environment | variables, cwd=self.folder, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip

    def report(self, **variables: str) -> dict[str, str]:
        """The outputs of the reporting step."""
        ran = self.run("report.sh", **variables)
        assert ran.returncode == 0, ran.stderr
        lines = (self.folder / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def comment(self, outputs: dict[str, str], mode: str = "true") -> subprocess.CompletedProcess[str]:
        return self.run("comment.sh", FOLDER=outputs["folder"], MOVED=outputs["moved"], COMMENT=mode)


@pytest.fixture
def job(tmp_path: Path, github: GitHub) -> Job:
    return Job(tmp_path, github)


HEALTHY, STARVED = str(SAMPLES / "gpt-healthy.json.gz"), str(SAMPLES / "gpt-input-starved.json.gz")


def test_an_analysis_leaves_a_summary_reports_outputs_and_one_comment(job: Job, github: GitHub) -> None:
    outputs = job.report(TRACES=HEALTHY)
    assert (outputs["verdict"], outputs["code"], outputs["moved"]) == ("pass", "0", "true")
    report = json.loads(Path(outputs["report-json"]).read_text())
    assert float(outputs["mfu"]) == report["metrics"]["mfu"]
    assert Path(outputs["report-html"]).read_text().startswith("<!doctype html>")
    summary = (job.folder / "summary.md").read_text()
    assert summary.startswith("<!-- trace-doctor:report -->\n## MFU ")
    for _ in range(2):
        assert job.comment(outputs).returncode == 0
    assert [one["body"] for one in github.comments] == [summary]
    assert [call.split()[0] for call in github.calls] == ["GET", "POST", "GET", "PATCH"]


def test_a_comparison_fails_its_gate_after_all_is_written(job: Job, github: GitHub) -> None:
    outputs = job.report(TRACES=STARVED, BASELINE=HEALTHY, FAIL_ON="step_time>+3%\n\n new:error \n")
    assert (outputs["verdict"], outputs["code"], outputs["moved"]) == ("fail", "1", "true")
    job.comment(outputs)
    assert "FAIL" in github.comments[0]["body"]
    assert (Path(outputs["folder"]) / "comparison.json").exists()


def test_where_nothing_moved_there_is_no_comment_if_so_asked(job: Job, github: GitHub) -> None:
    outputs = job.report(TRACES=HEALTHY, BASELINE=HEALTHY)
    assert outputs["moved"] == "false"
    assert "nothing moved" in job.comment(outputs, "on-change").stdout
    assert github.calls == []


def test_the_comment_is_found_behind_many_others_and_other_keys_are_left_alone(job: Job, github: GitHub) -> None:
    outputs = job.report(TRACES=HEALTHY)
    github.comments = [{"id": place, "body": f"comment {place}"} for place in range(150)]
    github.comments[120]["body"] = "<!-- trace-doctor:report -->\r\nold"
    github.comments[3]["body"] = "<!-- trace-doctor:other -->\nother"
    job.comment(outputs)
    assert github.comments[120]["body"].startswith("<!-- trace-doctor:report -->\n## MFU")
    assert github.comments[3]["body"] == "<!-- trace-doctor:other -->\nother"
    assert len(github.comments) == 150


def test_a_fork_may_not_comment_and_the_job_goes_on(job: Job, github: GitHub) -> None:
    outputs = job.report(TRACES=HEALTHY)
    github.forbids = True
    ran = job.comment(outputs)
    assert ran.returncode == 0
    assert "::notice::no comment can be written" in ran.stdout


def test_what_can_not_be_read_is_an_error_with_its_code(job: Job) -> None:
    outputs = job.report(TRACES="missing.json")
    assert (outputs["verdict"], outputs["code"]) == ("error", "2")
    assert job.comment(outputs).returncode == 0


def test_inputs_are_no_shell(job: Job) -> None:
    outputs = job.report(TRACES="$(touch planted)", FAIL_ON="`touch planted`", KEY='a"; touch planted; #')
    assert outputs["code"] == "2"
    assert not (job.folder / "planted").exists()


def test_actions_are_pinned() -> None:
    uses = re.findall(r"uses: (\S+)", (ROOT / "action.yml").read_text())
    assert uses
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one) for one in uses)
