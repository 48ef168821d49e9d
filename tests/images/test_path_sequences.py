"""Paths in any sequence are a list of paths, in its order."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_images import photograph, save

from deepff.errors import InputError
from deepff.images.image_set import resolve_images

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
    with pytest.raises(InputError, match="give the column that holds their paths"):
        resolve_images(pd.DataFrame({"path": NAMES}))
