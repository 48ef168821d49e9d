"""Galleries: pictures of a result's regions, which its report shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepff.images.image_set import warn_unreadable
from deepff.pictures.crops import save_jpeg
from deepff.pictures.figures import read_photo, region_picture
from deepff.regions.components import Box
from deepff.result import Result
from deepff.runtime.files import read_json, write_text
from deepff.runtime.outputs import Rules, output_folder

GALLERIES = "regions"
_FORM = {"title": str, "description": str, "regions": [str, ...]}


@contextmanager
def region_gallery(
    folder: str | Path,
    name: str,
    description: str,
    regions: Sequence[str],
    n_panels: int = 1,
    color_slots: Sequence[int] | None = None,
) -> Iterator[Callable[..., None]]:
    """Pictures of regions for the report: ``regions/<name>/NNNNN.jpg`` and ``<name>.json``. Yields
    ``draw(result, index, panels, boxes=())``. One of the same name stays until the block ends.
    `description` says how the regions were made."""
    slots = list(range(len(regions)) if color_slots is None else color_slots)
    content = {
        "title": name,
        "description": description,
        "regions": list(regions),
        "n_panels": n_panels,
        "places": slots,
    }
    unread: dict[str, str] = {}
    # These pictures belong to deepff, as the report does: changed ones are not kept.
    with output_folder(Path(folder) / GALLERIES, Rules(overwrite=True)) as temporary:

        def draw(
            result: Result,
            index: int,
            panels: Sequence[np.ndarray],
            boxes: Iterable[tuple[int, Box, float | None]] = (),
        ) -> None:
            """Draw an image's regions, a label map (H, W) per panel, and boxes with scores."""
            photo, reason = read_photo(result.images[index])
            if reason is not None:
                unread[result.names[index]] = reason
            numbers = np.array([0, *(slot + 1 for slot in slots)], panels[0].dtype)
            colored = [(slots[region], box, score) for region, box, score in boxes]
            pictures = [region_picture(photo, numbers[labels], colored) for labels in panels]
            picture = Image.fromarray(np.concatenate(pictures, axis=1))
            save_jpeg(picture, temporary / name / f"{index:05d}.jpg")

        yield draw
        write_text(temporary / f"{name}.json", json.dumps(content))
    warn_unreadable(unread, "shown gray in the report")


def galleries(folder: Path) -> list[dict[str, Any]]:
    """The contents and folders of the galleries in a result's folder, sorted by name."""
    return [
        {
            "n_panels": 1,
            "places": list(range(len(content["regions"]))),
            **content,
            # Images that were added to the result since have none.
            "n_images": len(list(path.with_suffix("").glob("*.jpg"))),
            "folder": f"{GALLERIES}/{path.stem}",
        }
        for path in sorted((folder / GALLERIES).glob("*.json"))
        for content in [read_json(path, _FORM)]
    ]
