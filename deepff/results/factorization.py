"""A factorised set for one number of factors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepff.results.classifier import PixelClassifier
from deepff.results.heatmaps import HeatMaps


@dataclass(frozen=True)
class Factorization:
    """A ≈ H W for one number of factors.

    Attributes
    ----------
    components : Tensor, shape (k, c)
        W.
    heatmaps : HeatMaps
        The columns of H as maps.
    relative_error : float
        ‖A − HW‖ / ‖A‖, Frobenius; NaN where H is a classifier's.
    n_iter : int
        Iterations that the solver took.
    classifier : PixelClassifier or None
        What the regions of the set taught (:mod:`deepff.regions.pixel_classifier`), of one class a
        factor.
    probabilities : HeatMaps or None
        The classifier's probabilities, on its own cells.
    classes : FactorClasses or None
        What the network takes the factors for, where that is known.
    """

    components: Tensor
    heatmaps: HeatMaps
    relative_error: float
    n_iter: int
    classifier: PixelClassifier | None = None
    probabilities: HeatMaps | None = None
    classes: FactorClasses | None = None

    @property
    def coefficients(self) -> Tensor:
        """H, shape (rows, k)."""
        return self.heatmaps.coefficients

    @property
    def energy_shares(self) -> Tensor:
        """Each factor's share of the energy, ‖hⱼ‖·‖wⱼ‖ over the sum of all: (k,), sum 1."""
        energies = self.coefficients.norm(dim=0) * self.components.norm(dim=1)
        return energies / energies.sum().clamp_min(torch.finfo(energies.dtype).tiny)


@dataclass(frozen=True)
class FactorClasses:
    """The classes that a network sees in the factors of one factorization.

    Attributes
    ----------
    labels : tuple of str
        The network's classes, in the order of its outputs.
    scores : Tensor, (k, classes)
        The network's logits for an image that is full of the factor
        (:mod:`deepff.meaning.class_names`).
    names : tuple of str or None, k of them
        The class that stands out; None where none does.
    scale : float or None
        Where the classes are words, what their cosines were multiplied with to be logits.
    """

    labels: tuple[str, ...]
    scores: Tensor
    names: tuple[str | None, ...]
    scale: float | None = None

    @property
    def likeness(self) -> Tensor | None:
        """Where the classes are words, the cosine of each factor with each word: (k, words).

        The factor is carried through what follows the layer to where images and words are compared.
        """
        return None if self.scale is None else self.scores / self.scale

    def best(self, n: int = 5) -> list[list[tuple[str, float]]]:
        """For each factor the ``n`` classes of the highest probability, with it, in [0, 1]."""
        probabilities, indices = self.scores.softmax(1).topk(min(n, len(self.labels)), dim=1)
        return [
            [(self.labels[i], p) for i, p in zip(row, values, strict=True)]
            for row, values in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]
