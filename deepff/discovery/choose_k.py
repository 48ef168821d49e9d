"""How many factors: the largest k on which two halves of the set agree."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepff.activations.activations import Activations
from deepff.errors import InputError
from deepff.factorization import NMF
from deepff.results.factorization import cell_labels
from deepff.runtime.progress import track

# The agreement from which two halves count as sharing their factors.
AGREED = 0.85
# One split in two is a matter of luck: measured agreements of single splits spread by up to 0.2.
N_SPLITS = 3
# Cells of the whole set that are looked at, which bounds time and memory. Fewer made the factors
# of a half, and so their agreement, visibly worse.
MAX_CELLS = 20_000

Rows = Activations | Sequence[Tensor]
Transform = Callable[[Tensor], Tensor]
Split = tuple[list[Tensor], list[Tensor]]


class Selection(NamedTuple):
    """A number of factors, and the agreement of every k from 2 on that was tried, in [0, 1]."""

    k: int  # the largest that agrees; 1 where none does
    agreements: dict[int, float]


def select_k(
    rows: Rows,
    k_max: int = 6,
    threshold: float = AGREED,
    *,
    cells: Sequence[Tensor] | None = None,
    transform: Transform | None = None,
    estimator: Callable[[int], Any] | None = None,
    random_state: int = 0,
    progress: bool = False,
) -> Selection:
    """Choose k without labels: the largest up to ``k_max`` whose factors two halves agree on, by
    the mean :func:`matched_iou` over three splits. ``rows`` are A, or the rows (cells, c) of each
    image, and ``cells`` which of them count; ``transform`` is applied to sampled rows before."""
    if k_max < 1:
        raise InputError(f"k_max is {k_max}; it must be at least 1")
    if not 0 < threshold <= 1:
        raise InputError(f"an agreement of {threshold:g} is out of range; it is above 0, at most 1")
    estimator = estimator or (lambda k: NMF(k, random_state=random_state))
    splits = _splits(rows, cells, transform, random_state)
    limits = [sum(map(len, half)) for halves in splits for half in halves]
    k_max = min(k_max, splits[0][0][0].shape[1], *limits)
    agreements = {}
    with track("choosing k", max(k_max - 1, 0), unit="runs", enabled=progress) as advance:
        for k in range(2, k_max + 1):
            agreements[k] = _mean_agreement(splits, k, estimator)
            advance(1)
    agreed = [k for k, value in agreements.items() if value >= threshold]
    return Selection(max(agreed, default=1), agreements)


def matched_iou(labels: Tensor, others: Tensor, k: int) -> float:
    """Mean IoU of two labelings, (cells,) of 0 to k − 1 or −1 for none, matched one to one so that
    it is largest; a label that no cell has counts 0."""
    from scipy.optimize import linear_sum_assignment

    # Row and column 0 count the cells without a label, which are in no intersection.
    pairs = (labels + 1) * (k + 1) + others + 1
    counts = torch.bincount(pairs, minlength=(k + 1) ** 2).view(k + 1, k + 1).numpy()
    intersection = counts[1:, 1:]
    union = counts.sum(1)[1:, None] + counts.sum(0)[None, 1:] - intersection
    ious = intersection / np.maximum(union, 1)
    return float(ious[linear_sum_assignment(ious, maximize=True)].mean())


def _mean_agreement(splits: list[Split], k: int, estimator: Callable[[int], Any]) -> float:
    values = []
    for first, second in splits:
        labels, others = (
            cell_labels(estimator(k).fit(half).transform(first + second))
            for half in (first, second)
        )
        values.append(matched_iou(labels, others, k))
    return float(np.mean(values))


def _splits(
    rows: Rows, cells: Sequence[Tensor] | None, transform: Transform | None, random_state: int
) -> list[Split]:
    """The set's images in two halves, `N_SPLITS` times."""
    whole = rows.image_rows if isinstance(rows, Activations) else list(rows)
    indices = (
        [torch.arange(len(image)) for image in whole]
        if cells is None
        else [chosen.cpu().nonzero()[:, 0] for chosen in cells]
    )
    with_rows = [pair for pair in zip(whole, indices, strict=True) if len(pair[1])]
    if len(with_rows) < 2:
        raise InputError(
            "k is chosen by comparing two halves of the images, but there "
            f"{'is 1 image' if with_rows else 'are 0 images'} with activations; use two or more "
            "images, or give a number for k"
        )
    generator = torch.Generator().manual_seed(random_state)
    images = _sampled(with_rows, generator)
    if transform is not None:
        images = [transform(image) for image in images]
    splits = []
    for _ in range(N_SPLITS):
        order = torch.randperm(len(images), generator=generator).tolist()
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        splits.append(([images[i] for i in first], [images[i] for i in second]))
    return splits


def _sampled(images: Sequence[tuple[Tensor, Tensor]], generator: torch.Generator) -> list[Tensor]:
    """The same share of each image's rows at its indices, at least one: about MAX_CELLS in all."""
    share = MAX_CELLS / sum(len(indices) for _, indices in images)
    sampled = []
    for rows, indices in images:
        if share < 1:
            n = max(1, round(share * len(indices)))
            indices = indices[torch.randperm(len(indices), generator=generator)[:n].sort().values]
        sampled.append(rows if len(indices) == len(rows) else rows[indices.to(rows.device)])
    return sampled
