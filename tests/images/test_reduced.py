"""Images at a reduced size: the same whether a step before has read them or not."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from deepff.images import image_set
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import read_and_reduce, read_reduced


def written(path: Path, height: int, width: int, seed: int) -> Path:
    """A file of smooth noise, in the format that its name says."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8))
    coarse.resize((width, height), Image.Resampling.BICUBIC).save(path)
    return path


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    height=st.integers(1, 1200),
    width=st.integers(1, 1200),
    side=st.integers(16, 600),
    suffix=st.sampled_from([".jpg", ".png"]),
    seed=st.integers(0, 2**32),
)
def test_what_the_network_decoded_gives_the_same_reduced_image(
    tmp_path: Path, height: int, width: int, side: int, suffix: str, seed: int
) -> None:
    first = written(tmp_path / f"first-{seed}{suffix}", height, width, seed)
    again = tmp_path / f"again-{seed}{suffix}"
    again.write_bytes(first.read_bytes())
    read_and_reduce(first, (height, width), side, stretch=False)
    kept, read_again = (read_reduced(path, image_set.REDUCED_SIDE) for path in (first, again))
    assert kept.size == read_again.size == (height, width)
    torch.testing.assert_close(kept.pixels, read_again.pixels, rtol=0, atol=0)
    assert max(kept.pixels.shape[1:]) == min(image_set.REDUCED_SIDE, max(height, width))


def test_a_file_that_was_changed_is_read_again_and_one_that_is_gone_is_missed(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "photo.png", 40, 60, seed=0)
    before = read_reduced(path, 32)
    written(path, 60, 40, seed=1)
    os.utime(path, ns=(0, 0))
    after = read_reduced(path, 32)
    assert (before.size, after.size) == ((40, 60), (60, 40))
    path.unlink()
    with pytest.raises(UnreadableImageError):
        read_reduced(path, 32)
