"""Results that are open for labeling."""

from pathlib import Path

from deepff.app.workspace import Workspace
from deepff.result import Result


def opened_workspace(result: Result, folder: Path) -> Workspace:
    result.save(folder)
    workspace = Workspace(folder)
    workspace.open()
    return workspace
