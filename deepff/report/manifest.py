"""What a result's folder says of itself; read without torch."""

import json
from pathlib import Path
from typing import Any

from deepff.errors import InputError

MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of the result that a folder holds, whole or not; None where it holds none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and "deepff" in manifest else None


def complete_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the result that a folder holds.

    Raises
    ------
    InputError
        It holds none, or one that was not finished.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} holds no deepff result (it has no {MANIFEST} of one)")
    if manifest.get("status") != "complete":
        raise InputError(f"the run in {folder} was not finished; run its command again")
    return manifest
