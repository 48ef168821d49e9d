"""Paths in any sequence are a list of paths, in its order; images in any form are images."""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from made_images import photograph, save
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from deepff.errors import InputError
from deepff.images import image_set
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import read_pixels, resolve_images

NAMES = ["c.png", "a.png", "b.png"]


def categories(paths: list[str]) -> pd.Series:
    return pd.Series(paths, dtype="category")


@pytest.mark.parametrize(
    "sequence",
    [
        list,
        tuple,
        iter,
        np.array,
        lambda paths: np.array([Path(path) for path in paths], dtype=object),
        pd.Series,
        lambda paths: pd.Series(paths, index=[7, 0, 3]),
        lambda paths: pd.Series(paths, index=["x", "y", "z"], dtype="string"),
        lambda paths: pd.Series([Path(path) for path in paths], index=[2, 1, 0]),
        categories,
        pd.Index,
        pd.array,
    ],
)
def test_paths_keep_their_order_and_names(tmp_path: Path, sequence: Callable) -> None:
    paths = [str(save(photograph(), tmp_path / name)) for name in NAMES]
    assert [image.name for image in resolve_images(sequence(paths))] == NAMES


def test_a_series_of_images_keeps_its_order() -> None:
    photos = [np.full((4, 4, 3), value, np.uint8) for value in (5, 6)]
    first, second = resolve_images(pd.Series(photos, index=[1, 0]))
    assert (first.name, second.name) == ("0", "1")
    assert (first.read()[0, 0, 0], second.read()[0, 0, 0]) == (5, 6)


def test_a_data_frame_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="pass its column of paths"):
        resolve_images(pd.DataFrame({"path": NAMES}))


class Dictionaries(Dataset):
    """As data sets of Hugging Face are: with features, to_list, and an image by name."""

    features: ClassVar[dict] = {"image": "Image", "label": "ClassLabel"}

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict:
        return {"label": index, "image": Image.new("RGB", (6, 4), (index, 9, 200))}

    def to_list(self) -> list:
        raise AssertionError("every image would be in memory")


class Pairs(Dataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        color = torch.tensor([index, 9, 200]) / 255
        return color[:, None, None].expand(3, 4, 6), index


class Stream(IterableDataset):
    """A data set without a length, whose images have a name of their own."""

    def __iter__(self) -> Iterator[dict]:
        return (
            {"photo": row["image"], "label": row["label"]}
            for row in map(Dictionaries().__getitem__, range(5))
        )


@pytest.mark.parametrize(
    "images",
    [
        Dictionaries(),
        [Dictionaries()[i] for i in range(5)],
        (Dictionaries()[i] for i in range(5)),
        Pairs(),
        DataLoader(Pairs(), batch_size=2),
        [batch for batch, _ in DataLoader(Pairs(), batch_size=3)],
        Stream(),
        DataLoader(Stream(), batch_size=None),
    ],
    ids=["dictionaries", "list", "generator", "pairs", "loader", "batches", "stream", "no length"],
)
def test_images_as_programs_hold_them(images) -> None:
    found = resolve_images(images)
    assert [image.name for image in found] == list("01234")
    for index, image in enumerate(found):
        pixels = read_pixels(image.origin)
        assert pixels.shape == (4, 6, 3)
        assert (pixels == [index, 9, 200]).all()


def test_images_without_a_length_are_taken_once_and_kept_on_disk() -> None:
    photos = [np.asarray(photograph(seed=seed)) for seed in range(3)]
    taken = iter([*photos, "no image", torch.zeros(3)])
    with pytest.raises(InputError, match="the list mixes files and images"):
        resolve_images(taken)
    images = resolve_images(iter([*photos, torch.zeros(3)]))
    assert all(isinstance(image.items[image.index].base, np.memmap) for image in images[:3])
    for _ in range(2):
        assert all(np.array_equal(i.read(), p) for i, p in zip(images, photos, strict=False))
    with pytest.raises(UnreadableImageError, match="give"):
        images[3].read()


def test_images_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_set, "CACHED_BYTES", 10 * 96 * 128 * 3)
    with pytest.raises(InputError, match=r"the first 11 images of an iterable .* itertools.islice"):
        resolve_images(cycle([photograph()]))


class Normalized(Pairs):
    """As a transform leaves them, for gray networks as well."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        color, _ = super().__getitem__(index)
        return (color - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None], index


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)


@pytest.mark.parametrize(
    "images",
    [Normalized(), DataLoader(Normalized(), batch_size=2), (Normalized()[i] for i in range(5))],
)
def test_normalized_tensors_are_the_images_that_they_were(images) -> None:
    found = resolve_images(images, (MEAN, STD))
    for index, image in enumerate(found):
        assert (read_pixels(image.origin) == [index, 9, 200]).all()


def test_what_is_no_normalized_tensor_is_told() -> None:
    (image,) = resolve_images([np.zeros((4, 6, 3))], (MEAN, STD))
    with pytest.raises(UnreadableImageError, match=r"normalized images are tensors \(3, H, W\)"):
        image.read()
    (gray,) = resolve_images([torch.full((1, 2, 2), -1.0)], ([0.5], [0.5]))
    assert (gray.read() == 0).all()
