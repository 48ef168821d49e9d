"""Which images of a set each of several processes has.

The ranks' shares follow each other in the set's order, so the rows of A are those of rank 0, then
those of rank 1, and so on, as :mod:`deepff.factorization` expects them.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

from deepff.images.reading import UnreadableImageError, resized_shape
from deepff.images.sources import SetImage, source_size
from deepff.runtime.distributed import is_distributed, n_ranks, rank


def own_share(files: Sequence[SetImage], size: int) -> list[SetImage]:
    """This rank's images: consecutive ones, with about as many rows of A as another rank's.

    Parameters
    ----------
    files : sequence of ImageFile or ImageItem
        The whole set. The headers of all are read.
    size : int
        The longer side of the resized images, in pixels.
    """
    if not is_distributed():
        return list(files)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        areas = list(pool.map(lambda file: _resized_area(file, size), files))
    return [
        file for file, owner in zip(files, owners(areas, n_ranks()), strict=True) if owner == rank()
    ]


def owners(weights: Sequence[int], n: int) -> list[int]:
    """Which of ``n`` owners has each item, so that their items' weights differ little.

    Items are shared out in order: each goes where its middle lies on the way to the total.
    """
    total = max(1, sum(weights))
    ends = accumulate(weights)
    return [
        min(n - 1, n * (2 * end - weight) // (2 * total))
        for weight, end in zip(weights, ends, strict=True)
    ]


def _resized_area(file: SetImage, size: int) -> int:
    try:
        height, width = resized_shape(*source_size(file.source), size, 1)
    except UnreadableImageError:
        return 0
    return height * width
