"""A linear classifier of cells by the activations of several layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations, FeatureSource, ImageRecord
from deepff.layers.pixel_layers import cell_layer
from deepff.results.heatmaps import HeatMaps
from deepff.results.sampling import sampled
from deepff.runtime import distributed
from deepff.runtime.distributed import gather_rows
from deepff.runtime.parallel import in_parallel

# Rows are not divided by less than this length.
_SHORTEST = 1e-6


@dataclass(frozen=True)
class PixelClassifier:
    """A linear classifier of cells, as :mod:`deepff.regions.pixel_classifier` fits it: b + Σ W_l
    x_l over the layers l, with x_l the layer's rows at length 1, interpolated to the cells of
    :func:`deepff.layers.pixel_layers.cell_layer`, are its logits."""

    weights: Tensor  # W (k, c): the layers' channels side by side
    bias: Tensor  # b (k,)
    sources: tuple[FeatureSource, ...]  # one per layer
    by_hand: bool = False  # taught by masks alone that somebody made, with classes of any size

    def alone(self, index: int) -> "PixelClassifier":
        """The classifier of one class against the background."""
        one = slice(index, index + 1)
        return replace(self, weights=self.weights[one], bias=self.bias[one])

    def probabilities(self, rows: Sequence[Tensor], images: Sequence[ImageRecord]) -> Tensor:
        """How likely each cell of one image is each class, (k, h, w), from its rows (cells, c) and
        its record of each layer. What the classes lack of 1 in sum is the background's."""
        cells = images[cell_layer(self.sources)]
        logits = self.bias.to(rows[0])[:, None, None].expand(-1, *cells.grid)
        split = self.weights.to(rows[0]).split([source.channels for source in self.sources], dim=1)
        for layer_rows, image, weights in zip(rows, images, split, strict=True):
            # The classifier is linear: its maps are scaled and interpolated, and not the channels.
            scores = (
                layer_rows @ weights.T / layer_rows.norm(dim=1, keepdim=True).clamp_min(_SHORTEST)
            )
            logits = logits + interpolated(scores, image, cells)
        return functional.pad(logits, (0, 0, 0, 0, 1, 0)).softmax(0)[1:]

    @torch.no_grad()
    def heatmaps(self, activations: Sequence[Activations]) -> HeatMaps:
        """The probabilities in every image, on the cells; over several ranks in all of theirs."""
        layers = [layer.image_rows for layer in activations]
        records = image_records(activations)
        maps_of_images = in_parallel(
            lambda index: self.probabilities([rows[index] for rows in layers], records[index]),
            [2 * sum(4 * rows[index].numel() for rows in layers) for index in range(len(records))],
        )
        none = torch.zeros(0, len(self.bias), device=activations[0].blocks[0].device)
        coefficients = gather_rows(
            torch.cat([none, *(maps.flatten(1).T for maps in maps_of_images)])
        )
        images = distributed.gather(activations[cell_layer(self.sources)].images)
        # Probabilities are on one scale already.
        return HeatMaps.of_images(coefficients, images, torch.ones(len(self.bias)))


def image_records(activations: Sequence[Activations]) -> list[tuple[ImageRecord, ...]]:
    """Each image as of all layers."""
    return list(zip(*(layer.images for layer in activations), strict=True))


def unit_rows(rows: Tensor) -> Tensor:
    """Rows at length 1; rows of zeros as they are."""
    return functional.normalize(rows, dim=1, eps=_SHORTEST)


def interpolated(rows: Tensor, image: ImageRecord, cells: ImageRecord) -> Tensor:
    """Rows of a layer, (cells, c), as maps on the cells of another, (c, h, w), bilinearly."""
    return sampled(rows.T.reshape(-1, *image.grid), cells.grid, image.extent, cells.extent)
