"""What mended masks teach the set: the object's probabilities anew, a file beside the masks.

A file never changes once it is there. The settings name the one that counts, so that `undo` takes a
lesson back, and what was accepted is not touched by it.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from deepff.app.labels import Settings
from deepff.app.mask_files import FOLDER, LESSON
from deepff.errors import InputError
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.runtime.files import atomic_path


def write_lesson(maps: Mapping[str, Tensor], folder: Path) -> str:
    """Write how likely each cell (h, w) of images is the object, by their names.

    Returns
    -------
    str
        The file's name.
    """
    content = save({name: cells.half().contiguous() for name, cells in maps.items()})
    name = f"{sha256(content).hexdigest()[:32]}{LESSON}"
    with atomic_path(folder / FOLDER / name) as temporary:
        temporary.write_bytes(content)
    return name


def taught(run: Run, settings: Settings, folder: Path | None) -> Run:
    """A run whose object is what the lesson of the settings says, if they name one.

    Images that were added after it stay as they were.

    Raises
    ------
    InputError
        Its file is gone or damaged.
    """
    if not settings.lesson or folder is None or run.object is None:
        return run
    maps = _read(folder / FOLDER / settings.lesson)
    found = run.object.factorization(1)
    before = found.probabilities
    assert before is not None
    rows = []
    for index, name in enumerate(run.object.names):
        cells = maps.get(name)
        own = before.grid(index)[0]
        rows.append((own if cells is None or cells.shape != own.shape else cells.to(own)).flatten())
    coefficients = torch.cat(rows)[:, None]
    now = HeatMaps(coefficients, before.grids, before.image_sizes, before.scale, before.extents)
    whole = replace(run.object, factorizations={1: replace(found, probabilities=now)})
    return replace(run, object=whole)


@lru_cache(2)
def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"what mended masks taught, {path}, cannot be read ({error}); restore it"
        ) from error


def agreements(run: Run, settings: Settings, lesson: str, folder: Path) -> np.ndarray:
    """How like the marked cells of each image are with and without a lesson: IoU, (n,).

    Of cells, as in :mod:`deepff.app.overview`; 1 where none is marked either way.
    """
    before, after = (
        _marked(run, replace(settings, lesson=name), folder) for name in (settings.lesson, lesson)
    )
    found = np.ones(len(run.names))
    for index, name in enumerate(run.names):
        if name in before:
            either = np.count_nonzero(before[name] | after[name])
            both = np.count_nonzero(before[name] & after[name])
            found[index] = both / either if either else 1.0
    return found


def _marked(run: Run, settings: Settings, folder: Path) -> dict[str, np.ndarray]:
    """The cells of the object's images that are likely enough, by name."""
    whole = taught(run, settings, folder).object
    assert whole is not None
    maps = whole.factorization(1).probabilities
    assert maps is not None
    return {
        name: (maps.grid(index)[0] >= settings.cut).cpu().numpy()
        for index, name in enumerate(whole.names)
    }
