"""The report's types: JSON out and in, and the schema that the docs carry."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema

from trace_doctor import comparison
from trace_doctor.report import Report, from_json, json_schema, to_json

ROOT = Path(__file__).parents[1]


def test_a_report_survives_json() -> None:
    report = from_json((ROOT / "sample_traces/golden/gpt-healthy.json").read_bytes())
    assert from_json(to_json(report)) == report


def test_readers_ignore_what_they_do_not_know() -> None:
    assert from_json('{"schema_version": "1.0", "of_the_future": {"any": 1}}') == Report()


def test_the_schema_in_the_docs_is_the_types() -> None:
    written = json.loads((ROOT / "docs/reference/report.schema.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(json_schema()))


def test_the_schema_of_a_comparison_in_the_docs_is_the_types() -> None:
    written = json.loads((ROOT / "docs/reference/comparison.schema.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(comparison.json_schema()))


def test_golden_reports_fit_the_schema() -> None:
    for path in sorted((ROOT / "sample_traces/golden").glob("*.json")):
        jsonschema.validate(json.loads(path.read_bytes()), json_schema())
