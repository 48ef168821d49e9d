"""What a network takes factors for, as data."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class FactorClasses:
    """The classes that a network sees in the factors of one factorization.

    Attributes
    ----------
    labels : tuple of str
        The network's classes, in the order of its outputs.
    scores : Tensor, (k, classes)
        The network's logits for an image that is full of the factor
        (:mod:`deepff.naming.classes`).
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
