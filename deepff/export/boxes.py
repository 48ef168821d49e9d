"""Boxes as JSON and CSV, and regions as a table."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepff.meaning.importance import data_frame
from deepff.regions.components import Box, component_boxes, least_instance, scored_boxes
from deepff.regions.regions import Regions
from deepff.results.heatmaps import HeatMaps
from deepff.runtime.files import atomic_text, write_text

if TYPE_CHECKING:
    import pandas

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
    score: float | None = None  # of objects: how likely it is one, in [0, 1]

    @property
    def box(self) -> Box:
        """(x_min, y_min, x_max, y_max)."""
        return self.x_min, self.y_min, self.x_max, self.y_max


def region_boxes(
    regions: Regions,
    image: str,
    names: Sequence[str],
    best: bool = False,
    min_area: int | None = None,
) -> list[RegionBox]:
    """The boxes around all components of each region of one image, of at least `min_area` pixels
    (:func:`deepff.regions.components.least_instance`), the largest first. With ``best`` one box per
    region: of the highest score, or the largest if there are no scores."""
    height, width = regions.labels.shape
    scores = regions.scores
    least = least_instance((height, width), scores) if min_area is None else min_area
    boxes = []
    for region, (name, mask) in enumerate(zip(names, regions.masks, strict=True)):
        pieces = scored_boxes(mask, least, None if scores is None else scores[region])
        if best:  # of equal scores the largest
            pieces = sorted(pieces, key=lambda piece: -(piece[1] or 0))[:1]
        for box, score in pieces:
            boxes.append(RegionBox(image, name, *box, None if score is None else round(score, 4)))
    return boxes


def region_table(
    names: Sequence[str],
    all_regions: Iterable[Regions],
    heatmaps: HeatMaps,
    parts: Mapping[int, str] | None,
) -> "pandas.DataFrame":
    """One row per image and region; see :meth:`deepff.result.Result.to_dataframe`."""
    edges = ("x_min", "y_min", "x_max", "y_max")
    parts = parts or {}
    rows = []
    for index, regions in enumerate(all_regions):
        peaks = heatmaps.normalized(index).abs().amax((1, 2)).tolist()
        for number, name in enumerate(regions.names):
            factors = [factor for factor, part in parts.items() if part == name] or [number]
            mask = regions.masks[number].cpu().numpy()
            box = next(iter(component_boxes(mask)), (None,) * 4)
            rows.append(
                {
                    "image": names[index],
                    "region": name,
                    "strength": max(peaks[factor] for factor in factors),
                    "share": float(mask.mean()),
                    **dict(zip(edges, box, strict=True)),
                }
            )
    return data_frame(rows).astype(dict.fromkeys(edges, "Int64"))


def write_boxes(boxes: Iterable[RegionBox], path: Path, description: str) -> None:
    """Write boxes as ``<path>.json``, with their convention, and as ``<path>.csv``, in UTF-8."""
    rows = [asdict(box) for box in boxes]
    content = {"made by": description, "convention": CONVENTION, "boxes": rows}
    write_text(path.with_suffix(".json"), json.dumps(content, ensure_ascii=False, indent=1))
    with atomic_text(path.with_suffix(".csv")) as file:
        writer = csv.DictWriter(file, list(RegionBox.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(rows)
