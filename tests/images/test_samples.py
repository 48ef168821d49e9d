"""The sample set: each subject in several framings, found by one factor wherever it is."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deepff
from deepff.images.samples import FRAMINGS, Framing, photographs, sample_image, sample_images


def gradient() -> Image.Image:
    """Columns 0 to 9 have the values 0, 20, …, 180."""
    return Image.fromarray(np.tile(np.arange(0, 200, 20, np.uint8)[:, None], (6, 1, 3)))


def test_a_framing_crops_mirrors_and_lightens() -> None:
    framed = Framing("", box=(0.2, 0.5, 0.7, 1.0), mirrored=True, brightness=0.5).apply(gradient())

    assert np.asarray(framed)[..., 0].tolist() == [[60, 50, 40, 30, 20]] * 3


def test_a_framing_turns_counter_clockwise() -> None:
    photo = np.zeros((5, 5, 3), np.uint8)
    photo[0, 2] = 255

    turned = np.asarray(Framing("", turned=90).apply(Image.fromarray(photo)))

    assert turned[2, 0].tolist() == [255] * 3 and turned.sum() == 3 * 255


def test_the_sample_set_holds_eight_images_of_four_photographs() -> None:
    items = sample_images()

    assert [item.name for item in items] == list(FRAMINGS)
    shapes = {item.name: item.read().shape for item in items}
    assert shapes["flower"] == (427, 640, 3)
    assert shapes["flower, turned and darker"] == (372, 525, 3)
    assert shapes["flower and cup"] == (400, 450 + 420, 3)
    assert set(photographs()) == {"flower.jpg", "china.jpg", "rocket.jpg", "coffee.png"}
    assert np.array_equal(sample_image("flower").read(), items[0].read())
    assert sample_image("0") is None


@pytest.fixture(scope="module")
def result() -> deepff.Result:
    return deepff.discover(sample_images(), 4)


def test_one_factor_follows_each_subject_from_image_to_image(result: deepff.Result) -> None:
    strongest = {}
    for index, name in enumerate(result.names):
        maps = result.heatmaps.normalized(index)
        if " and cup" not in name:
            strongest[name] = int(maps.mean((1, 2)).argmax())
            continue
        pieces = np.array_split(np.asarray(maps), 2, axis=2)
        for subject, piece in zip(name.split(" and "), pieces, strict=True):
            strongest[f"{subject}, shared"] = int(piece.mean((1, 2)).argmax())

    of_subject: dict[str, set[int]] = {}
    for name, factor in strongest.items():
        of_subject.setdefault(name.split(",")[0], set()).add(factor)
    assert {subject: len(factors) for subject, factors in of_subject.items()} == dict.fromkeys(
        ("flower", "temple", "rocket", "cup"), 1
    )
    assert len(set.union(*of_subject.values())) == 4
    # ImageNet has neither dahlias nor temples of this kind.
    names = {subject: result.factor_names[j] for subject, (j,) in of_subject.items()}
    assert names == {"flower": None, "temple": None, "rocket": "missile", "cup": "espresso"}


def test_a_photograph_that_is_not_installed_is_named() -> None:
    with pytest.raises(deepff.InputError, match=r"none.jpg of scikit-image or scikit-learn is not"):
        photographs(["coffee.png", "none.jpg"])


def test_a_saved_result_of_the_sample_set_reads_its_photographs_again(
    result: deepff.Result, tmp_path: Path
) -> None:
    result.save(tmp_path / "result")

    loaded = deepff.load(tmp_path / "result")

    for image, item in zip(loaded.images, sample_images(), strict=True):
        assert np.array_equal(image.read(), item.read())
