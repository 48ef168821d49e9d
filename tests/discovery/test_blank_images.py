"""Images without content: nothing is marked in them, and they change nothing for the others."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import deepff
from deepff.images.reading import is_blank

PHOTOS = [data.chelsea(), data.astronaut()]


def noisy(color: int, seed: int = 0) -> np.ndarray:
    """A JPEG of one gray value, with noise of 2."""
    noise = np.random.default_rng(seed).integers(-2, 3, (120, 160, 3))
    stream = io.BytesIO()
    Image.fromarray((color + noise).clip(0, 255).astype(np.uint8)).save(stream, "JPEG")
    return np.asarray(Image.open(stream))


BLANK = [
    np.zeros((90, 120, 3), np.uint8),
    np.full((90, 120, 3), 255, np.uint8),
    np.full((90, 120, 3), (200, 30, 40), np.uint8),
    noisy(0),
    noisy(128),
]


@pytest.mark.parametrize("recipe", ["paper", "contrast"])
def test_images_of_one_color_are_left_out_and_change_nothing(recipe: str) -> None:
    alone = deepff.discover(PHOTOS, 1, recipe=recipe, size=96)
    result = deepff.discover([*BLANK, *PHOTOS], 1, recipe=recipe, size=96)
    assert result.names == ["5", "6"]
    assert {file.reason for file in result.skipped} == {
        "one color all over, so there is nothing to find in it"
    }
    assert torch.equal(result.coefficients, alone.coefficients)
    for mine, theirs in zip(result.regions(), alone.regions(), strict=True):
        assert torch.equal(mine.labels, theirs.labels)
    assert deepff.apply(alone.bank, [*PHOTOS, *BLANK]).names == ["0", "1"]
    with pytest.raises(deepff.InputError, match="one color all over"):
        deepff.discover(BLANK, 1, recipe=recipe, size=96)


def as_tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.astype(np.uint8)).permute(2, 0, 1)


def test_dark_and_pale_photographs_have_content() -> None:
    for photo in PHOTOS:
        for strength in (1, 0.2, 0.05):
            assert not is_blank(as_tensor(photo * strength))
            assert not is_blank(as_tensor(255 - photo * strength))
    night = np.zeros((448, 448, 3))
    night[200:208, 300:308] = 120  # one window
    assert not is_blank(as_tensor(night))
    assert is_blank(as_tensor(np.full((8, 4, 3), 7)))
