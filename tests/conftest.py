"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real images and ground truth; without it a test skips, except in CI."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("DEEPFF_DATA", default))
    if not root.is_dir():
        message = f"no data at {root}; set DEEPFF_DATA to the folder that holds icoseg/"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return root
