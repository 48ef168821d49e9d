"""What a result's folder says about itself in its manifest; reading it needs no torch."""

from __future__ import annotations

import json
import math
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepff import __version__
from deepff.errors import InputError
from deepff.options import Recipe
from deepff.runtime.files import read_json, write_text
from deepff.runtime.outputs import CLASS_FOLDERS, MANIFEST, read_manifest

if TYPE_CHECKING:
    from deepff.activations.activations import ImageRecord
    from deepff.result import Result
    from deepff.results.heatmaps import HeatMaps

# What loading reads; what may be None may be missing, too.
_NUMBER, _TEXT, _SIDE = (int, float), (str, None), range(1, 2**31)
_EXTENT = ([[_NUMBER, _NUMBER], [_NUMBER, _NUMBER]], None)
_USED = {"status": "used", "name": str, "path": _TEXT, "digest": _TEXT, "extent": _EXTENT}
_FORM = {
    **dict.fromkeys(("created", "command", "method"), str),
    **dict.fromkeys(("cache", "unnamed"), _TEXT),
    "versions": {...: str},
    "options": dict,
    "recipe": tuple(map(str, Recipe)),
    "parts_of": ("object", "frame", None),
    "applied": bool,
    "separation": (*_NUMBER, None),
    "seconds": {...: _NUMBER},
    "agreements": ({...: _NUMBER}, None),
    "factorizations": {...: {"relative_error": (*_NUMBER, None), "n_iter": int}},
    "importance": ({...: {...: list}}, None),
    "cells": ([[_SIDE, _SIDE], ...], None),
    "cell_extents": ([_EXTENT, ...], None),
    "images": [
        (
            {**_USED, "size": [_SIDE, _SIDE], "grid": [_SIDE, _SIDE]},
            {"status": "skipped", "name": str, "reason": str},
        ),
        ...,
    ],
}


def complete_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the finished result that a folder holds; InputError without one."""
    manifest = read_manifest(folder)
    if manifest is None:
        if (folder / CLASS_FOLDERS).exists():
            of_one = next(folder.glob(f"*/{MANIFEST}"), folder).parent
            raise InputError(
                f"{folder} holds a result per class; name the folder of one, such as {of_one}"
            )
        raise InputError(f"{folder} holds no deepff result (it has no {MANIFEST} of one)")
    if manifest.get("status") != "complete":
        raise InputError(f"the run in {folder} was not finished; run its command again")
    return dict.fromkeys(_FORM) | read_json(folder / MANIFEST, _FORM)


def write_manifest(run: Result, folder: Path) -> None:
    """Write the manifest of a run that is finished."""
    classified = probabilities_of(run)
    content = {
        "deepff": __version__,
        "status": "complete",
        "created": run.created,
        "command": run.command,
        "versions": versions(),
        "method": run.method,
        "options": run.options,
        "sources": [asdict(source) for source in run.sources],
        "recipe": run.recipe,
        "separation": run.separation,
        "parts_of": run.parts_of,
        "applied": run.applied is not None,
        "cache": run.cache,
        "agreements": run.agreements,
        "factorizations": {
            # JSON has no NaN.
            str(k): {"relative_error": None if math.isnan(error) else error, "n_iter": f.n_iter}
            for k, f in run.factorizations.items()
            for error in [f.relative_error]
        },
        "factor_names": {
            str(k): f.classes.names for k, f in run.factorizations.items() if f.classes is not None
        },
        "unnamed": run.unnamed,
        "importance": {str(k): importance.to_dict() for k, importance in run.importances.items()},
        "cells": None if classified is None else classified.grids,
        "cell_extents": None if classified is None else classified.extents,
        "seconds": {stage: round(seconds, 4) for stage, seconds in run.seconds.items()},
    }
    images = [_image_entry(image) for image in run.images]
    images += [{**asdict(skipped), "status": "skipped"} for skipped in run.skipped]
    # A line for each: with an indent json writes ten times as slowly.
    lines = ",\n  ".join(map(json.dumps, images))
    head = json.dumps(content, indent=1).removesuffix("\n}")
    write_text(folder / MANIFEST, f'{head},\n "images": [\n  {lines}\n ]\n}}')


def versions() -> dict[str, str]:
    """The versions of what a run's numbers depend on."""
    packages = {package: version(package) for package in ("torch", "torchvision", "timm")}
    return {"python": platform.python_version(), "deepff": __version__, **packages}


def probabilities_of(run: Result) -> HeatMaps | None:
    """The pixel classifier's maps, whose grid is the same for all k; None without a classifier."""
    maps = (factorization.probabilities for factorization in run.factorizations.values())
    return next((of_k for of_k in maps if of_k is not None), None)


def _image_entry(image: ImageRecord) -> dict[str, Any]:
    origin = image.origin
    path = os.path.abspath(origin) if isinstance(origin, Path) else str(origin)  # or an address
    return {
        "name": image.name,
        "path": path if isinstance(origin, os.PathLike) else None,
        "size": image.size,
        "grid": image.grid,
        "extent": image.extent,
        "digest": image.digest,
        "status": "used",
    }
