"""A run written into its folder."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from deepff.errors import InputError
from deepff.images.image_files import output_names
from deepff.report.manifest import complete_manifest, probabilities_of, write_manifest
from deepff.report.report import classes_page, write_report, write_report_page
from deepff.result import ClassResults, Result
from deepff.results.concept_bank import FILE as BANK
from deepff.results.concept_bank import load_concepts
from deepff.runtime.files import check_writable, save_tensors, write_text
from deepff.runtime.outputs import (
    CLASS_FOLDERS,
    MANIFEST,
    OBJECT,
    RECORD,
    Rules,
    changed_files,
    output_folder,
    own_files,
    read_manifest,
)

SHARD_BYTES = 64 * 2**20
LABELS = "labels.json"
CLASSES = "classes.html"
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


def save(
    run: Result,
    folder: str | Path,
    progress: bool = False,
    overlays: bool = False,
    overwrite: bool = False,
    report: bool = True,
) -> None:
    """Write the run's files and, with `report`, its pictures and report, in place of an earlier
    result. What was made of that (`earlier_outputs`) stays if it is the same result, or had only
    fewer images. Else InputError, or with `overwrite` it is removed; users' files stay always."""
    folder = Path(folder)
    fits = not overwrite and _fits(run, folder)
    check_output_folder(folder, overwrite or fits)
    rules = Rules(remove_stale=not fits, inputs=run.paths, parts=OUTPUTS)
    with output_folder(folder, rules, seal=MANIFEST) as new:
        _write(run, new, progress, overlays, report)
    if fits and report:  # the pages show the galleries in the folder, too
        write_report_page(run, folder)
        if run.object is not None:
            write_report_page(run.object, folder / OBJECT)


def class_folders(folder: str | Path, labels: Iterable[Any]) -> dict[Any, Path]:
    """The folder of each class's result in the folder of all."""
    labels = list(dict.fromkeys(labels))
    # Dots in a label are no suffix.
    names = output_names([f"{label}.class".replace("/", "-") for label in labels])
    return {label: Path(folder) / name for label, name in zip(labels, names, strict=True)}


def save_classes(
    results: ClassResults,
    folder: str | Path,
    progress: bool = False,
    overlays: bool = False,
    overwrite: bool = False,
) -> dict[Any, Path]:
    """Write each class's result into its folder, and `CLASSES`, which shows all; the folders."""
    folders = class_folders(folder, results)
    for label, of_class in folders.items():
        check_output_folder(of_class, overwrite or _fits(results[label], of_class))
    with output_folder(folder, Rules(remove_stale=True)) as new:
        names = [path.name for path in folders.values()]
        write_text(new / CLASSES, classes_page(results, names))
        pairs = json.dumps([*zip(folders, names, strict=True)], default=str)
        write_text(new / CLASS_FOLDERS, pairs)
    for label, result in results.items():
        result.save(folders[label], progress, overlays, overwrite)
    return folders


def _fits(run: Result, folder: Path) -> bool:
    """Whether the folder holds this run, or what it was before images were added to it."""
    try:
        images = complete_manifest(folder)["images"]
        bank = load_concepts(folder / BANK)
    except InputError:
        return False
    held = [(image["name"], image.get("digest")) for image in images if image["status"] == "used"]
    now = [(image.name, image.digest) for image in run.images]
    whole, its_folder = run.object, folder / OBJECT
    if whole is not None and (its_folder / MANIFEST).exists() and not _fits(whole, its_folder):
        return False
    return held == now[: len(held)] and bank.marks_as(run.bank)


def _write(run: Result, folder: Path, progress: bool, overlays: bool, report: bool) -> None:
    if run.object is not None:
        _write(run.object, folder / OBJECT, progress, overlays, report)
    run.bank.save(folder / BANK)
    _save_heatmaps(run, folder / "heatmaps")
    if report:
        write_report(run, folder, progress=progress, overlays=overlays)
    write_manifest(run, folder)


def _save_heatmaps(run: Result, folder: Path) -> None:
    for number, images in enumerate(_shards(run)):
        coefficients = {}
        for k, f in run.factorizations.items():
            of_k = {"": f.heatmaps, ".classified": f.probabilities, ".scores": f.scores}
            for suffix, maps in of_k.items():
                if maps is not None:  # copies: where H is the classifier's it is the same tensor
                    coefficients[f"k{k}{suffix}"] = maps.rows(images).cpu().clone().contiguous()
        save_tensors(coefficients, folder / f"{number:05d}.safetensors")


def _shards(run: Result) -> Iterator[slice]:
    """The images of each shard: about SHARD_BYTES of coefficients."""
    classified = probabilities_of(run)
    total = first = 0
    for index, image in enumerate(run.images):
        n_cells = image.n_cells + (0 if classified is None else math.prod(classified.grids[index]))
        n_bytes = 4 * sum(run.factorizations) * n_cells
        if total and total + n_bytes > SHARD_BYTES:
            yield slice(first, index)
            first, total = index, 0
        total += n_bytes
    yield slice(first, len(run.images))


def check_output_folder(folder: str | Path, overwrite: bool = False) -> None:
    """Raise InputError if a folder is a file, cannot be written, holds files but no deepff result,
    files of a result that were changed since, or, without `overwrite`, `earlier_outputs`."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the result")
    holds_result = read_manifest(folder) is not None or (folder / RECORD).exists()
    if not holds_result and any(folder.glob("[!.]*")):
        raise InputError(
            f"{folder} is not empty and holds no deepff result; name a new or empty folder"
        )
    for name in changed_files(folder, OUTPUTS):
        if name.partition("/")[0] not in MADE_OF_IT:
            raise InputError(
                f"{folder / name} was changed since deepff wrote it, and a new result would "
                "replace it; move it away, or name another folder"
            )
    made = earlier_outputs(folder)
    if made and not overwrite:
        raise InputError(
            f"{folder} holds {', '.join(made)}, made from a result that the new one would replace; "
            "name another folder, or give them up with --overwrite (overwrite=True)"
        )
    check_writable(folder)


def earlier_outputs(folder: str | Path) -> list[str]:
    """What was made of a folder's result and would go with it, such as "masks/k3". Also what people
    decided on it, which would stay, but be of no use."""
    folder = Path(folder)
    is_complete = (read_manifest(folder) or {}).get("status") == "complete"
    made = {LABELS} if (folder / LABELS).exists() else set()
    for name in own_files(folder, OUTPUTS):
        parts = name.split("/")
        level = int(parts[0] == OBJECT)
        if (folder / name).exists() and (is_complete or parts[level] in MADE_OF_IT):
            made.add("/".join(parts[: level + 2]) if parts[level] in MADE_OF_IT else parts[0])
    return sorted(name for name in made if name.partition("/")[0] in (*MADE_OF_IT, OBJECT, LABELS))
