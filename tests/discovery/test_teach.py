"""The object's classifier, taught by masks that somebody has looked at."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deepff.discovery.discover import discover
from deepff.discovery.teaching import teach_object
from deepff.errors import InputError
from deepff.images.image_files import find_images
from deepff.result import Result
from deepff.results.sampling import cell_means

GROUP = "021 Elephants-safari June 2008-timd2000"


@pytest.fixture(scope="module")
def whole(data_root: Path) -> Result:
    files = find_images(data_root / "icoseg" / "images" / GROUP)[:4]
    return discover(files, recipe="contrast", size=224)


@pytest.fixture(scope="module")
def truth(data_root: Path, whole: Result) -> np.ndarray:
    stem = Path(whole.names[0]).stem
    path = data_root / "icoseg" / "ground_truth" / GROUP / f"{stem}.png"
    return np.asarray(Image.open(path)) > 0


def likelihood(cells: torch.Tensor, truth: np.ndarray) -> float:
    """The mean logarithm of how likely the truth is on cells (h, w)."""
    object_ = cell_means(torch.from_numpy(truth)[None].float(), tuple(cells.shape))[0]
    likely = cells.clamp(1e-6, 1 - 1e-6)
    return float((object_ * likely.log() + (1 - object_) * (1 - likely).log()).mean())


def test_a_mask_teaches_its_image_and_the_others_the_same(whole: Result, truth: np.ndarray) -> None:
    before = whole.factorization(1).probabilities
    assert before is not None
    found = teach_object(whole, {whole.names[0]: truth})
    assert list(found) == whole.names
    assert [tuple(cells.shape) for cells in found.values()] == before.grids
    first = found[whole.names[0]]
    assert likelihood(first, truth) > likelihood(before.grid(0)[0], truth)
    # Elephants stay elephants where nobody said a word.
    for index, name in enumerate(whole.names[1:], 1):
        one, other = found[name] >= 0.5, before.grid(index)[0] >= 0.5
        assert (one & other).sum() / (one | other).sum() > 0.8
    again = teach_object(whole, {whole.names[0]: truth})
    assert all(torch.equal(again[name], found[name]) for name in found)

    # Somebody who wants what is around them gets less of them.
    around = teach_object(whole, {whole.names[0]: ~truth})[whole.names[0]]
    assert likelihood(around, ~truth) > likelihood(first, ~truth)


def test_what_cannot_teach_is_refused(whole: Result, truth: np.ndarray) -> None:
    with pytest.raises(InputError, match="no mask of an image of the set"):
        teach_object(whole, {"another.jpg": truth})
    found = replace(whole.factorization(1), classifier=None)
    bare = replace(whole, factorizations={1: found})
    with pytest.raises(InputError, match="no pixel classifier"):
        teach_object(bare, {whole.names[0]: truth})
