"""The instances that a class is known by, and how likely another one shows the same class."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import torch
from torch import Tensor

from deepff.activations.activations import FeatureSource

_MOST_LIKE = 5  # known instances, and backgrounds, that one is compared with
_BACKGROUND = 0.5  # how much likeness to a background counts, and to what is known not to be one
# The shares of the known instances that have a score of less than 0.5, and of less than 0.9.
_DOUBTFUL, _MEDIAN = 0.2, 0.5
# Where the known instances are much the same: 0.5 is at this share of their median at the most, and
# the scale is at least so wide. Where they are too few to give a scale, it is the usual one.
_DOUBTFUL_SHARE = 0.8
_LEAST_SPREAD = 0.1
_FEWEST, _USUAL = 3, (0.35, 0.08)
_ANY = -1  # stands for all factors
# The share of images without the thing that may have a score of 0.5, all factors together; and how
# far 0.5 is at least from the mean of these images to the median of the known instances.
_MISTAKEN, _LEAST_WAY = 0.05, 1 / 3


@dataclass(frozen=True)
class Negatives:
    """Features of what the factors mark in images that do not show the thing."""

    features: Tensor  # (m, c), of length 1
    factors: Tensor  # (m,): the factor that marks each
    images: Tensor  # (m,): the number of the image that each is in

    def of(self, factor: int) -> "Negatives":
        """Those of one factor, which becomes factor 0."""
        own = self.factors == factor
        return Negatives(self.features[own], self.factors[own] * 0, self.images[own])

    def joined(self, other: "Negatives") -> "Negatives":
        """These and those of other images."""
        after = self.images.max() + 1 if len(self.images) else 0
        return Negatives(
            torch.cat([self.features, other.features]),
            torch.cat([self.factors, other.factors]),
            torch.cat([self.images, other.images + after]),
        )


@dataclass(frozen=True)
class KnownInstances:
    """Features of some instances of each factor, and of what is around each in its image. Likeness
    is the mean of the five largest cosines with those of a factor, less half of the same with their
    backgrounds. Those of the known ones, each against the others, give the scale: a score of 0.5 is
    their 20th percentile, or four fifths of their median where that is less, and 0.9 the median, or
    0.1 more than at 0.5."""

    features: Tensor  # (n, c), of length 1
    backgrounds: Tensor  # (n, c), of length 1
    factors: Tensor  # (n,): the factor that each shows
    source: FeatureSource  # whose activations the features are means of
    negatives: Negatives | None = None

    def alone(self, factor: int) -> "KnownInstances":
        """Those of one factor, which becomes factor 0."""
        own = self.factors == factor
        return replace(
            self,
            features=self.features[own],
            backgrounds=self.backgrounds[own],
            factors=self.factors[own] * 0,
            negatives=self.negatives and self.negatives.of(factor),
        )

    def scores(self, features: Tensor, factor: int, left_out: Tensor | None = None) -> Tensor:
        """How likely instances with these features (m, c) show a factor: (m,), in [0, 1]. They are
        to be like the factor's instances on its scale, and like those of all factors on theirs, as
        the scale of a few is loose. ``left_out`` (n,) bool: known ones that they are not compared
        with."""
        own = self.factors == factor
        if not own.any():
            return features.new_zeros(len(features))
        among = {factor: own} if own.all() else {factor: own, _ANY: torch.ones_like(own)}
        scores = []
        for which, is_in in among.items():
            others = None if left_out is None else ~left_out[is_in]
            low, spread = self._scales[which]
            likeness = self._of_factors[which]._likeness(features, others)
            scores.append(torch.sigmoid((likeness - low) / spread))
        return torch.stack(scores).amin(0)

    @cached_property
    def _of_factors(self) -> "dict[int, KnownInstances]":
        """Those of each factor alone, and where there are several, all."""
        each = {factor: self.alone(factor) for factor in self.factors.unique().tolist()}
        return each if len(each) < 2 else {**each, _ANY: self}

    @cached_property
    def _scales(self) -> dict[int, tuple[float, float]]:
        """:meth:`_scale` of each of them; the factors share the images that may be mistaken."""
        share = _MISTAKEN / max(1, len(self.factors.unique()))
        return {
            of: known._scale(_MISTAKEN if of == _ANY else share)
            for of, known in self._of_factors.items()
        }

    def _scale(self, mistaken: float) -> tuple[float, float]:
        """The likeness with a score of 0.5, and the difference that makes the odds e times as high.
        Of one factor, of which a share of the images without the thing may have that score."""
        low, spread = _USUAL
        n = len(self.features)
        if n >= _FEWEST:
            likeness = self._likeness(self.features, ~torch.eye(n, dtype=torch.bool))
            low, median = likeness.quantile(likeness.new_tensor([_DOUBTFUL, _MEDIAN])).tolist()
            by_negatives = self._low_by_negatives(mistaken, median)
            low = min(low, _DOUBTFUL_SHARE * median) if by_negatives is None else by_negatives
            spread = max(median - low, _LEAST_SPREAD)
        return low, spread / math.log(9)

    def _low_by_negatives(self, mistaken: float, median: float) -> float | None:
        images = torch.zeros(0) if self.negatives is None else self.negatives.images
        if self.negatives is None or len(images.unique()) < _FEWEST:
            return None
        likeness = self._likeness(self.negatives.features, None, images[:, None] != images)
        best = torch.stack([likeness[images == image].max() for image in images.unique()])
        mean = float(best.mean())
        rarely = mean + NormalDist().inv_cdf(1 - mistaken) * float(best.std())
        return max(rarely, mean + _LEAST_WAY * (median - mean))

    def _likeness(
        self, features: Tensor, others: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Of features (m, c); masks say which known instances and negatives each is compared with.
        Masks are (m, n) or (n,) bool; None stands for all."""
        likeness = _largest_cosines(features, self.features, others)
        likeness -= _BACKGROUND * _largest_cosines(features, self.backgrounds, others)
        if self.negatives is not None and len(self.negatives.features):
            against = _largest_cosines(features, self.negatives.features, negatives)
            likeness -= _BACKGROUND * against
        return likeness


def _largest_cosines(features: Tensor, rows: Tensor, compared: Tensor | None) -> Tensor:
    """The mean of the five largest, (m,); 1 where there is nothing to compare with."""
    cosines = features @ rows.to(features).T
    if compared is not None:
        cosines = cosines.masked_fill(~compared.to(features.device), -torch.inf)
    largest = cosines.topk(min(_MOST_LIKE, len(rows)), dim=1).values
    return largest.masked_fill(largest.isinf(), torch.nan).nanmean(1).nan_to_num(1.0)
