"""A result that is open for labeling, and a page on it."""

from pathlib import Path

import pytest
from planted import planted
from workspaces import opened_workspace

from deepff.app.actions import opened
from deepff.app.page import View
from deepff.app.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Factor 0 is on in the left 3 of 8 columns of 6 rows, 1 and 2 in the right 3, half each."""
    return opened_workspace(planted(tmp_path), tmp_path / "result")


@pytest.fixture
def view(workspace: Workspace) -> View:
    """A page that was just opened."""
    view = View()
    opened(workspace, view)
    return view
