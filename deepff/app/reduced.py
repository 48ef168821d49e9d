"""A result as if its images were small, for pictures that follow at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from deepff.features.activations import ImageRecord
from deepff.images.items import ImageItem
from deepff.report.figures import photo_shape
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run


def reduced(run: Run, k: int, photo: Callable[[int], np.ndarray], side: int) -> Run:
    """One factorization of a run, its images scaled to ``side`` pixels.

    Thresholds over the set are read off a histogram of reduced maps; they differ from an export's
    by about a thousandth of a factor's maximum.

    Parameters
    ----------
    run : Run
    k : int
        Which factorization.
    photo : callable
        Gives the photograph of an image, by its number, at that size.
    side : int
        In pixels.
    """
    photos = _Photos(photo, len(run.images))
    found = run.factorization(k)
    return replace(
        run,
        images=[
            _reduced_image(image, photos, index, side) for index, image in enumerate(run.images)
        ],
        factorizations={k: _reduced_factorization(found, side)},
        object=None if run.object is None else reduced(run.object, 1, photo, side),
        applied=replace(run, factorizations={k: found}).bank,
    )


@dataclass(frozen=True)
class _Photos:
    photo: Callable[[int], np.ndarray]
    n: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.ndarray:
        return self.photo(index)


def _reduced_image(image: ImageRecord, photos: _Photos, index: int, side: int) -> ImageRecord:
    item = ImageItem(photos, index, image.name)
    return replace(image, source=item, size=photo_shape(image.size, side))


def _reduced_factorization(found: Factorization, side: int) -> Factorization:
    classified = found.classified
    return replace(
        found,
        heatmaps=_reduced_maps(found.heatmaps, side),
        classified=None if classified is None else _reduced_maps(classified, side),
    )


def _reduced_maps(maps: HeatMaps, side: int) -> HeatMaps:
    sizes = [photo_shape(size, side) for size in maps.image_sizes]
    return HeatMaps(maps.coefficients, maps.grids, sizes, maps.scale, maps.extents)
