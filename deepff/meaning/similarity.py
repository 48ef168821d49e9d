"""Where else a patch is: the cosine of its cell with the cells of all images."""

import math
from dataclasses import dataclass, field, replace

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError
from deepff.layers.layer import WHOLE
from deepff.meaning.class_names import image_coefficients
from deepff.meaning.open_network import opened_layers
from deepff.options import SimilarBy, chosen
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run


def similar(
    run: Run,
    image: int | str,
    place: tuple[float, float],
    by: str = SimilarBy.ACTIVATIONS,
    k: int | None = None,
    progress: bool = False,
) -> "Similarity":
    """Find where else in the set the patch at ``place``, (x, y) in pixels of an image, occurs.

    The image is an index or a name. Cells are compared by their activations, or by "factors": what
    the factors of one factorization hold of them, hⱼ ‖wⱼ‖. Where activations are neither in memory
    nor in a cache, the network runs again, and the similarity's ``run`` has them. Raises InputError
    where there is no such image, point or k, or the activations can't be had.
    """
    index = _index(run, image)
    x, y = place
    height, width = run.image_sizes[index]
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(
            f"({x:g}, {y:g}) is not in {run.names[index]}, which is {width} × {height} pixels"
        )
    if chosen(SimilarBy, by, "way to compare") == SimilarBy.FACTORS:
        factorization = run.factorization(k)
        norms = factorization.components.norm(dim=1)
        rows = [coefficients * norms for coefficients in image_coefficients(factorization)]
        grids, extents = factorization.heatmaps.grids, factorization.heatmaps.extents
    else:
        activations = _activations(run, progress)
        run = replace(run, activations=activations)
        rows = activations.image_rows
        grids = [image.grid for image in activations.images]
        extents = [image.extent for image in activations.images]
    vertical, horizontal = extents[index] or WHOLE
    row = _cell(y / height, grids[index][0], vertical)
    column = _cell(x / width, grids[index][1], horizontal)
    patch = rows[index][row * grids[index][1] + column].float()
    cosines = [_cosines(of_image, patch) for of_image in rows]
    one = torch.ones(1)
    maps = HeatMaps(torch.cat(cosines)[:, None], grids, run.image_sizes, one, extents)
    largest = torch.stack([of_image.max() for of_image in cosines])
    order = largest.argsort(descending=True, stable=True).tolist()
    return Similarity(index, (x, y), maps, tuple(order), run)


def _cell(position: float, n_cells: int, ends: tuple[float, float]) -> int:
    """The cell nearest to a position; it and the grid's ends are shares of the image's side."""
    first, last = ends
    return min(max(0, math.floor((position - first) / (last - first) * n_cells)), n_cells - 1)


def _index(run: Run, image: int | str) -> int:
    if isinstance(image, str):
        if image not in run.names:
            raise InputError(f"there is no image {image!r} in the set")
        return run.names.index(image)
    if not 0 <= image < len(run.images):
        raise InputError(f"images are numbers from 0 to {len(run.images) - 1}, not {image}")
    return image


def _cosines(rows: Tensor, patch: Tensor) -> Tensor:
    values = functional.normalize(rows.float(), dim=1) @ functional.normalize(patch, dim=0)
    return values.clamp(-1, 1).cpu()


def _activations(run: Run, progress: bool) -> Activations:
    """A, from memory or the cache, or from the network again."""
    if run.activations is not None:
        return run.activations
    if len(run.sources) > 1:
        raise InputError("several layers were fused, so there are no cells to compare")
    (opened,), source = opened_layers(run), run.sources[0]
    (activations,), skipped = extract_layers(
        [image.item for image in run.images],
        opened.backbone,
        [opened.layer],
        source.preparation(opened.backbone.device),
        progress=progress,
    )
    if skipped:
        raise InputError(
            f"finding similar regions needs the activations, but {skipped[0].name} cannot be read "
            f"again ({skipped[0].reason}); load the result with images=..."
        )
    return activations


@dataclass(frozen=True)
class Similarity:
    """How similar every patch of the set is to one."""

    image: int  # the image of the patch
    place: tuple[float, float]  # (x, y) in pixels of that image
    heatmaps: HeatMaps  # one map per image: each cell's cosine with the patch, in [-1, 1]
    strongest: tuple[int, ...]  # all images, in the order of their largest values
    run: Run = field(repr=False)

    def plot(self, n: int = 8, height: int = 180) -> Image.Image:
        """The patch and the ``n`` images where it is strongest, with their maps, as one picture."""
        from deepff.pictures.figures import similar_figure

        return similar_figure(
            self.run, self.image, self.place, self.heatmaps, self.strongest[:n], height
        )

    def _repr_html_(self) -> str:
        from deepff.images.painting import image_html

        return image_html(self.plot(), "Similar places")
