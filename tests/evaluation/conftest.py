"""Fixtures of the tables: a network that sees colors, and a PASCAL-Part of colored squares."""

from pathlib import Path

import pytest
from color_squares import SIDE, TRUTHS, write_photo
from pascal_part_files import write_parts
from torch import nn

from deepff.evaluation.predictions import Network
from deepff.networks.loading import load_backbone


@pytest.fixture(scope="session")
def colors() -> Network:
    convolution = nn.Conv2d(3, 4, 1, bias=False)
    nn.init.dirac_(convolution.weight)
    network = nn.Sequential(convolution, nn.ReLU()).eval()
    backbone = load_backbone(network, mean=(0, 0, 0), std=(1, 1, 1))
    return Network.of(backbone, "1", SIDE)


@pytest.fixture
def pascal_part(tmp_path: Path) -> Path:
    folder = tmp_path / "VOC2010"
    (folder / "Annotations").mkdir(parents=True)
    for image_id, (head, torso, leg) in TRUTHS.items():
        write_photo(folder / "JPEGImages" / f"{image_id}.jpg")
        parts = [("head", head), ("torso", torso), ("lfuleg", leg)]
        objects = [("cow", head | torso | leg, parts)]
        write_parts(folder / "Annotations_Part" / f"{image_id}.mat", objects)
        (folder / "Annotations" / f"{image_id}.xml").write_text("<annotation></annotation>")
    sets = folder / "ImageSets/Main"
    sets.mkdir(parents=True)
    (sets / "cow_trainval.txt").write_text("000001 1\n000002 1\n")
    return folder
