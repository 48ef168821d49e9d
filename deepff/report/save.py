"""A run written into its folder."""

import json
import math
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deepff import __version__
from deepff.activations.activations import ImageRecord
from deepff.errors import InputError
from deepff.layers.layer import Extent
from deepff.report.manifest import MANIFEST, read_manifest
from deepff.report.report import write_report, write_report_page
from deepff.result import Result
from deepff.results.concept_bank import FILE as BANK
from deepff.runtime.files import atomic_path, check_writable, save_tensors
from deepff.runtime.outputs import RECORD, Rules, changed_files, output_folder

SHARD_BYTES = 64 * 2**20
OBJECT = "object"
MADE_OF_IT = ("boxes", "export", "masks")
OUTPUTS = (
    *MADE_OF_IT,
    OBJECT,
    MANIFEST,
    "regions",
    "report.html",
    "figure.png",
    BANK,
    "heatmaps",
    "overlays",
    "crops",
    "thumbnails",
)


def save(run: Result, folder: str | Path, progress: bool = False, overlays: bool = False) -> None:
    """Write the run's files, its pictures and its report.

    A result that the folder held before stays until all is written, and is then replaced, with what
    was made of it (:func:`earlier_outputs`). Files that deepff did not write, or that were changed
    since, stay.

    Parameters
    ----------
    run : Result
    folder : path
    progress : bool
        Show progress on standard error.
    overlays : bool
        Write the heat maps over the photographs as pictures too, a strip an image and k: most of
        what a result takes on the disk, and nothing that the report needs.

    Raises
    ------
    InputError
        If the folder holds something else, or cannot be written, or a file of the result that it
        holds was changed.
    """
    folder = check_output_folder(folder)
    rules = Rules(anew=True, inputs=run.paths, adopted=OUTPUTS)
    with output_folder(folder, rules, seal=MANIFEST) as new:
        _write(run, new, progress, overlays)


def rewrite(
    run: Result, folder: str | Path, progress: bool = False, overlays: bool = False
) -> None:
    """Write what is now known of a saved run's factors: its bank, manifest, pictures and report.

    Its heat maps and what was made of it stay.

    Parameters
    ----------
    run : Result
        The one that the folder holds.
    folder, progress, overlays
        As for `save`.

    Raises
    ------
    InputError
        As `save`.
    """
    folder = check_output_folder(folder)
    with output_folder(folder, Rules(inputs=run.paths, adopted=OUTPUTS), seal=MANIFEST) as new:
        run.bank.save(new / BANK)
        write_report(run, new, progress=progress, overlays=overlays)
        _write_json(new / MANIFEST, _manifest(run))
    write_report_page(run, folder)  # which shows the galleries that the folder has


def _write(run: Result, folder: Path, progress: bool, overlays: bool) -> None:
    if run.object is not None:
        _write(run.object, folder / OBJECT, progress, overlays)
    run.bank.save(folder / BANK)
    _save_heatmaps(run, folder / "heatmaps")
    write_report(run, folder, progress=progress, overlays=overlays)
    _write_json(folder / MANIFEST, _manifest(run))


def _save_heatmaps(run: Result, folder: Path) -> None:
    for number, images in enumerate(_shards(run)):
        coefficients = {}
        for k, found in run.factorizations.items():
            coefficients[f"k{k}"] = found.heatmaps.rows(images).cpu().contiguous()
            if found.probabilities is not None:
                # A copy: where H is the classifier's it is the same tensor.
                own = found.probabilities.rows(images).cpu().clone().contiguous()
                coefficients[f"k{k}.classified"] = own
        save_tensors(coefficients, folder / f"{number:05d}.safetensors")


def _shards(run: Result) -> Iterator[slice]:
    """The images of each shard: about SHARD_BYTES of coefficients."""
    cells = _cells(run)
    held = 0
    first = 0
    for index, image in enumerate(run.images):
        n_cells = image.n_cells + (0 if cells is None else math.prod(cells[index]))
        n_bytes = 4 * sum(run.factorizations) * n_cells
        if held and held + n_bytes > SHARD_BYTES:
            yield slice(first, index)
            first, held = index, 0
        held += n_bytes
    yield slice(first, len(run.images))


def _cells(run: Result) -> list[tuple[int, int]] | None:
    """Each image's grid of classified cells; None where there is no classifier."""
    for found in run.factorizations.values():
        if found.probabilities is not None:
            return found.probabilities.grids
    return None


def _cell_extents(run: Result) -> list[Extent | None] | None:
    """What each image's grid of classified cells lies on."""
    for found in run.factorizations.values():
        if found.probabilities is not None:
            return found.probabilities.extents
    return None


def _manifest(run: Result) -> dict[str, Any]:
    packages = ("torch", "torchvision", "timm")
    return {
        "deepff": __version__,
        "status": "complete",
        "created": run.created,
        "command": run.command,
        "versions": {
            "python": platform.python_version(),
            "deepff": __version__,
            **{package: version(package) for package in packages},
        },
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
            str(k): {"relative_error": _known(found.relative_error), "n_iter": found.n_iter}
            for k, found in run.factorizations.items()
        },
        "factor_names": {str(k): names for k, names in _names(run).items()},
        "unnamed": run.unnamed,
        "importance": {str(k): found.to_dict() for k, found in run.importances.items()},
        "cells": _cells(run),
        "cell_extents": _cell_extents(run),
        "images": [_image_entry(image) for image in run.images]
        + [{**asdict(skipped), "status": "skipped"} for skipped in run.skipped],
        "seconds": {stage: round(seconds, 4) for stage, seconds in run.seconds.items()},
    }


def _names(run: Result) -> dict[int, tuple[str | None, ...]]:
    return {
        k: found.classes.names
        for k, found in run.factorizations.items()
        if found.classes is not None
    }


def _known(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def check_output_folder(folder: str | Path) -> Path:
    """The folder as a path, made where it was missing, if a result may be written there.

    Raises
    ------
    InputError
        If it is a file, may not be written, or holds files but no deepff result, or a result with
        files that were changed since: those would be mixed up or lost.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the result")
    holds_result = read_manifest(folder) is not None or (folder / RECORD).exists()
    if folder.is_dir() and any(folder.iterdir()) and not holds_result:
        raise InputError(
            f"{folder} is not empty and holds no deepff result; name a new or empty folder"
        )
    for name in changed_files(folder):
        if name.partition("/")[0] not in MADE_OF_IT:
            raise InputError(
                f"{folder / name} was changed since deepff wrote it, and a new result would "
                "replace it: move it away, or name another folder"
            )
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def earlier_outputs(folder: str | Path) -> list[str]:
    """What was made of the result that a folder holds, and goes when it is replaced: "masks/k3".

    Files among it that were changed since stay.
    """
    folder = Path(folder)
    return [
        path.relative_to(folder).as_posix()
        for name in MADE_OF_IT
        for path in sorted((folder / name).glob("[!.]*"))
    ]


def _image_entry(image: ImageRecord) -> dict[str, Any]:
    return {
        "name": image.name,
        "path": None if image.path is None else os.path.abspath(image.path),
        "size": image.size,
        "grid": image.grid,
        "extent": image.extent,
        "digest": image.digest,
        "status": "used",
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1))
