"""A result as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepff.errors import InputError
from deepff.options import RegionOptions
from deepff.regions.components import bounding_box, largest_component
from deepff.regions.regions import find_regions
from deepff.results.run import Run

if TYPE_CHECKING:
    import pandas


def table(run: Run, k: int | None, options: RegionOptions) -> pandas.DataFrame:
    """One row an image and region; see :meth:`deepff.result.Result.to_dataframe`.

    Raises
    ------
    InputError
        As :func:`deepff.regions.regions.find_regions`, or pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError("a table needs pandas: pip install 'deepff[notebook]'") from None

    heatmaps = run.factorization(k).heatmaps
    parts = options.parts or {}
    rows = []
    for index, regions in enumerate(find_regions(run, k, options)):
        peaks = heatmaps.normalized(index).abs().amax((1, 2)).tolist()
        for number, name in enumerate(regions.names):
            factors = [factor for factor, part in parts.items() if part == name] or [number]
            mask = regions.masks[number].cpu().numpy()
            box = bounding_box(largest_component(mask)) or (None,) * 4
            rows.append(
                {
                    "image": run.names[index],
                    "region": name,
                    "strength": max(peaks[factor] for factor in factors),
                    "share": float(mask.mean()),
                    **dict(zip(("x_min", "y_min", "x_max", "y_max"), box, strict=True)),
                }
            )
    frame = pandas.DataFrame(rows)
    edges = ["x_min", "y_min", "x_max", "y_max"]
    return frame.astype(dict.fromkeys(edges, "Int64"))
