"""The tree over k: each factor linked to the one of the next smaller k that it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from deepff.results.factorization import Factorization


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
