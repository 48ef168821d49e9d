"""How well masks and boxes match the ground truth.

Masks are compared with label maps as `deepff.evaluation.datasets.ground_truth` defines them.
Everything about a whole set is read from one table of pixel counts, `Overlaps`, filled in one pass
over its images. Label 0 is the background, and label i + 1 is part i. Parts may overlap, and so may
masks, because each factor has its own threshold: so pixels are counted by the labels that they have
together, and a part's pixels are those of all values of the label map that name it.

No function returns NaN: each says what an empty mask or an absent part is worth.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import BACKGROUND, IGNORED, UNNAMED

BoxCoordinates = tuple[float, float, float, float]


@dataclass(frozen=True)
class Overlaps:
    """Pixel counts of masks against labels, summed over a set of images."""

    # What label maps hold, ascending, (m,) uint64; one of several bytes is on several parts.
    values: np.ndarray
    covered: np.ndarray  # pixels of each value that mask j covers, (k, m) int64
    pixels: np.ndarray  # and all, (m,)
    n_parts: int

    def __add__(self, other: "Overlaps") -> "Overlaps":
        values = np.union1d(self.values, other.values)
        covered = np.zeros((len(self.covered), len(values)), np.int64)
        pixels = np.zeros(len(values), np.int64)
        for counts in (self, other):
            places = np.searchsorted(values, counts.values)
            covered[:, places] += counts.covered
            pixels[places] += counts.pixels
        return Overlaps(values, covered, pixels, self.n_parts)

    @property
    def labels(self) -> np.ndarray:
        """The labels of each value, bool (m, p + 1)."""
        labels = np.arange(self.n_parts + 1)
        has_label = (_bytes(self.values)[:, :, None] == labels).any(1)
        has_label[:, 0] = self.values == BACKGROUND
        return has_label

    @property
    def intersection(self) -> np.ndarray:
        """Pixels of label l that mask j covers, (k, p + 1)."""
        return self.covered @ self.labels

    @property
    def predicted(self) -> np.ndarray:
        """Pixels that mask j covers, whatever their label, (k,)."""
        return self.covered.sum(axis=1)

    @property
    def truth(self) -> np.ndarray:
        """Pixels of label l, (p + 1,)."""
        return self.pixels @ self.labels


def count_overlaps(
    pairs: Iterable[tuple[torch.Tensor | np.ndarray, np.ndarray]], n_parts: int
) -> Overlaps:
    """Count the pixels that bool masks (k, H, W) and label maps (H, W) share, over a set of images.
    Pixels labeled 255 are left out; those labeled 254 count as a mask's but have no label."""
    counts = [_count_image(masks, labels, n_parts) for masks, labels in pairs]
    return sum(counts[1:], counts[0])


def coverage(overlaps: Overlaps) -> np.ndarray:
    """Share of each label that each mask covers, Cov(f, p) = |Σᵢ B(f, i) ∩ P(p, i)| / |Σᵢ P(p, i)|
    over the images i, (k, p + 1); 0 for a label never shown (Collins et al., ECCV 2018)."""
    intersection = overlaps.intersection
    return _ratio(intersection, np.broadcast_to(overlaps.truth, intersection.shape))


def association(overlaps: Overlaps) -> np.ndarray:
    """Which labels belong to which mask: those it covers more than half of, bool (k, p + 1)."""
    return coverage(overlaps) > 0.5


def iou(overlaps: Overlaps) -> np.ndarray:
    """Set-wide IoU of each mask with each label, |Σᵢ B ∩ P| / |Σᵢ B ∪ P| over the images i (Collins
    et al. 2018): (k, p + 1); 0 where neither has a pixel."""
    intersection = overlaps.intersection
    return _ratio(intersection, overlaps.predicted[:, None] + overlaps.truth - intersection)


def associated_iou(overlaps: Overlaps, associated: np.ndarray) -> np.ndarray:
    """Set-wide IoU of each mask with all of its labels together, bool (k, p + 1): (k,); 0 for a
    mask without one. A pixel on several of a mask's parts counts once."""
    has_any = associated @ overlaps.labels.T
    intersection = (overlaps.covered * has_any).sum(axis=1)
    return _ratio(intersection, overlaps.predicted + has_any @ overlaps.pixels - intersection)


def factor_quality(overlaps: Overlaps, n_parts: int | None = None) -> float:
    """Mean over the masks of the set-wide IoU with their best part (Collins et al., ECCV 2018,
    Figure 4). A factor that marks the background scores what it shares with a part, which is
    little. Labels above ``n_parts`` are no parts."""
    n_parts = overlaps.n_parts if n_parts is None else n_parts
    return float(iou(overlaps)[:, 1 : n_parts + 1].max(axis=1).mean())


def normalized_mutual_information(counts: np.ndarray) -> float:
    """Mutual information of rows and columns over the mean of their entropies, in [0, 1]: sklearn's
    `normalized_mutual_info_score` of counts (groups, parts); 1 where there is one of each."""
    from scipy.stats import entropy
    from sklearn.metrics import mutual_info_score

    if not counts.any():
        return 0.0
    mean_entropy = (entropy(counts.sum(0)) + entropy(counts.sum(1))) / 2
    if mean_entropy == 0:
        return 1.0
    return float(mutual_info_score(None, None, contingency=counts) / mean_entropy)


def best_iou(box: BoxCoordinates | None, truth: Sequence[BoxCoordinates]) -> float:
    """IoU of a box (x_min, y_min, x_max, y_max) with the nearest of the true ones; 0 without any.
    Everingham et al., *The Pascal Visual Object Classes (VOC) Challenge*, IJCV 2010, Eq. 3."""
    from torchvision.ops import box_iou

    if box is None or not truth:
        return 0.0
    return float(box_iou(*(torch.tensor(x, dtype=torch.float64) for x in ([box], truth))).max())


def corloc(
    predicted: Sequence[BoxCoordinates | None], truth: Sequence[Sequence[BoxCoordinates]]
) -> float:
    """Share of the images whose box has an IoU above 0.5 with a true box; None is a miss (Deselaers
    et al., *Weakly Supervised Localization and Learning with Generic Knowledge*, IJCV 2012)."""
    hits = [best_iou(box, boxes) > 0.5 for box, boxes in zip(predicted, truth, strict=True)]
    return sum(hits) / len(hits)


def _count_image(masks: torch.Tensor | np.ndarray, labels: np.ndarray, n_parts: int) -> Overlaps:
    masks = np.asarray(masks.cpu() if isinstance(masks, torch.Tensor) else masks, dtype=bool)
    if labels.itemsize > 2:  # too many values to count each
        values, labels = np.unique(labels, return_inverse=True)
        labels = labels.reshape(masks.shape[1:])
    else:
        values = np.arange(2 ** (8 * labels.itemsize), dtype=np.uint64)
    pixels = np.bincount(labels.ravel(), minlength=len(values))
    judged = np.flatnonzero((pixels > 0) & (values != IGNORED))
    values = values[judged].astype(np.uint64)
    if (_bytes(values[values != UNNAMED]) > n_parts).any():
        raise InputError(f"a label map holds a label above {n_parts}, the number of parts")
    covered = [np.bincount(labels[mask], minlength=len(pixels))[judged] for mask in masks]
    return Overlaps(values, np.stack(covered), pixels[judged], n_parts)


def _bytes(values: np.ndarray) -> np.ndarray:
    """The labels that values of label maps are made of, (m, 8), the smallest part first, then 0."""
    return values[:, None] >> np.arange(0, 64, 8, dtype=np.uint64) & np.uint64(255)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator > 0)
