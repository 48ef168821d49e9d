"""The object's pixel classifier, taught by masks that a person has looked at."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.features.activations import Activations
from deepff.features.backbone import Backbone
from deepff.features.extraction import extract_as
from deepff.features.layers import map_layers
from deepff.features.pixel_layers import cell_layer
from deepff.features.source import FeatureSource
from deepff.options import BATCH_SIZE, Device
from deepff.regions.pixel_classifier import (
    CellSample,
    fit_logistic,
    label_confidence,
    sample_cells,
)
from deepff.results.pixel_classifier import PixelClassifier, interpolated, unit_rows
from deepff.results.run import Run
from deepff.results.sampling import cell_means

# Beside all sampled cells of images that nobody has looked at, how much those of the others count.
_CERTAIN = 1.0


def teach_object(
    whole: Run,
    masks: Mapping[str, np.ndarray],
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
    progress: bool = False,
) -> dict[str, Tensor]:
    """Fit the object's classifier anew, with some images' masks as certain.

    One logistic regression (:func:`deepff.regions.pixel_classifier.fit_logistic`) on cells of the
    whole set: of images that somebody has looked at all cells, as their masks say; of the others a
    sample, as the classifier that there is says. Together the former count
    as much as the latter.

    Parameters
    ----------
    whole : Run
        The object, with a classifier.
    masks : mapping of str to ndarray, (H, W) bool
        By an image's name: where the object is, at the image's own size.
    model, batch_size, device, progress
        As for :func:`deepff.discovery.find_object.find_object`.

    Returns
    -------
    dict of str to Tensor, (h, w)
        By name, how likely each cell is the object now, of the images that could be read.

    Raises
    ------
    InputError
        There is no classifier or no such image, the masks tell nothing apart, or the network or
        the images cannot be had any more.
    """
    found = whole.factorization(1)
    if found.classifier is None or found.classified is None:
        raise InputError("the object has no pixel classifier that could be taught")
    if not masks.keys() & set(whole.names):
        raise InputError("no mask of an image of the set was given to teach by")
    sources = found.classifier.sources
    activations = _activations(
        whole, sources, model=model, batch_size=batch_size, device=device, progress=progress
    )
    sample = sample_cells(activations, sources)
    images = activations[cell_layer(sources)].images
    places = {name: place for place, name in enumerate(whole.names)}
    certain: list[_Cells] = []
    others: list[_Cells] = []
    for index, image in enumerate(images):
        if image.name in masks:
            mask = torch.from_numpy(masks[image.name])[None].to(sample.features)
            shares = cell_means(mask, image.grid, image.extent)
            features = _features(activations, index, sample)
            certain.append((features, shares.flatten(), label_confidence(shares).flatten()))
        elif index in sample.places:
            shares = found.classified.grid(places[image.name]).to(sample.features)
            drawn = sample.places[index].to(shares.device)
            features = _features(activations, index, sample)[drawn]
            doubted = label_confidence(shares)
            others.append((features, shares.flatten()[drawn], doubted.flatten()[drawn]))
    parameters = _fitted(certain, others)
    if parameters is None:
        raise InputError("the masks to teach by have no object, or nothing but object, in them")
    maps = PixelClassifier(*sample.whole(parameters), sources).heatmaps(activations)
    return {image.name: maps.grid(index)[0] for index, image in enumerate(images)}


# Of an image's cells: features (m, d), shares of the object and how much they count, (m,) each.
_Cells = tuple[Tensor, Tensor, Tensor]


def _activations(
    whole: Run,
    sources: Sequence[FeatureSource],
    *,
    model: nn.Module | Backbone | None,
    batch_size: int,
    device: str,
    progress: bool,
) -> list[Activations]:
    """Those of the classifier's layers, of the images that can still be read."""
    source = sources[0]
    backbone = source.backbone(model=model, device=device)
    layer_map = map_layers(backbone, source.size)
    extracted, _ = extract_as(
        source,
        [image.item for image in whole.images],
        backbone,
        [own.resolved(layer_map) for own in sources],
        batch_size=batch_size,
        cache=whole.cache,
        progress=progress,
    )
    return extracted


def _features(activations: Sequence[Activations], index: int, sample: CellSample) -> Tensor:
    """All cells of an image as the sample has them, (cells, d)."""
    image = activations[cell_layer(sample.sources)].images[index]
    own = [
        interpolated(
            (unit_rows(layer.image_rows[index]) - mean) @ basis, layer.images[index], image
        )
        for layer, mean, basis in zip(activations, sample.means, sample.bases, strict=True)
    ]
    return torch.cat(own).flatten(1).T


def _fitted(certain: Sequence[_Cells], others: Sequence[_Cells]) -> Tensor | None:
    features, shares, confidence = (torch.cat(of) for of in zip(*certain, *others, strict=True))
    n_certain = sum(len(shares) for _, shares, _ in certain)
    if others:
        ratio = confidence[n_certain:].sum() / confidence[:n_certain].sum()
        confidence[:n_certain] *= _CERTAIN * ratio
    return fit_logistic(features, shares[:, None], confidence)
