"""The data of a run, which every room to the right reads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from deepff.activations.activations import Activations, FeatureSource, ImageRecord
from deepff.errors import InputError
from deepff.images.reading import SkippedFile
from deepff.layers.later import OpenLayer
from deepff.results.concept_bank import ConceptBank
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps
from deepff.results.histogram import Histogram


@dataclass(repr=False)
class Run:
    """What a run gave and how it came about: all that is saved. ``components``, ``coefficients``,
    ``relative_error`` and ``heatmaps`` are those of the factorization with the most factors."""

    images: list[ImageRecord]  # that were factorized together, in order
    skipped: list[SkippedFile]  # files that were left out, and why
    factorizations: dict[int, Factorization]  # by number of factors, ascending
    method: str  # "nmf", "semi-nmf", "pca", "kmeans", or the class of somebody's own estimator
    sources: tuple[FeatureSource, ...]  # several where layers are fused
    options: dict[str, Any]  # of the method, with its random_state
    command: str  # what was run
    seconds: dict[str, float]  # by stage
    cache: str | None = None  # the folder of the activation cache
    agreements: dict[int, float] | None = None  # what k was chosen by (choose_k.select_k)
    # (c,): what the channels of A were multiplied with before it was factorized; (k, c) for kinds
    channel_weights: Tensor | None = field(default=None, repr=False)
    recipe: str = "paper"  # or "contrast": how masks are made from the maps by default
    # How well weighted activations tell the inside of the images from their border, in [0, 1)
    separation: float | None = None
    object: "Run | None" = field(default=None, repr=False)  # in the same images, by contrast
    # "object" or "frame" where the factors are parts: of its cells, or of objects that fill it
    parts_of: str | None = None
    # The bank that was applied, where the components come from another set
    applied: ConceptBank | None = field(default=None, repr=False)
    # As they were saved, for thresholds over the set as it was then, without another read of H
    histograms: Mapping[int, Histogram] | None = field(default=None, repr=False)
    # A; None where layers were fused. A loaded result has it only if the cache still does.
    activations: Activations | None = field(default=None, repr=False)
    # The network with the layers of `sources`, where it is open; it is not saved
    opened: tuple[OpenLayer, ...] = field(default=(), repr=False)
    unnamed: str | None = None  # why the factors have no names, once naming was tried
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
        """The factorization with ``k`` factors, or the largest; InputError where there is none."""
        if k is None:
            k = self.n_components
        if k not in self.factorizations:
            held = ", ".join(map(str, self.factorizations))
            raise InputError(f"the result has k = {held}, but not {k}")
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
        errors = ((k, each.relative_error) for k, each in self.factorizations.items())
        return ", ".join(f"k={k}: {error:.3f}" for k, error in errors if not math.isnan(error))

    @property
    def relative_error(self) -> float:
        """‖A − HW‖ / ‖A‖ of the largest factorization."""
        return self.factorization().relative_error

    @property
    def is_object(self) -> bool:
        """Whether the factors are objects by contrast: one, or one for each kind of thing."""
        return self.recipe == "contrast" and self.parts_of is None

    @property
    def of_kinds(self) -> list[Self]:
        """The run once for each kind of thing in it, as if it had found nothing else."""
        if self.channel_weights is None or self.channel_weights.ndim == 1:
            return [self]
        return [
            replace(
                self,
                factorizations={1: self.factorization().alone(kind)},
                channel_weights=weights,
                applied=self.applied and self.applied.of_kinds[kind],
                histograms=self.histograms
                and {1: self.histograms[len(self.channel_weights)].alone(kind)},
            )
            for kind, weights in enumerate(self.channel_weights)
        ]

    @property
    def bank(self) -> ConceptBank:
        """The components of every factorization, with what applying them elsewhere takes."""
        if self.applied is not None:
            return self.applied
        every = self.factorizations.items()
        return ConceptBank(
            components={k: f.components for k, f in every},
            histograms=dict(self.histograms)
            if self.histograms is not None
            else {k: Histogram.sampled(f.heatmaps) for k, f in every},
            method=self.method,
            sources=self.sources,
            channel_weights=self.channel_weights,
            recipe=self.recipe,
            parts_of=self.parts_of,
            classifiers={k: f.classifier for k, f in every if f.classifier is not None},
            classes={k: f.classes for k, f in every if f.classes is not None},
            known=next((f.known for _, f in every if f.known), None),
        )
