"""The tree over k: each factor linked to the one of the next smaller k that it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from deepff.results.factorization import Factorization


@dataclass(frozen=True)
class Link:
    """Where a factor lies among the factors of the next smaller number of factors.

    Attributes
    ----------
    k, child : int
        The factor, by the number of factors and its place among them.
    parent_k, parent : int
        The factor of the smaller number that holds most of the child's mass.
    share : float
        Of the child's mass, how much lies in the parent's cells; in [0, 1].
    chance : float
        Of all cells, how many are the parent's: the share of a child that lies everywhere alike.
    """

    k: int
    child: int
    parent_k: int
    parent: int
    share: float
    chance: float


def cell_labels(coefficients: Tensor) -> Tensor:
    """Which factor each cell is: the arg-max of |H|, each column divided by its root mean square.

    A factor's coefficients are fixed only up to a scale. Unlike the maximum, the root mean square
    does not hang on one cell, and the sign of a signed factor (PCA) does not matter.

    Parameters
    ----------
    coefficients : Tensor, (rows, k)
        H.

    Returns
    -------
    Tensor of int64, (rows,)
        On the CPU: from 0 to k − 1, of equal values the first; −1 where all coefficients are 0.
    """
    magnitudes = coefficients.abs()
    scale = magnitudes.square().mean(0).sqrt().clamp_min(torch.finfo(magnitudes.dtype).tiny)
    strongest, labels = (magnitudes / scale).max(1)
    return labels.masked_fill(strongest == 0, -1).cpu()


def tree(factorizations: Mapping[int, Factorization]) -> list[Link]:
    """Link each factor to the factor of the next smaller k that holds most of its mass.

    The mass of a factor is the sum of its |H| over cells. A cell is the parent's where the parent
    is its label (:func:`cell_labels`), so shares are not changed by the factors' scales. Nothing
    makes factors nest: compare a share with its chance.

    Parameters
    ----------
    factorizations : mapping of int to Factorization
        By k, all of the same rows, as in `Result.factorizations`.

    Returns
    -------
    list of Link
        By k, then by child. The factors of the smallest k are no children, nor is a factor that is
        zero everywhere.
    """
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
    """Each factor's place among k, by k: that of its parent in the tree, for what it has over k.

    Of a parent's children the one of the largest share has its place; the others, and factors
    without a parent, have the first places that are left. Each is a permutation of 0 … k − 1.
    """
    ks = sorted(factorizations)
    places = {ks[0]: list(range(ks[0]))}
    links = sorted(tree(factorizations), key=lambda link: -link.share)
    for before, k in pairwise(ks):
        inherited: dict[int, int] = {}
        for link in links:
            place = places[before][link.parent] if link.k == k else None
            if place is not None and place not in inherited.values():
                inherited[link.child] = place
        left = (place for place in range(k) if place not in inherited.values())
        places[k] = [inherited[j] if j in inherited else next(left) for j in range(k)]
    return places
