"""Lessons: what masks that somebody looked at teach the set about the object.

A lesson is a file of new probabilities. The settings name the one that counts, so that `undo` takes
it back. It changes no mask that an image keeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from deepff.app.kept_masks import FOLDER, LESSON, kept_mask
from deepff.app.labels import OBJECT, SKIPPED, Labels, Settings
from deepff.errors import InputError
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.runtime.files import atomic_path


@dataclass
class Teaching:
    """A lesson that is being worked out, or waits to be used or dropped."""

    total: int  # images that go through the network
    n_teachers: int
    done: int = 0  # images that went through it
    lesson: str = ""  # its file, once it is written
    error: str | None = None


def can_be_taught(run: Run, settings: Settings) -> bool:
    """Whether masks are those of an object that has a classifier."""
    return (
        settings.masks == OBJECT
        and run.object is not None
        and run.object.factorization(1).classifier is not None
    )


def teachers(labels: Labels, names: list[str]) -> list[str]:
    """The images whose masks somebody looked at: accepted or mended, and not skipped."""
    return [
        name
        for name in names
        if labels.image(name).mask is not None and labels.image(name).status != SKIPPED
    ]


def pupils(labels: Labels, names: list[str]) -> list[int]:
    """The indices of the images that a lesson may change: those that keep no mask."""
    return [index for index, name in enumerate(names) if labels.image(name).mask is None]


def teacher_masks(labels: Labels, names: list[str]) -> dict[str, np.ndarray]:
    """Where the object is in the images that teach: (H, W) bool by name."""
    masks = {name: kept_mask(labels, name) for name in teachers(labels, names)}
    return {name: mask.values > 0 for name, mask in masks.items() if mask is not None}


def write_lesson(maps: Mapping[str, Tensor], folder: Path) -> str:
    """Write how likely each cell is the object, (h, w) by image name; returns the file's name."""
    content = save({name: cells.half().contiguous() for name, cells in maps.items()})
    name = f"{sha256(content).hexdigest()[:32]}{LESSON}"
    with atomic_path(folder / FOLDER / name) as temporary:
        temporary.write_bytes(content)
    return name


@lru_cache(2)
def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"what mended masks taught, {path}, cannot be read ({error}); restore it"
        ) from error


def taught(run: Run, settings: Settings, folder: Path) -> Run:
    """The run with its object as the settings' lesson has it, if they name one.

    Images that were added after the lesson stay as they were.
    """
    if not settings.lesson or run.object is None:
        return run
    lesson = _read(folder / FOLDER / settings.lesson)
    maps = _probabilities(run.object)
    rows = []
    for index, name in enumerate(run.object.names):
        before, cells = maps.grid(index)[0], lesson.get(name)
        if cells is None or cells.shape != before.shape:
            cells = before
        rows.append(cells.to(before).flatten())
    return replace(run, object=with_probabilities(run.object, torch.cat(rows)[:, None]))


def with_probabilities(whole: Run, coefficients: Tensor) -> Run:
    """The run of the object with other probabilities, (cells, 1)."""
    maps = _probabilities(whole).replace(coefficients=coefficients)
    factor = replace(whole.factorization(1), probabilities=maps)
    return replace(whole, factorizations={1: factor})


def _probabilities(whole: Run) -> HeatMaps:
    maps = whole.factorization(1).probabilities
    assert maps is not None
    return maps


def agreements(run: Run, settings: Settings, lesson: str, folder: Path) -> np.ndarray:
    """IoU of each image's marked cells with and without a lesson: (n,); 1 where none is marked."""
    before, after = (
        _marked(taught(run, replace(settings, lesson=name), folder), settings.cut)
        for name in (settings.lesson, lesson)
    )
    ious = np.ones(len(run.names))
    for index, name in enumerate(run.names):
        if name in before:
            union = np.count_nonzero(before[name] | after[name])
            both = np.count_nonzero(before[name] & after[name])
            ious[index] = both / union if union else 1.0
    return ious


def _marked(run: Run, cut: float) -> dict[str, np.ndarray]:
    """The cells that are likely enough the object, (h, w) bool by image name."""
    assert run.object is not None
    maps = _probabilities(run.object)
    return {
        name: (maps.grid(index)[0] >= cut).cpu().numpy()
        for index, name in enumerate(run.object.names)
    }
