"""Images that are added to a result, and the labels that it has."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from deepff.app.edits import name_factor, set_status
from deepff.app.label_file import LabelStore, load_labels
from deepff.discovery.apply import apply, extend
from deepff.discovery.discover import discover
from deepff.images.image_files import find_images
from deepff.images.image_set import resolve_images
from deepff.networks.loading import load_backbone
from deepff.options import RegionOptions
from deepff.regions.regions import find_regions
from deepff.report.load import load

GROUP = "021 Elephants-safari June 2008-timd2000"


def test_added_images_leave_the_others_as_they_were(data_root: Path, tmp_path: Path) -> None:
    files = find_images(data_root / "icoseg" / "images" / GROUP)[:6]
    result = discover(files[:4], 3, size=224)
    result.object = discover(files[:4], recipe="contrast", size=224)
    result.save(tmp_path / "result")
    saved = load(tmp_path / "result")
    store = LabelStore(tmp_path / "result", saved)
    store.edit(0, lambda labels: name_factor(labels, 1, "ear"))
    store.edit(1, lambda labels: set_status(labels, saved.names[2], "skipped"))

    grown = extend(saved, files[4:])
    assert grown.names == [file.name for file in files]
    n_rows = len(saved.coefficients)
    assert torch.equal(grown.coefficients[:n_rows], saved.coefficients)
    new = apply(saved.bank, files[4:])
    torch.testing.assert_close(grown.coefficients[n_rows:], new.coefficients)
    assert grown.object is not None and saved.object is not None
    before, after = saved.object.factorization(1), grown.object.factorization(1)
    assert before.probabilities is not None and after.probabilities is not None
    n_cells = len(before.probabilities.coefficients)
    assert torch.equal(
        after.probabilities.coefficients[:n_cells], before.probabilities.coefficients
    )
    assert len(after.probabilities) == 6

    # Thresholds over the set are those of the images that the factors were found in.
    options = RegionOptions("percentile", 75)
    alone = find_regions(replace(saved, applied=saved.bank), 3, options)
    for one, other in zip(alone, find_regions(grown, 3, options), strict=False):
        assert torch.equal(one.masks, other.masks)

    grown.save(tmp_path / "result")
    again = load(tmp_path / "result")
    assert again.names == grown.names
    labels = load_labels(tmp_path / "result", again)
    assert labels.parts[1] == "ear" and labels.image(saved.names[2]).status == "skipped"


def test_added_images_are_drawn_where_the_network_responds() -> None:
    # Five convolutions of stride 2, whose cells respond half a cell off the pixels that they cover.
    layers = [
        nn.Conv2d(3 if i == 0 else 1, 1, 3, stride=2, padding=1, bias=False) for i in range(5)
    ]
    for layer in layers:
        nn.init.constant_(layer.weight, 0.1)
    network = nn.Sequential(*layers).eval()
    backbone = load_backbone(network, mean=(0, 0, 0), std=(1, 1, 1), device="cpu")
    photo = np.zeros((448, 448, 3), np.uint8)
    photo[208:240, 208:240] = 255
    result = discover([photo, photo], 1, model=backbone)
    grown = extend(result, resolve_images([photo]), model=backbone)
    pixels = torch.arange(448) + 0.5
    for heatmap in grown.heatmaps:
        centers = [heatmap[0].sum(axis) @ pixels / heatmap.sum() for axis in (0, 1)]
        assert [round(float(center)) for center in centers] == [224, 224]
