"""Boxes as JSON and CSV."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from deepff.regions.components import (
    Box,
    bounding_box,
    component_boxes,
    largest_component,
    least_area,
)
from deepff.regions.regions import Regions
from deepff.runtime.files import atomic_path

CONVENTION = (
    "pixel edges: x to the right, y down, the first pixel spans 0 to 1, maxima are exclusive"
)


@dataclass(frozen=True)
class RegionBox:
    """A box around a component of a region, in pixel edges: :mod:`deepff.regions.components`."""

    image: str
    region: str
    x_min: int
    y_min: int
    x_max: int
    y_max: int

    @property
    def box(self) -> Box:
        """(x_min, y_min, x_max, y_max)."""
        return self.x_min, self.y_min, self.x_max, self.y_max


def region_boxes(
    regions: Regions,
    image: str,
    names: Sequence[str],
    all_components: bool = False,
    min_area: int | None = None,
) -> list[RegionBox]:
    """The boxes of one image's regions.

    Parameters
    ----------
    regions : Regions
    image : str
        The image's name.
    names : sequence of str
        The regions' names.
    all_components : bool
        A box around every connected component instead of the largest alone.
    min_area : int, optional
        Components of fewer pixels have no box; by default of fewer than
        :func:`deepff.regions.components.least_area`.
    """
    height, width = regions.labels.shape
    least = least_area((height, width)) if min_area is None else min_area
    found = []
    for name, mask in zip(names, regions.masks.cpu().numpy(), strict=True):
        if all_components:
            boxes = component_boxes(mask, least)
        else:
            component = largest_component(mask)
            box = bounding_box(component) if component.sum() >= least else None
            boxes = [] if box is None else [box]
        found += [RegionBox(image, name, *box) for box in boxes]
    return found


def write_boxes(boxes: Iterable[RegionBox], path: Path, description: str) -> None:
    """Write boxes as ``<path>.json``, with their convention, and as ``<path>.csv``, in UTF-8."""
    rows = [asdict(box) for box in boxes]
    with atomic_path(path.with_suffix(".json")) as temporary:
        content = {"made by": description, "convention": CONVENTION, "boxes": rows}
        temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")
    with (
        atomic_path(path.with_suffix(".csv")) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, list(RegionBox.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(rows)
