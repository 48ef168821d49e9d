"""What can be told to be wrong before an image is read."""

import numpy as np
import pytest
import torch

import deepff


class Unread:
    """A data set none of whose images may be asked for."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> np.ndarray:
        raise AssertionError("an image was read")


@pytest.mark.parametrize("find", [deepff.discover, deepff.discover_parts])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"n_components": 2000}, "k is 2000, but layer .* has only .* channels"),
        ({"random_state": 2**32}, "from 0 to 2³² − 1"),
        ({"random_state": -1}, "random_state must be a whole number, 0 or more"),
        ({"layer": "no_such_layer"}, "no_such_layer"),
        ({"layer": 5}, "layer is a int; pass its name or its module"),
        ({"layer": torch.nn.ReLU()}, "the layer, a ReLU, is no module of efficientnet_lite0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_told_before_an_image_is_read(find, wrong, said) -> None:
    with pytest.raises(deepff.InputError, match=said):
        find(Unread(), **{"n_components": 2, "size": 64, **wrong})


@pytest.mark.parametrize("images", [None, 5, object()])
def test_what_is_no_images_is_told_in_one_sentence(images: object) -> None:
    with pytest.raises(deepff.InputError, match="give a folder, files, a glob, or images"):
        deepff.discover(images)
