"""How well masks and boxes match the ground truth.

Masks are compared with label maps as `deepff.evaluation.datasets.ground_truth` defines them.
Everything about a whole set is read off one table of pixel counts, `Overlaps`, filled in one pass
over its images. Column l of the table is label l: column 0 is the background, column i + 1 is part
i. Label maps have one label a pixel, so parts never overlap; masks may, each factor's being
thresholded by itself.

No function returns NaN: what an empty mask or an absent part is worth is said in each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepff.errors import InputError
from deepff.evaluation.datasets.ground_truth import IGNORED, UNNAMED, object_labels

BoxCoordinates = tuple[float, float, float, float]


@dataclass(frozen=True)
class Overlaps:
    """Pixel counts of masks against labels, summed over a set of images.

    Attributes
    ----------
    intersection : ndarray of int64, (k, p + 1)
        Pixels of label l that mask j covers.
    predicted : ndarray of int64, (k,)
        Pixels that mask j covers, whatever their label.
    truth : ndarray of int64, (p + 1,)
        Pixels of label l.
    """

    intersection: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray

    def __add__(self, other: "Overlaps") -> "Overlaps":
        return Overlaps(
            self.intersection + other.intersection,
            self.predicted + other.predicted,
            self.truth + other.truth,
        )


def count_overlaps(
    pairs: Iterable[tuple[torch.Tensor | np.ndarray, np.ndarray]], n_parts: int
) -> Overlaps:
    """Count the pixels that masks and labels share, over a set of images.

    Parameters
    ----------
    pairs : iterable of (masks, labels)
        For each image its bool masks (k, H, W) and its label map (H, W). One pair is held in memory
        at a time. Pixels labelled 255 are left out; those labelled 254 count as pixels of a mask
        but are in no column.
    n_parts : int
        p: the labels are 0 (background) to p.

    Raises
    ------
    InputError
        There is no image, masks and labels differ in size, images differ in their number of masks,
        or a label is above p.
    """
    total: Overlaps | None = None
    for masks, labels in pairs:
        counts = _count_image(_as_bool(masks), labels, n_parts)
        if total is None:
            total = counts
        elif len(counts.predicted) != len(total.predicted):
            raise InputError(
                f"one image has {len(counts.predicted)} masks, the ones before it have "
                f"{len(total.predicted)}"
            )
        else:
            total = total + counts
    if total is None:
        raise InputError("there is no image to compare masks with ground truth on")
    return total


def coverage(overlaps: Overlaps) -> np.ndarray:
    """Share of each label's pixels that each mask covers.

    Cov(f, p) = |Σᵢ B(f, i) ∩ P(p, i)| / |Σᵢ P(p, i)|, sums over the images i (Collins et al., ECCV
    2018, automatic labelling of parts).

    Returns
    -------
    ndarray of float, (k, p + 1)
        In [0, 1]; 0 for a label that no image shows.
    """
    return _ratio(
        overlaps.intersection, np.broadcast_to(overlaps.truth, overlaps.intersection.shape)
    )


def association(overlaps: Overlaps, threshold: float = 0.5) -> np.ndarray:
    """Which labels belong to which mask: those it covers more than `threshold` of.

    Several labels may belong to one mask, and where masks overlap, one label to several (Collins et
    al., ECCV 2018, who use 0.5).

    Returns
    -------
    ndarray of bool, (k, p + 1)
    """
    return coverage(overlaps) > threshold


def iou(overlaps: Overlaps) -> np.ndarray:
    """Set-wide intersection over union of each mask with each label.

    |Σᵢ B ∩ P| / |Σᵢ B ∪ P|: counts are summed over the images i before dividing, so that large
    regions weigh more than small ones (Collins et al., ECCV 2018).

    Returns
    -------
    ndarray of float, (k, p + 1)
        In [0, 1]; 0 where neither mask nor label has a pixel in any image.
    """
    union = overlaps.predicted[:, None] + overlaps.truth - overlaps.intersection
    return _ratio(overlaps.intersection, union)


def associated_iou(overlaps: Overlaps, associated: np.ndarray) -> np.ndarray:
    """Set-wide intersection over union of each mask with all of its labels together.

    Parameters
    ----------
    overlaps : Overlaps
    associated : ndarray of bool, (k, p + 1)
        As `association` gives it, or by a person.

    Returns
    -------
    ndarray of float, (k,)
        In [0, 1]; 0 for a mask without a label.
    """
    intersection = (overlaps.intersection * associated).sum(axis=1)
    union = overlaps.predicted + associated @ overlaps.truth - intersection
    return _ratio(intersection, union)


def factor_quality(overlaps: Overlaps, n_parts: int | None = None) -> float:
    """Mean over the masks of the set-wide IoU with their best part; the background is not a part.

    Collins et al., ECCV 2018, Figure 5. A factor that marks the background thus scores what it
    shares with a part, which is little, and is not left out of the mean.

    Parameters
    ----------
    overlaps : Overlaps
    n_parts : int, optional
        Labels above are no parts either; by default all are.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    InputError
        There is no part.
    """
    n_parts = overlaps.truth.size - 1 if n_parts is None else n_parts
    if n_parts < 1:
        raise InputError("factor quality needs ground truth of at least one part")
    return float(iou(overlaps)[:, 1 : n_parts + 1].max(axis=1).mean())


def jaccard(mask: torch.Tensor | np.ndarray, labels: np.ndarray) -> float:
    """Intersection over union of a mask with the object in one image.

    J of Rubinstein et al., *Unsupervised Joint Object Discovery and Segmentation in Internet
    Images*, CVPR 2013, who report its mean over the images.

    Parameters
    ----------
    mask : bool, (H, W)
    labels : ndarray, (H, W)
        A label map, of which all parts together are the object, or a bool mask of the object.

    Returns
    -------
    float
        In [0, 1]; 1 where neither mask nor object has a pixel (nothing was there, and nothing was
        found).
    """
    predicted, truth = _judged_pixels(mask, labels)
    union = np.count_nonzero(predicted | truth)
    return np.count_nonzero(predicted & truth) / union if union else 1.0


def box_iou(boxes: Sequence[BoxCoordinates], others: Sequence[BoxCoordinates]) -> np.ndarray:
    """Intersection over union of every box with every other.

    Everingham et al., *The Pascal Visual Object Classes (VOC) Challenge*, IJCV 2010, Eq. 3.

    Parameters
    ----------
    boxes, others : sequence of (x_min, y_min, x_max, y_max)
        n and m boxes along pixel edges.

    Returns
    -------
    ndarray of float, (n, m)
        In [0, 1]; 0 for boxes without area.
    """
    a = np.asarray(boxes, float).reshape(-1, 1, 4)
    b = np.asarray(others, float).reshape(1, -1, 4)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    intersection = sides.clip(min=0).prod(axis=-1)
    areas = [(box[..., 2:] - box[..., :2]).clip(min=0).prod(axis=-1) for box in (a, b)]
    return _ratio(intersection, areas[0] + areas[1] - intersection)


def corloc(
    predicted: Sequence[BoxCoordinates | None], truth: Sequence[Sequence[BoxCoordinates]]
) -> float:
    """Share of the images in which the object was localized.

    An image counts if its box has an IoU above 0.5 with some ground-truth box of the class
    (Deselaers et al., *Weakly Supervised Localization and Learning with Generic Knowledge*, IJCV
    2012).

    Parameters
    ----------
    predicted : sequence of box or None
        One an image; None where nothing was found, which is a miss.
    truth : sequence of sequences of boxes
        All boxes of the class in each image.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    InputError
        There is no image.
    """
    if not predicted:
        raise InputError("there is no image to localize an object in")
    hits = [
        box is not None and bool((box_iou([box], boxes) > 0.5).any())
        for box, boxes in zip(predicted, truth, strict=True)
    ]
    return sum(hits) / len(hits)


def _count_image(masks: np.ndarray, labels: np.ndarray, n_parts: int) -> Overlaps:
    if masks.ndim != 3 or masks.shape[1:] != labels.shape:
        raise InputError(
            f"masks of shape {masks.shape} do not fit labels of shape {labels.shape}: "
            "masks should be (k, H, W) and labels (H, W)"
        )
    truth = np.bincount(labels.ravel(), minlength=256)
    if truth[n_parts + 1 : UNNAMED].any():
        raise InputError(f"a label map holds a label above {n_parts}, the number of parts")
    covered = np.stack([np.bincount(labels[mask], minlength=256) for mask in masks])
    return Overlaps(
        intersection=covered[:, : n_parts + 1],
        predicted=covered.sum(axis=1) - covered[:, IGNORED],
        truth=truth[: n_parts + 1],
    )


def _judged_pixels(
    mask: torch.Tensor | np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    predicted, whole = _as_bool(mask), object_labels(labels)
    if predicted.shape != whole.shape:
        raise InputError(f"a mask of shape {predicted.shape} does not fit labels of {whole.shape}")
    judged = whole != IGNORED
    return predicted[judged], whole[judged] == 1


def _as_bool(masks: torch.Tensor | np.ndarray) -> np.ndarray:
    return np.asarray(masks.cpu() if isinstance(masks, torch.Tensor) else masks, dtype=bool)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator > 0)
