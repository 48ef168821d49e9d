"""Where else a patch is, by the cosine of its cell with the cells of all images; and factors of two
results over the same images, matched by the cosine of their maps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations
from deepff.activations.extraction import extract_layers
from deepff.errors import InputError
from deepff.images.painting import image_html
from deepff.layers.layer import WHOLE
from deepff.meaning.class_names import image_coefficients
from deepff.meaning.open_network import opened_layers
from deepff.options import SimilarBy, chosen
from deepff.pictures.figures import captions, pairs_figure, similar_figure
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
    index = image_index(run, image)
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
        rows, images = activations.image_rows, activations.images
        grids, extents = [image.grid for image in images], [image.extent for image in images]
    vertical, horizontal = extents[index] or WHOLE
    row = _cell(y / height, grids[index][0], vertical)
    column = _cell(x / width, grids[index][1], horizontal)
    patch = rows[index][row * grids[index][1] + column].float()
    patch = functional.normalize(patch, dim=0)
    units = (functional.normalize(of_image.float(), dim=1) for of_image in rows)
    cosines = [(of_image @ patch).clamp(-1, 1).cpu() for of_image in units]
    one = torch.ones(1)
    maps = HeatMaps(torch.cat(cosines)[:, None], grids, run.image_sizes, one, extents)
    largest = torch.stack([of_image.max() for of_image in cosines])
    order = largest.argsort(descending=True, stable=True).tolist()
    return Similarity(index, (x, y), maps, tuple(order), run)


def _cell(position: float, n_cells: int, ends: tuple[float, float]) -> int:
    """The cell nearest to a position; it and the grid's ends are shares of the image's side."""
    first, last = ends
    return min(max(0, math.floor((position - first) / (last - first) * n_cells)), n_cells - 1)


def image_index(run: Run, image: int | str) -> int:
    if isinstance(image, str):
        if image not in run.names:
            raise InputError(f"there is no image {image!r} in the set")
        return run.names.index(image)
    if not 0 <= image < len(run.images):
        raise InputError(f"images are numbers from 0 to {len(run.images) - 1}, not {image}")
    return image


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
        return similar_figure(
            self.run, self.image, self.place, self.heatmaps, self.strongest[:n], height
        )

    def _repr_html_(self) -> str:
        return image_html(self.plot(), "Similar places")


@dataclass(frozen=True)
class Comparison:
    """Factors of two results, matched one to one by their maps."""

    similarity: Tensor  # (k, l): the cosine of the maps of every two factors, in [-1, 1]
    pairs: tuple[tuple[int, int], ...]  # a factor and the other's, the most similar first
    runs: tuple[Run, Run] = field(repr=False)

    def rows(self) -> list[tuple[str, str, float]]:
        """The pairs as a table: their factors' names, and the similarity."""
        sides = zip(self.runs, self.similarity.shape, strict=True)
        a, b = (captions(run.factorization(k)) for run, k in sides)
        return [(a[i], b[j], float(self.similarity[i, j])) for i, j in self.pairs]

    def plot(self, images: int | Sequence[int] | None = None, height: int = 140) -> Image.Image:
        """The maps of each pair, one row below the other, by default on up to 8 images."""
        return pairs_figure(self.runs, self.similarity, self.pairs, images, height)

    def _repr_html_(self) -> str:
        return image_html(self.plot(), "Pairs of factors")


def compare(first: Run, second: Run, k: int | None = None) -> Comparison:
    """Match the factors of two results on the same images, for example of two layers or networks.

    The similarity of two factors is the cosine of their maps over all images, on the finer of the
    two grids; pairs are matched so that the sum of their similarities is largest. ``k`` says which
    factorization of both, by default the largest of each. InputError where the images differ.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> images = [data.chelsea(), data.astronaut()]
    >>> results = [deepff.discover(images, n_components=k, size=224) for k in (2, 3)]
    >>> deepff.compare(*results).similarity.shape
    torch.Size([2, 3])
    """
    if first.names != second.names:
        raise InputError(
            "the results have different images; compare two on the same images, in one order"
        )
    both = [run.factorization(k).heatmaps for run in (first, second)]
    n, products = both[0].n_factors, torch.zeros((), dtype=torch.float64)
    for i in range(len(first.names)):
        shape = max((maps.grids[i] for maps in both), key=math.prod)
        values = torch.cat([maps.upsampled(i, shape).flatten(1).cpu().double() for maps in both])
        products = products + values @ values.T
    lengths = products.diagonal().sqrt().clamp_min(1e-300)
    similarity = (products / lengths / lengths[:, None])[:n, n:].float()
    pairs = [(int(i), int(j)) for i, j in zip(*linear_sum_assignment(-similarity), strict=True)]
    pairs.sort(key=lambda pair: -round(float(similarity[pair]), 4))
    return Comparison(similarity, tuple(pairs), (first, second))
