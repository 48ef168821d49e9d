"""Pictures of a result's regions, which its report shows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepff.meaning.importance import Importance
from deepff.pictures.crops import Crop, save_jpeg
from deepff.pictures.figures import read_photo, region_picture
from deepff.regions.components import Box
from deepff.regions.part_names import factor_names
from deepff.result import Result
from deepff.runtime.files import write_text
from deepff.runtime.outputs import Rules, output_folder

GALLERIES = "regions"


@contextmanager
def region_gallery(
    folder: str | Path,
    name: str,
    description: str,
    regions: Sequence[str],
    n_panels: int = 1,
    color_slots: Sequence[int] | None = None,
) -> Iterator[Callable[..., None]]:
    """Pictures of regions for the report: ``regions/<name>/NNNNN.jpg`` and ``<name>.json``.

    Yields ``draw(result, index, panels, boxes=())``. The next report shows the gallery in place of
    one of the same name; the one before stays if the block fails. `description` says how the
    regions were made, and `color_slots` are the regions' colors, by default in order.
    """
    slots = list(range(len(regions)) if color_slots is None else color_slots)
    content = {
        "title": name,
        "description": description,
        "regions": list(regions),
        "n_panels": n_panels,
        "places": slots,
    }
    # These pictures belong to deepff, as the report does: changed ones are not kept.
    with output_folder(Path(folder) / GALLERIES, Rules(overwrite=True)) as temporary:

        def draw(
            result: Result,
            index: int,
            panels: Sequence[np.ndarray],
            boxes: Iterable[tuple[int, Box]] = (),
        ) -> None:
            """Draw one image's regions, a label map (H, W) per panel, and boxes of regions."""
            photo, _ = read_photo(result.images[index])
            numbers = np.array([0, *(slot + 1 for slot in slots)], panels[0].dtype)
            colored = [(slots[region], box) for region, box in boxes]
            pictures = [region_picture(photo, numbers[labels], colored) for labels in panels]
            picture = Image.fromarray(np.concatenate(pictures, axis=1))
            save_jpeg(picture, temporary / name / f"{index:05d}.jpg")

        yield draw
        write_text(temporary / f"{name}.json", json.dumps(content))


def galleries(folder: Path) -> list[dict[str, Any]]:
    """The contents and folders of the galleries in a result's folder, sorted by name."""
    return [
        {
            "n_panels": 1,
            "places": list(range(len(content["regions"]))),
            **content,
            "folder": f"{GALLERIES}/{path.stem}",
        }
        for path in sorted((folder / GALLERIES).glob("*.json"))
        for content in [json.loads(path.read_text())]
    ]


N_CLASSES = 3
# The share of a set's activations explained at k = 1; below it, images have little in common.
_LITTLE = 0.2


def section(
    result: Result, k: int, colors: Sequence[str], crops: Sequence[Sequence[Crop]], folder: Path
) -> dict[str, Any]:
    """The facts of one k, for the page.

    `colors` are the factors' as CSS has them. Crops whose pictures the folder lacks are left out.
    """
    factorization = result.factorizations[k]
    error = factorization.relative_error
    explained = None if math.isnan(error) else max(0.0, 1 - error**2)
    classes = factorization.classes
    names = [None] * k if classes is None else classes.names
    best = [[]] * k if classes is None else classes.best(N_CLASSES)
    likeness = [[]] * k if classes is None else classes.nearest_words(N_CLASSES)
    importance = result.importances.get(k)
    shares = factorization.energy_shares.tolist()
    return {
        "k": k,
        "relative_error": None if math.isnan(error) else error,
        "explained": explained,
        "has_little_in_common": k == 1 and explained is not None and explained < _LITTLE,
        "by_words": any(likeness),
        "classes": [] if importance is None else list(importance.labels),
        "factors": [
            {
                "name": name,
                "color": colors[j],
                "share": shares[j],
                "called": names[j],
                "classes": best[j],
                "likeness": likeness[j],
                "importance": [] if importance is None else _of_factor(importance, j),
                "crops": [crop for crop in crops[j] if (folder / crop.file).is_file()],
            }
            for j, name in enumerate(factor_names(k))
        ],
    }


def _of_factor(importance: Importance, factor: int) -> list[dict[str, Any]]:
    """For each class the fall, also relative to the largest of the section, and the Sobol index."""
    falls = importance.mean_falls
    largest = max(float(falls.abs().max()), 1e-12)
    return [
        {
            "label": label,
            "fall": float(falls[factor, c]),
            "length": abs(float(falls[factor, c])) / largest,
            "sobol": float(importance.sobol[factor, c]),
        }
        for c, label in enumerate(importance.labels)
    ]
