"""What the recipe contrast is worth beyond the tables of `deepff benchmark`.

    python benchmarks/objects.py DATA [--only bank | separation] [--cache FOLDER]

DATA holds icoseg/, VOCdevkit/ and car_parts/.

Bank: of each group of iCoseg every other image makes a bank, which finds the object in the others
(set-wide IoU).

Separation: how far the network tells the inside of images from their border, on the coarser layer
of the recipe, on a ReLU layer and a signed one: of the groups, of at most 24 images of each class
of VOC 2007, of the cars, and of what has no object that the border could tell: the middle of
annotated boxes, and pieces of images beside all boxes.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from signed_objects import thinned

import deepff
from deepff.activations.extraction import extract_layers
from deepff.discovery.contrast import border_contrast
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco
from deepff.evaluation.datasets.ground_truth import GroundTruthImage
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.datasets.pascal import VOC_CLASSES, load_voc
from deepff.evaluation.metrics import count_overlaps, iou
from deepff.images.image_set import ImageItem, read_pixels
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone
from deepff.networks.loading import load_backbone

COARSER = ("blocks.6.0.bn1", "blocks.6.0:signs")
FILLED = ("cat", "dog", "car", "person", "horse", "bus")
LEAST_SIDE = 120  # of a crop, in pixels
MIDDLE = 0.8  # of a box, in each direction


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=["bank", "separation"])
    parser.add_argument("--cache", type=Path, help="keep activations here for another run")
    return parser.parse_args()


def banks(data: Path, backbone: Backbone, cache: Path | None) -> None:
    """Print a row a group, and their mean."""
    print("| group | images of the bank | the others | IoU |\n|---|--:|--:|--:|")
    values = []
    for group in load_icoseg(data / "icoseg"):
        half, others = group.images[::2], group.images[1::2]
        found = deepff.discover(
            [item.image for item in half], model=backbone, recipe="contrast", cache=cache
        )
        applied = deepff.apply(found.bank, [item.image for item in others], model=backbone)
        masks = (regions.masks for regions in applied.regions())
        labels = (item.labels() for item in others)
        value = float(iou(count_overlaps(zip(masks, labels, strict=True), 1))[0, 1])
        values.append(value)
        print(f"| {group.name[:24]} | {len(half)} | {len(others)} | {value:.3f} |", flush=True)
    print(f"| mean | – | – | {statistics.mean(values):.3f} |\n")


def filled(item: GroundTruthImage, name: str) -> list[np.ndarray]:
    """The middle of the largest box of a class, where it is large enough."""
    pixels = read_pixels(item.image.path)
    boxes = item.boxes_of(name)
    left, top, right, bottom = max(boxes, key=lambda b: (b[2] - b[0]) * (b[3] - b[1]))
    x, y = (right - left) * (1 - MIDDLE) / 2, (bottom - top) * (1 - MIDDLE) / 2
    return large([pixels[round(top + y) : round(bottom - y), round(left + x) : round(right - x)]])


def beside(item: GroundTruthImage) -> list[np.ndarray]:
    """The largest piece at the left, the right, above or below all boxes, if large enough."""
    pixels = read_pixels(item.image.path)
    boxes = np.array([box.coordinates for box in item.boxes]).round().astype(int)
    left, top = boxes[:, :2].min(0)
    right, bottom = boxes[:, 2:].max(0)
    pieces = [pixels[:, :left], pixels[:, right:], pixels[:top], pixels[bottom:]]
    return sorted(large(pieces), key=lambda piece: -piece.size)[:1]


def large(pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Those whose sides are long enough."""
    return [piece for piece in pieces if min(piece.shape[:2]) >= LEAST_SIDE]


def separations(data: Path, backbone: Backbone) -> None:
    """Print the least and the largest separation of each kind of set."""
    voc = [thinned(x, 24) for x in load_voc(data / "VOCdevkit", year=2007, classes=VOC_CLASSES)]
    cars = load_coco(data / "car_parts", merge=CAR_PARTS)
    sets = [*load_icoseg(data / "icoseg"), *voc, cars]
    kinds = {f"{len(sets)} sets with an object": [[x.image for x in one.images] for one in sets]}
    crops = []
    for one in load_voc(data / "VOCdevkit", year=2007, classes=FILLED):
        pieces = [crop for x in one.images for crop in filled(x, one.name)]
        crops.append(as_items(pieces[:24]))
    kinds[f"the middle of boxes of {', '.join(FILLED)}"] = crops
    images = {x.image.name: x for one in voc for x in one.images}.values()
    pieces = [crop for x in images for crop in beside(x)]
    kinds["four sets of pieces beside all boxes"] = [as_items(pieces[n::4][:24]) for n in range(4)]
    layer_map = map_layers(backbone)
    layers = [layer_map.resolve(path) for path in COARSER]
    print("| | images | ReLU | signed |\n|---|--:|--:|--:|")
    for kind, members in kinds.items():
        found = [
            [border_contrast(each).separation for each in extract_layers(one, backbone, layers)[0]]
            for one in members
        ]
        spans = [f"{min(x):.3f} to {max(x):.3f}" for x in zip(*found, strict=True)]
        print(f"| {kind} | {sum(map(len, members))} | {' | '.join(spans)} |", flush=True)
    print()


def as_items(pieces: Sequence[np.ndarray]) -> list[ImageItem]:
    """Pixels as images of a set."""
    return [ImageItem(pieces, index, f"{index}") for index in range(len(pieces))]


def main() -> None:
    """Print what was asked for."""
    options = arguments()
    backbone = load_backbone()
    if options.only in (None, "bank"):
        banks(options.data, backbone, options.cache)
    if options.only in (None, "separation"):
        separations(options.data, backbone)


if __name__ == "__main__":
    sys.exit(main())
