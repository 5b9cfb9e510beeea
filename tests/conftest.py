"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

settings.register_profile("project", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("project")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real traces and cases beside the checkout; tests that need it skip where it is missing."""
    folder = Path(os.environ.get("TRACE_DOCTOR_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no shared folder beside the checkout")
    return folder
