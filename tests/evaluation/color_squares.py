"""Images of three squares, for a network whose channels are red, green, blue and always 0.

With k = 3, factors 0, 1 and 2 are exactly the red, green and blue squares.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from deepff.evaluation.tables import Table

SIDE = 16
RED, GREEN, BLUE = (
    (slice(0, 8), slice(0, 8)),
    (slice(0, 8), slice(8, 16)),
    (slice(8, 16), slice(0, 8)),
)
LEFT_OF_RED = (slice(0, 8), slice(0, 4))
BELOW_GREEN = (slice(8, 12), slice(8, 16))


def write_photo(path: Path) -> None:
    """Red, green and blue squares, the brightest first, on black; blocks that JPEG keeps."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    for channel, (square, value) in enumerate([(RED, 255), (GREEN, 200), (BLUE, 150)]):
        pixels[(*square, channel)] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=100, subsampling=0)


def mask(*regions: tuple[slice, slice]) -> np.ndarray:
    """uint8 (SIDE, SIDE), 1 in the regions."""
    drawn = np.zeros((SIDE, SIDE), np.uint8)
    for region in regions:
        drawn[region] = 1
    return drawn


def rows_of(table: Table, origin: str = "this run") -> dict[str, list]:
    """The values of a table's rows by their labels."""
    return {row.label: list(row.values) for row in table.rows if row.origin == origin}


# The first image's ground truth is not what the network sees. Pixels of mask, part and both:
#   head   64, 32 (left half of the red square), 32
#   torso  64, 96 (the green square and 32 below it), 64
#   leg    64, 64 (half of the blue square and 32 next to it), 32
# The second image's is: 64, 64, 64 for each. Over the set:
HEAD = (32 + 64) / (64 + 64)
TORSO = (64 + 64) / (96 + 64)
LEG = (32 + 64) / (96 + 64)
TRUTHS = {
    "000001": [
        mask((slice(0, 8), slice(0, 4))),
        mask(GREEN, BELOW_GREEN),
        mask((slice(12, 16), slice(0, 8)), (slice(12, 16), slice(8, 16))),
    ],
    "000002": [mask(RED), mask(GREEN), mask(BLUE)],
}
