"""The instances that a class is known by, and how likely another one shows the same class."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from deepff.activations.feature_source import FeatureSource

_MOST_LIKE = 5  # known instances, and backgrounds, that one is compared with
_BACKGROUND = 0.5  # how much likeness to a background counts
# The shares of the known instances that have a score of less than 0.5, and of less than 0.9.
_DOUBTFUL, _MEDIAN = 0.2, 0.5
# Where the known instances are much the same: 0.5 is at this share of their median at the most, and
# the scale is at least so wide. Where they are too few to give a scale, it is the usual one.
_DOUBTFUL_SHARE = 0.8
_LEAST_SPREAD = 0.1
_FEWEST, _USUAL = 3, (0.35, 0.08)


@dataclass(frozen=True)
class KnownInstances:
    """Features of some instances of each factor, and of what is around each in its image.

    An instance's likeness is the mean of its five largest cosines with the known ones of a factor,
    less half of the same with their backgrounds. Those of the known ones, each against the others,
    give the scale: a score of 0.5 is their 20th percentile, or four fifths of their median where
    that is less, and 0.9 the median, or 0.1 more than at 0.5.
    """

    features: Tensor  # (n, c), of length 1
    backgrounds: Tensor  # (n, c), of length 1
    factors: Tensor  # (n,): the factor that each shows
    source: FeatureSource  # whose activations the features are means of

    def alone(self, factor: int) -> KnownInstances:
        """Those of one factor, which becomes factor 0."""
        own = self.factors == factor
        return replace(
            self,
            features=self.features[own],
            backgrounds=self.backgrounds[own],
            factors=self.factors[own] * 0,
        )

    def scores(self, features: Tensor, factor: int, left_out: Tensor | None = None) -> Tensor:
        """How likely instances with these features (m, c) show a factor: (m,), in [0, 1].

        ``left_out`` (n,) bool says which of all known ones they are not to be compared with.
        """
        own = self.factors == factor
        known = self.features[own].to(features), self.backgrounds[own].to(features)
        if not own.any():
            return features.new_zeros(len(features))
        compared = torch.ones(len(features), int(own.sum()), dtype=torch.bool)
        if left_out is not None:
            compared &= ~left_out[own]
        low, spread = self._scales[factor]
        return torch.sigmoid((_likeness(features, *known, compared) - low) / spread)

    @cached_property
    def _scales(self) -> dict[int, tuple[float, float]]:
        """:func:`_scale` of each factor."""
        own = {factor: self.factors == factor for factor in self.factors.unique().tolist()}
        return {
            factor: _scale(self.features[of], self.backgrounds[of]) for factor, of in own.items()
        }


def _scale(known: Tensor, backgrounds: Tensor) -> tuple[float, float]:
    """The likeness with a score of 0.5, and the difference that makes the odds e times as high."""
    low, spread = _USUAL
    if len(known) >= _FEWEST:
        others = ~torch.eye(len(known), dtype=torch.bool)
        likeness = _likeness(known, known, backgrounds, others)
        low, median = likeness.quantile(likeness.new_tensor([_DOUBTFUL, _MEDIAN])).tolist()
        low = min(low, _DOUBTFUL_SHARE * median)
        spread = max(median - low, _LEAST_SPREAD)
    return low, spread / math.log(9)


def _likeness(features: Tensor, known: Tensor, backgrounds: Tensor, compared: Tensor) -> Tensor:
    """Of features (m, c), with the known instances that each is `compared` with, (m, n) bool."""
    largest = (_largest_cosines(features, rows, compared) for rows in (known, backgrounds))
    return next(largest) - _BACKGROUND * next(largest)


def _largest_cosines(features: Tensor, rows: Tensor, compared: Tensor) -> Tensor:
    """The mean of the five largest, (m,); 1 where there is nothing to compare with."""
    cosines = (features @ rows.T).masked_fill(~compared.to(features.device), -torch.inf)
    largest = cosines.topk(min(_MOST_LIKE, len(rows)), dim=1).values
    return largest.masked_fill(largest.isinf(), torch.nan).nanmean(1).nan_to_num(1.0)
