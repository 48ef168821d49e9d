"""What a factor is called by what it covers: the paper's Table 4 and the bottom of its Table 1."""

from collections.abc import Sequence
from dataclasses import dataclass

from deepff.evaluation.metrics import Overlaps, associated_iou, association

BACKGROUND_LABEL = "background"


@dataclass(frozen=True)
class LabelledFactor:
    """A factor, what belongs to it, and its IoU with all of that together.

    Attributes
    ----------
    method : str
    k, factor : int
    labels : tuple of str
        Parts, things beside the object, or the background alone; none for a factor without a pixel.
    iou : float
        Set-wide, in [0, 1].
    has_parts : bool
        Whether a part is among the labels.
    """

    method: str
    k: int
    factor: int
    labels: tuple[str, ...]
    iou: float
    has_parts: bool


def label_factors(
    overlaps: Overlaps,
    method: str,
    k: int,
    part_names: Sequence[str],
    beside: Sequence[str] = (),
) -> list[LabelledFactor]:
    """The labels of each factor by coverage above one half.

    A factor that nothing belongs to is called background. That is our reading of the paper, where
    every factor has a label, and “background” is one that never has another beside it: a mask of a
    quarter of all pixels cannot cover half of a background that is more than half of them.

    Parameters
    ----------
    overlaps : Overlaps
        With the labels of the background, the parts, and what is beside the object.
    method, k
        Kept with each factor.
    part_names : sequence of p strings
    beside : sequence of q strings
        Such as "person": things that are annotated and no part of the object.
    """
    associated = association(overlaps)
    associated[:, 0] = False
    unlabelled = ~associated.any(axis=1) & (overlaps.predicted > 0)
    associated[:, 0] = unlabelled
    names = (BACKGROUND_LABEL, *part_names, *beside)
    ious = associated_iou(overlaps, associated)
    return [
        LabelledFactor(
            method,
            k,
            factor,
            tuple(name for name, own in zip(names, row, strict=True) if own),
            float(value),
            bool(row[1 : len(part_names) + 1].any()),
        )
        for factor, (row, value) in enumerate(zip(associated, ious, strict=True))
    ]
