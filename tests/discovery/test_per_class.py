"""One factorization per class."""

from html import escape
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from torch import nn

import deepff
from deepff.errors import InputError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


IMAGES = [np.random.default_rng(i).integers(0, 256, (12, 12, 3), np.uint8) for i in range(7)]
LABELS = np.array([10, 2, 10, 2, 2, 10, 10])


def test_each_class_is_what_a_call_for_it_alone_gives_to_the_bit(tmp_path: Path) -> None:
    net = network()
    results = deepff.discover(IMAGES, [1, 2], classes=LABELS, model=net, layer=net[1])
    assert list(results) == [2, 10]  # in natural order
    for label, of_class in results.items():
        images = [image for image, one in zip(IMAGES, LABELS, strict=True) if one == label]
        alone = deepff.discover(images, [1, 2], model=net, layer="1")
        for k in (1, 2):
            assert torch.equal(
                of_class.factorization(k).coefficients, alone.factorization(k).coefficients
            )
            assert torch.equal(
                of_class.factorization(k).components, alone.factorization(k).components
            )
        assert torch.equal(
            of_class.importance(classes=[0]).falls, alone.importance(classes=[0]).falls
        )
    assert results[2].names == ["1", "3", "4"]  # the images keep their names in the set


def test_classes_are_saved_in_a_folder_each_with_a_page_that_links_them(tmp_path: Path) -> None:
    net = deepff.load_backbone(network(), labels=["cow", "dog", "<cat>"])
    labels = ["<cat>" if label == 2 else "a/b.c" for label in LABELS]
    results = deepff.discover(IMAGES, 1, classes=labels, model=net, layer="1")
    folders = results.save(tmp_path / "classes")
    assert set(folders) == {"<cat>", "a/b.c"} and len(set(folders.values())) == 2
    page = (tmp_path / "classes/classes.html").read_text()
    assert "<h2>&lt;cat&gt;</h2>" in page and page.count("3 images") == page.count("4 images") == 1
    for label, folder in folders.items():
        assert folder.parent == tmp_path / "classes" and folder.name in ("<cat>", "a-b.c")
        assert f'href="{quote(folder.name)}/report.html"' in page
        again = deepff.load(folder)
        assert torch.equal(again.components, results[label].components)
    every = deepff.load(tmp_path / "classes", IMAGES, net)
    assert isinstance(every, deepff.ClassResults) and list(every) == list(results)
    measured = every.importance()
    assert measured["<cat>"].labels == ("<cat>",)  # the other is no class of the network
    assert measured["a/b.c"].labels == results["a/b.c"].importance().labels
    assert "Importance for" not in page
    every.save(tmp_path / "classes")  # it may replace itself
    page = (tmp_path / "classes/classes.html").read_text()
    for label, of_class in measured.items():
        again = results[label].importance(classes=of_class.labels)
        assert torch.equal(of_class.falls, again.falls)
        row = of_class.rows()[0]
        assert f"<th>Importance for {escape(of_class.labels[0])}</th>" in page
        assert f'<td class="number">{row["fall"]:.2f}</td>' in page


def test_numbers_stay_numbers_when_classes_are_loaded(tmp_path: Path) -> None:
    results = deepff.discover(IMAGES, 1, classes=LABELS, model=network(), layer="1")
    results.save(tmp_path / "classes")
    again = deepff.load(tmp_path / "classes")
    assert {label: each.names for label, each in again.items()} == {
        label: each.names for label, each in results.items()
    }
    assert list(again) == [2, 10]


@pytest.mark.parametrize("labels", [[], LABELS[:3], ["a"] * 8])
def test_as_many_classes_as_images(labels: list) -> None:
    with pytest.raises(InputError, match=f"there are 7 images and {len(labels)} classes"):
        deepff.discover(IMAGES, 1, classes=labels, model=network(), layer="1")
