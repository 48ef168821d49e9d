"""Results that are open for labeling."""

from pathlib import Path

from deepff.app.actions import act
from deepff.app.page import View
from deepff.app.workspace import Workspace
from deepff.result import Result


def opened_workspace(result: Result, folder: Path) -> Workspace:
    result.save(folder)
    workspace = Workspace(folder)
    workspace.open()
    return workspace


def names_listed(workspace: Workspace, view: View, **wanted: str) -> list[str]:
    """The images in view once a filter, an order or a search is chosen."""
    for name, text in wanted.items():
        act(workspace, view, {"act": name, "text": text})
    return [workspace.result.names[index] for index in view.listing]
