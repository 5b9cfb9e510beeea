"""Starting up is cheap, and heavy libraries stay out."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import trace_doctor

HEAVY = ("numpy", "pandas", "torch", "pyarrow")


def loaded_by(code: str) -> set[str]:
    """Modules that a fresh interpreter holds after running `code`."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_no_module_imports_a_heavy_library() -> None:
    modules = [module.name for module in pkgutil.walk_packages(trace_doctor.__path__, "trace_doctor.")]
    code = "\n".join(f"import {name}" for name in modules if not name.endswith("__main__"))
    assert "trace_doctor.pipeline" in modules
    assert loaded_by(code) & set(HEAVY) == set()


def test_help_needs_no_frames() -> None:
    code = """
import contextlib, io, runpy, sys
sys.argv = ["trace-doctor", "--help"]
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
    runpy.run_module("trace_doctor", run_name="__main__")
assert "analyze" in out.getvalue()
"""
    assert loaded_by(code) & {"polars", *HEAVY} == set()


def test_public_names() -> None:
    assert set(trace_doctor.__all__) <= set(dir(trace_doctor))
    assert trace_doctor.Report.__name__ == "Report"
