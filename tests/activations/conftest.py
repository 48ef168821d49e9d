"""Fixtures for running networks over sets of images."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where OpenVINO's conversions are kept without a cache folder."""
    home = tmp_path_factory.mktemp("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(home))
        yield home / "hub/openvino"
