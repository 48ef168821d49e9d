"""A result with more images: the factors that it has, found in these."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from deepff.discovery.apply import apply
from deepff.features.backbone import Backbone
from deepff.images.sources import SetImage
from deepff.options import BATCH_SIZE, Device
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.result import Result
from deepff.results.run import Run


def extend(
    result: Result,
    images: Sequence[SetImage],
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
) -> Result:
    """Take images into a result as :func:`deepff.discovery.apply.apply` finds its factors in them.

    Parameters
    ----------
    result : Result
    images : sequence of ImageFile or ImageItem
        None of which the result has.
    model, batch_size, device
        As for :func:`deepff.discovery.apply.apply`.

    Returns
    -------
    Result
        The result's images, and after them the others. W and the maps of the former are as they
        were, and so are thresholds, which stay those of the set that W was found in. The relative
        error over all is not known.

    Raises
    ------
    InputError
        See :func:`deepff.discovery.apply.apply`.
    """
    network = model or result.sources[0].backbone(device=device)
    new = apply(result.bank, images, model=network, batch_size=batch_size, device=device)
    whole = result.object
    if whole is not None:
        more = apply(whole.bank, images, model=network, batch_size=batch_size, device=device)
        whole = _joined(whole, more)
    return replace(_joined(result, new), object=whole)


def _joined(result: Result, new: Run) -> Result:
    bank = result.bank
    return replace(
        result,
        images=[*result.images, *new.images],
        skipped=[*result.skipped, *new.skipped],
        factorizations={
            k: _joined_factorization(found, new.factorization(k))
            for k, found in result.factorizations.items()
        },
        applied=bank,
        activations=None,
    )


def _joined_factorization(found: Factorization, new: Factorization) -> Factorization:
    classified = None
    if found.classified is not None and new.classified is not None:
        classified = _joined_maps(found.classified, new.classified)
    return replace(
        found,
        heatmaps=_joined_maps(found.heatmaps, new.heatmaps),
        relative_error=math.nan,
        classified=classified,
    )


def _joined_maps(maps: HeatMaps, new: HeatMaps) -> HeatMaps:
    """Those of both, at the scale of the latter, which is that of the bank."""
    return HeatMaps(
        torch.cat([maps.coefficients, new.coefficients.to(maps.coefficients)]),
        [*maps.grids, *new.grids],
        [*maps.image_sizes, *new.image_sizes],
        new.scale,
    )
