"""Pictures of the images on which a method does worst, the paper's recipe and contrast beside."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from deepff.evaluation.predictions import (
    CONTRAST,
    CONTRAST_CLASSIFIER,
    CONTRAST_CRF,
    CONTRAST_UNREFINED,
    DFF,
    DFF_CRF,
)
from deepff.features.activations import ImageRecord
from deepff.report.figures import read_photo
from deepff.report.region_pictures import region_picture

N_SHOWN = 3
_COLUMNS = (DFF, DFF_CRF, CONTRAST_UNREFINED, CONTRAST_CRF, CONTRAST_CLASSIFIER, CONTRAST)


class Poorest:
    """The images of a set with the lowest scores of its last column's method.

    The columns are the paper's and the recipe contrast's of the methods that there are.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, ImageRecord, dict[str, Tensor]]] = []

    def add(
        self, image: ImageRecord, masks: Mapping[str, Tensor], scores: Mapping[str, float]
    ) -> None:
        """Look at one image: by method its mask (1, H, W) and its score."""
        shown = {method: masks[method] for method in _COLUMNS if method in masks}
        entry = (scores[list(shown)[-1]], image, shown)
        self._kept = sorted([*self._kept, entry], key=lambda kept: kept[0])[:N_SHOWN]

    def caption(self, name: str) -> str:
        """What the picture shows."""
        columns = list(self._kept[0][2])
        scores = ", ".join(f"{score:.2f}" for score, _, _ in self._kept)
        return (
            f"{name}, the images with the lowest IoU ({columns[-1]}: {scores}), from left to "
            f"right: {'; '.join(columns)}"
        )

    def picture(self) -> np.ndarray:
        """One row an image, one column a method: uint8 (H, W, 3)."""
        rows = []
        for _, image, masks in self._kept:
            photo, _ = read_photo(image)
            panels = [region_picture(photo, mask[0].int().cpu().numpy()) for mask in masks.values()]
            rows.append(np.concatenate(panels, axis=1))
        width = max(row.shape[1] for row in rows)
        padded = [
            np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255)
            for row in rows
        ]
        return np.concatenate(padded)
