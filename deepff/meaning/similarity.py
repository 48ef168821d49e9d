"""Where else a patch is: the cosine of its cell with the cells of all images."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError
from deepff.meaning.class_names import image_coefficients
from deepff.meaning.open_network import opened_layer
from deepff.options import SimilarBy, chosen
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.results.sampling import WHOLE

if TYPE_CHECKING:
    from PIL import Image


def similar(
    run: Run,
    image: int | str,
    place: tuple[float, float],
    by: str = SimilarBy.ACTIVATIONS,
    k: int | None = None,
    progress: bool = False,
) -> Similarity:
    """Find the places of the set that are like one.

    Parameters
    ----------
    run : Run
    image : int or str
        The place's image: its index, or its name in the set.
    place : (x, y)
        In pixels of the image at its own size, from its upper left corner.
    by : "activations" or "factors"
        What is compared: the cells' activations, or what the factors hold of them, hⱼ ‖wⱼ‖. Where
        the activations are neither in memory nor in a cache the network runs again over the set,
        and the similarity's `run` has them.
    k : int, optional
        By which factorization's factors; by default the largest.
    progress : bool
        Show on standard error how far the network is, where it runs again.

    Raises
    ------
    InputError
        There is no such image, place or k; or the activations can't be had.
    """
    index = _index(run, image)
    x, y = place
    height, width = run.image_sizes[index]
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(
            f"({x:g}, {y:g}) is not in {run.names[index]}, which is {width} × {height} pixels"
        )
    if chosen(SimilarBy, by, "way to compare") == SimilarBy.FACTORS:
        found = run.factorization(k)
        norms = found.components.norm(dim=1)
        rows = [own * norms for own in image_coefficients(found)]
        grids, extents = found.heatmaps.grids, found.heatmaps.extents
    else:
        activations = _activations(run, progress)
        run = replace(run, activations=activations)
        rows = activations.image_rows
        grids = [image.grid for image in activations.images]
        extents = [image.extent for image in activations.images]
    vertical, horizontal = extents[index] or WHOLE
    row = _cell(y / height, grids[index][0], vertical)
    column = _cell(x / width, grids[index][1], horizontal)
    wanted = rows[index][row * grids[index][1] + column].float()
    cosines = [_cosines(own, wanted) for own in rows]
    one = torch.ones(1)
    maps = HeatMaps(torch.cat(cosines)[:, None], grids, run.image_sizes, one, extents)
    largest = torch.stack([own.max() for own in cosines])
    order = largest.argsort(descending=True, stable=True).tolist()
    return Similarity(index, (x, y), maps, tuple(order), run)


def _cell(place: float, n_cells: int, ends: tuple[float, float]) -> int:
    """The cell that looks nearest to a place along a side, both in shares of it."""
    first, last = ends
    return min(max(0, math.floor((place - first) / (last - first) * n_cells)), n_cells - 1)


def _index(run: Run, image: int | str) -> int:
    if isinstance(image, str):
        if image not in run.names:
            raise InputError(f"there is no image {image!r} in the set")
        return run.names.index(image)
    if not 0 <= image < len(run.images):
        raise InputError(f"images are numbers from 0 to {len(run.images) - 1}, not {image}")
    return image


def _cosines(rows: Tensor, wanted: Tensor) -> Tensor:
    values = functional.normalize(rows.float(), dim=1) @ functional.normalize(wanted, dim=0)
    return values.clamp(-1, 1).cpu()


def _activations(run: Run, progress: bool) -> Activations:
    """A, from memory or the cache, or from the network again."""
    if run.activations is None:
        if len(run.sources) > 1:
            raise InputError("several layers were fused, so there are no cells to compare")
        opened, source = opened_layer(run), run.sources[0]
        (activations,), skipped = extract_layers(
            [image.item for image in run.images],
            opened.backbone,
            [opened.layer],
            source.preparation(opened.backbone.device),
            progress=progress,
        )
        if skipped:
            raise InputError(
                f"similar places need the activations, and {skipped[0].name} cannot be read again "
                f"({skipped[0].reason}); load the result with images=..."
            )
        return activations
    return run.activations


@dataclass(frozen=True)
class Similarity:
    """How like one place every place of the set is.

    Attributes
    ----------
    image : int
        The image of the place.
    place : (x, y)
        In pixels of that image.
    heatmaps : HeatMaps
        One map an image: the cosine of each cell with the place's, in [-1, 1].
    strongest : tuple of int
        The images in the order of their largest values, the image itself among them.
    """

    image: int
    place: tuple[float, float]
    heatmaps: HeatMaps
    strongest: tuple[int, ...]
    run: Run = field(repr=False)

    def plot(self, n: int = 8, height: int = 180) -> Image.Image:
        """The place and the ``n`` images where it is strongest, with their maps, as one picture."""
        from deepff.pictures.figures import similar_figure

        return similar_figure(
            self.run, self.image, self.place, self.heatmaps, self.strongest[:n], height
        )

    def _repr_html_(self) -> str:
        from deepff.images.painting import image_html

        return image_html(self.plot(), "Similar places")
