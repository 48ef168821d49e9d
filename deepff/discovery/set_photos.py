"""The photographs of a set as the dense CRF sees them, for all that is taught by them."""

from collections.abc import Sequence

import torch

from deepff.features.activations import ImageRecord
from deepff.regions.dense_crf import DENSE_CRF_SIZE, CrfKernels
from deepff.regions.guided_crf import working_shape
from deepff.regions.pixel_classifier import classes_kernels
from deepff.regions.refine import photo_of

# Bytes of kernels that are kept: of 100 images at the size of teaching, and half as many at the
# full one.
_MOST_KEPT = 2**28


class SetPhotos:
    """The kernels of a rank's images, kept for the next round and the next k.

    Parameters
    ----------
    images : sequence of ImageRecord
    device : torch.device
        Where the CRF works.
    """

    def __init__(self, images: Sequence[ImageRecord], device: torch.device) -> None:
        self._images = images
        self._device = device
        self._kept: dict[tuple[int, int], CrfKernels] = {}
        self._n_bytes = 0

    def shape(self, index: int) -> tuple[int, int]:
        """Of an image at the dense CRF's size."""
        return working_shape(self._images[index].size, DENSE_CRF_SIZE)

    def kernels(self, index: int, size: int = DENSE_CRF_SIZE) -> CrfKernels:
        """Of an image, by :func:`deepff.regions.pixel_classifier.classes_kernels` at a size.

        What comes first is kept until memory is used up, as each round asks in the same order.
        """
        if (index, size) in self._kept:
            return self._kept[index, size]
        photo = photo_of(self._images[index], DENSE_CRF_SIZE).to(self._device)
        found = classes_kernels(photo[None], size)
        if self._n_bytes + found.n_bytes <= _MOST_KEPT:
            self._kept[index, size] = found
            self._n_bytes += found.n_bytes
        return found
