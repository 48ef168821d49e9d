"""The kernels of a set's photographs, which serve several rounds."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from deepff.discovery.set_photos import SetPhotos
from deepff.features.activations import ImageRecord
from deepff.regions.dense_crf import dense_crf, refined_by_kernels
from deepff.regions.refine import photo_of


def test_kernels_of_a_photograph_are_the_dense_crf_s_and_kept(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    record = ImageRecord("a.png", tmp_path / "a.png", (30, 40), (3, 4))
    photos = SetPhotos([record], torch.device("cpu"))
    assert photos.shape(0) == (30, 40)
    kernels = photos.kernels(0)
    assert photos.kernels(0) is kernels
    assert photos.kernels(0, size=20).shape == (15, 20)
    assert torch.equal(photo_of(record, 256), torch.from_numpy(pixels).permute(2, 0, 1) / 255)
    maps = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0))
    expected = dense_crf(pixels, maps)
    assert torch.allclose(refined_by_kernels(kernels, maps[None])[0], expected, atol=1e-5)
