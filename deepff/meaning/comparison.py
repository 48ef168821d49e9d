"""Factors of two results over the same images, matched by their maps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from deepff.errors import InputError
from deepff.images.painting import image_html
from deepff.pictures.figures import captions, pairs_figure
from deepff.results.run import Run


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
    """Match the factors of two results over the same images, such as of two layers or networks.

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
