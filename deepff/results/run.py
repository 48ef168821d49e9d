"""The data of a run, which every room to the right reads."""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from deepff.activations.activations import Activations, ImageRecord
from deepff.activations.feature_source import FeatureSource
from deepff.errors import InputError
from deepff.images.reading import SkippedFile
from deepff.layers.later import OpenLayer
from deepff.results.concept_bank import ConceptBank
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.histogram import Histogram


@dataclass(repr=False)
class Run:
    """What a run found and how it came about: all that is saved.

    Attributes
    ----------
    images : list of ImageRecord
        The images that were factorised together, in order.
    skipped : list of SkippedFile
        The files that were passed over, and why.
    factorizations : dict of int to Factorization
        By number of factors, ascending. ``components``, ``coefficients``, ``relative_error`` and
        ``heatmaps`` of the result itself are those of the largest.
    method : str
        "nmf", "semi-nmf", "pca" or "kmeans".
    sources : tuple of FeatureSource
        Network, layer and preparation of the images; several where layers were fused.
    options : dict
        The method's options, ``random_state`` among them.
    command : str
        What was run.
    seconds : dict of str to float
        Time spent, by stage.
    created : str
        When the run ended, ISO 8601, UTC.
    cache : str or None
        The folder of the activation cache, if one was used.
    agreements : dict of int to float or None
        What k was chosen by, where it was chosen (:func:`deepff.discovery.choose_k.select_k`).
    channel_weights : Tensor, (c,), or None
        What the channels of A were multiplied with before it was factorised.
    recipe : str
        "paper" or "contrast": how masks are made from the maps unless told otherwise.
    separation : float or None
        Where channels were weighted by it, how far the activations tell the inside of the images
        from their border (:class:`deepff.discovery.contrast.BorderContrast`), of the coarsest
        layer.
    object : Run or None
        The object in the same images, found by the recipe "contrast".
    parts_of : "object", "frame" or None
        Whether the factors are parts of the object (:mod:`deepff.discovery.object_parts`), and
        where: on its cells, or on all where objects fill the frame.
    applied : ConceptBank or None
        The bank that was applied, where the components were found in another set.
    activations : Activations or None
        A; None where layers were fused. After :func:`deepff.load` only where the cache still holds
        it.
    opened : tuple of OpenLayer
        The network with the layers of ``sources``, where it is open: it is not saved.
    unnamed : str or None
        Why the factors have no names, where that was looked into.
    """

    images: list[ImageRecord]
    skipped: list[SkippedFile]
    factorizations: dict[int, Factorization]
    method: str
    sources: tuple[FeatureSource, ...]
    options: dict[str, Any]
    command: str
    seconds: dict[str, float]
    cache: str | None = None
    agreements: dict[int, float] | None = None
    channel_weights: Tensor | None = field(default=None, repr=False)
    recipe: str = "paper"
    separation: float | None = None
    object: "Run | None" = field(default=None, repr=False)
    parts_of: str | None = None
    applied: ConceptBank | None = field(default=None, repr=False)
    activations: Activations | None = field(default=None, repr=False)
    opened: tuple[OpenLayer, ...] = field(default=(), repr=False)
    unnamed: str | None = None
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def model(self) -> str:
        """The network's name."""
        return self.sources[0].model

    @property
    def layer(self) -> str:
        """The layer's module path; those of fused layers with + between."""
        return " + ".join(source.layer for source in self.sources)

    @property
    def names(self) -> list[str]:
        """The images' names."""
        return [image.name for image in self.images]

    @property
    def paths(self) -> list[Path | None]:
        """The files that the images were read from; None for those that were no files."""
        return [image.path for image in self.images]

    @property
    def image_sizes(self) -> list[tuple[int, int]]:
        """(H, W) of each image in pixels."""
        return [image.size for image in self.images]

    @property
    def grids(self) -> list[tuple[int, int]]:
        """(h, w) of the layer's grid on each image."""
        return [image.grid for image in self.images]

    @property
    def n_components(self) -> int:
        """The largest number of factors."""
        return max(self.factorizations)

    def factorization(self, k: int | None = None) -> Factorization:
        """The factorization with ``k`` factors, or the largest.

        Raises
        ------
        InputError
            There is none with k factors.
        """
        if k is None:
            k = self.n_components
        if k not in self.factorizations:
            held = ", ".join(map(str, self.factorizations))
            raise InputError(f"the result holds k = {held}; there is none with {k} factors")
        return self.factorizations[k]

    @property
    def components(self) -> Tensor:
        """W of the largest factorization: (k, c)."""
        return self.factorization().components

    @property
    def coefficients(self) -> Tensor:
        """H of the largest factorization: (rows, k)."""
        return self.factorization().coefficients

    @property
    def heatmaps(self) -> HeatMaps:
        """The heat maps of the largest factorization."""
        return self.factorization().heatmaps

    @property
    def relative_errors(self) -> str:
        """``k=2: 0.412, k=3: 0.367``, of those that are known."""
        return ", ".join(
            f"k={k}: {found.relative_error:.3f}"
            for k, found in self.factorizations.items()
            if not math.isnan(found.relative_error)
        )

    @property
    def relative_error(self) -> float:
        """‖A − HW‖ / ‖A‖ of the largest factorization."""
        return self.factorization().relative_error

    @property
    def bank(self) -> ConceptBank:
        """The components of every factorization, with what applying them elsewhere takes."""
        if self.applied is not None:
            return self.applied
        return ConceptBank(
            components={k: found.components for k, found in self.factorizations.items()},
            histograms={k: Histogram.sampled(f.heatmaps) for k, f in self.factorizations.items()},
            method=self.method,
            sources=self.sources,
            channel_weights=self.channel_weights,
            recipe=self.recipe,
            parts_of=self.parts_of,
            classifiers={
                k: found.classifier
                for k, found in self.factorizations.items()
                if found.classifier is not None
            },
            classes={
                k: found.classes
                for k, found in self.factorizations.items()
                if found.classes is not None
            },
        )
