"""A factorization of an image set, the classes that a network sees in its factors, and the tree
over k: each factor linked to the one of the next smaller k that it comes from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise

import torch
from torch import Tensor

from deepff.errors import InputError
from deepff.results.classifier import PixelClassifier
from deepff.results.heatmaps import HeatMaps
from deepff.results.known_instances import KnownInstances


@dataclass(frozen=True)
class Factorization:
    """A ≈ H W for one number of factors."""

    components: Tensor  # W (k, c)
    heatmaps: HeatMaps  # the columns of H
    relative_error: float  # ‖A − HW‖ / ‖A‖; NaN where H is a classifier's
    n_iter: int
    classifier: PixelClassifier | None = None  # taught by the regions: one class per factor
    probabilities: HeatMaps | None = None  # the classifier's, on its cells
    known: KnownInstances | None = None  # the instances that objects are known by
    scores: HeatMaps | None = None  # how likely each piece of the objects' maps is one, in [0, 1]
    classes: "FactorClasses | None" = None  # known once the factors were named

    def alone(self, index: int) -> "Factorization":
        """One of several factors that have nothing to do with each other: one kind of thing."""
        return replace(
            self,
            components=self.components[index : index + 1],
            heatmaps=self.heatmaps.factor(index),
            classifier=self.classifier and self.classifier.alone(index),
            probabilities=self.probabilities and self.probabilities.factor(index),
            known=self.known and self.known.alone(index),
            scores=self.scores and self.scores.factor(index),
            classes=self.classes and self.classes.alone(index),
        )

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
    """The classes that a network sees in the factors of one factorization."""

    labels: tuple[str, ...]  # of the network's outputs
    scores: Tensor  # (k, classes): logits for an image that is full of the factor
    names: tuple[str | None, ...]  # of the k factors: the class that stands out, if one does
    scale: float | None = None  # where the classes are words: from cosines to logits

    def alone(self, index: int) -> "FactorClasses":
        """Those of one factor."""
        one = slice(index, index + 1)
        return replace(self, scores=self.scores[one], names=self.names[one])

    def index(self, label: str | int) -> int:
        """The number of a class that is named by its label or number; InputError for another."""
        if isinstance(label, int) and 0 <= label < len(self.labels):
            return label
        if label not in self.labels:
            close = get_close_matches(str(label), self.labels, n=3)
            advice = f"; the closest are {', '.join(close)}" if close else ""
            raise InputError(f"the network has no class {label!r}{advice}")
        return self.labels.index(str(label))

    @property
    def likeness(self) -> Tensor | None:
        """Where the classes are words, the cosine of each factor with each word: (k, words)."""
        return None if self.scale is None else self.scores / self.scale

    def best(self, n: int = 5) -> list[list[tuple[str, float]]]:
        """For each factor the ``n`` classes of the highest probability, with it, in [0, 1]."""
        return self._largest(self.scores.softmax(1), n)

    def nearest_words(self, n: int) -> list[list[tuple[str, float]]]:
        """For each factor the ``n`` words it is most like, with the cosine; none for classes."""
        if self.likeness is None:
            return [[]] * len(self.scores)
        return self._largest(self.likeness, n)

    def _largest(self, scores: Tensor, n: int) -> list[list[tuple[str, float]]]:
        values, indices = scores.topk(min(n, len(self.labels)), dim=1)
        return [
            [(self.labels[i], value) for i, value in zip(*row, strict=True)]
            for row in zip(indices.tolist(), values.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Link:
    """A factor, and the factor of the next smaller number that holds most of its mass."""

    k: int
    child: int  # the factor's index
    parent_k: int
    parent: int
    share: float  # of the child's mass that lies in the parent's cells, in [0, 1]
    chance: float  # share of all cells that are the parent's: what an even child would have


def cell_labels(coefficients: Tensor) -> Tensor:
    """Which factor each cell is, (rows,) int64 on the CPU, or −1: the arg-max of |H|, (rows, k),
    each column divided by its root mean square, as coefficients are fixed only up to a scale."""
    magnitudes = coefficients.abs()
    scale = magnitudes.square().mean(0).sqrt().clamp_min(torch.finfo(magnitudes.dtype).tiny)
    strongest, labels = (magnitudes / scale).max(1)
    return labels.masked_fill(strongest == 0, -1).cpu()


def tree(factorizations: Mapping[int, Factorization]) -> list[Link]:
    """Link each factor to the factor of the next smaller k that holds most of its mass, Σ |H|.
    Nothing makes factors nest: compare a share with its chance. Factors of the smallest k, and
    those that are zero everywhere, are no children. In the order of k, then of the child."""
    links = []
    for (parent_k, coarse), (k, fine) in pairwise(sorted(factorizations.items())):
        labels = cell_labels(coarse.coefficients)
        mass = fine.coefficients.abs().cpu().double()
        held = torch.stack([mass[labels == parent].sum(0) for parent in range(parent_k)])
        total = mass.sum(0)
        for child in total.nonzero().flatten().tolist():
            parent = int(held[:, child].argmax())
            share = float(held[parent, child] / total[child])
            chance = float((labels == parent).double().mean())
            links.append(Link(k, child, parent_k, parent, share, chance))
    return links


def color_slots(factorizations: Mapping[int, Factorization]) -> dict[int, list[int]]:
    """Which color of the palette each factor has, by k: the child of the largest share has its
    parent's, others the first that are left. Each is a permutation of 0 … k − 1."""
    ks = sorted(factorizations)
    slots = {ks[0]: list(range(ks[0]))}
    links = sorted(tree(factorizations), key=lambda link: -link.share)
    for before, k in pairwise(ks):
        inherited: dict[int, int] = {}
        for link in links:
            slot = slots[before][link.parent] if link.k == k else None
            if slot is not None and slot not in inherited.values():
                inherited[link.child] = slot
        left = (slot for slot in range(k) if slot not in inherited.values())
        slots[k] = [inherited[j] if j in inherited else next(left) for j in range(k)]
    return slots
