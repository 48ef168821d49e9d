"""Which images are for training, for validation and for the test."""

import random
from collections.abc import Sequence

from deepff.options import SUBSETS


def subsets(names: Sequence[str], split: Sequence[float], seed: int = 0) -> dict[str, str]:
    """Draw the subset of every image: "train", "val" or "test".

    The shares are rounded so that they add up, but a subset that has a share has an image where
    there are enough.

    Parameters
    ----------
    names : sequence of str
        The images' names; their order does not matter.
    split : sequence of 3 float
        The subsets' shares, in any unit.
    seed : int
    """
    drawn = sorted(names)
    random.Random(seed).shuffle(drawn)
    n = len(drawn)
    wanted = [n * share / sum(split) for share in split]
    counts = [round(share) for share in wanted]
    for i, share in enumerate(split[1:], 1):
        if share > 0 and counts[i] == 0 and n > sum(other > 0 for other in split[:i]):
            counts[i] = 1
    while sum(counts[1:]) >= max(n, 1):  # one to train on at the least
        counts[counts.index(max(counts[1:]), 1)] -= 1
    counts[0] = n - sum(counts[1:])
    order = [subset for subset, count in zip(SUBSETS, counts, strict=True) for _ in range(count)]
    return dict(zip(drawn, order, strict=True))
