"""The recipe contrast on EfficientNet-Lite0's signed layers beside its ReLU layers.

    python benchmarks/signed_objects.py DATA [--only icoseg | voc | cars] [--cache FOLDER]

DATA holds icoseg/, VOCdevkit/ and car_parts/. At most 6 images of each group of iCoseg (set-wide
IoU), 10 of each class of VOC 2007 (CorLoc) and every third car (factor quality of the parts inside
the object), evenly over each.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import deepff
from deepff.activations.extraction import extract_layers
from deepff.discovery.contrast import border_contrast, fused_object, weighable
from deepff.discovery.teaching import Cells, classify_object
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco
from deepff.evaluation.datasets.ground_truth import GroundTruthSet
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.datasets.pascal import VOC_CLASSES, load_voc
from deepff.evaluation.metrics import corloc, count_overlaps, factor_quality, iou
from deepff.evaluation.predictions import (
    Features,
    contrast_finders,
    count_by_variant,
    in_images,
)
from deepff.layers.layer_map import LayerMap, map_layers
from deepff.networks.loading import load_backbone
from deepff.regions.components import component_boxes
from deepff.regions.regions import find_regions

# The layers whose maps are fused, and those of the pixel classifier.
PAIRS = {
    "ReLU": (
        ("blocks.5.0.bn1", "blocks.6.0.bn1"),
        ("blocks.3.0.bn1", "blocks.5.0.bn1", "blocks.6.0.bn1"),
    ),
    "signed": (("blocks.4.2", "blocks.6.0"), ("blocks.2.1", "blocks.4.2", "blocks.6.0")),
}
PART_LAYERS = {"ReLU": "blocks.6.0.bn2", "signed": "blocks.6.0"}
PART_COUNTS = (2, 3, 4)
Judge = Callable[[Features], dict[str, float]]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=["icoseg", "voc", "cars"])
    parser.add_argument("--cache", type=Path, help="keep activations here for another run")
    return parser.parse_args()


def overlap(features: Features) -> dict[str, float]:
    """Set-wide IoU of each step's masks."""
    counts = count_by_variant(features, contrast_finders(features, crf=True))
    return {variant.method: float(iou(found)[0, 1]) for variant, found in counts.items()}


def localized(features: Features) -> dict[str, float]:
    """CorLoc of each step's boxes."""
    boxes: dict[str, list] = {}
    finders = contrast_finders(features, crf=True)
    for found in in_images(features, finders, lambda _, regions: regions):
        for variant, regions in found.items():
            first = [*component_boxes(regions.masks[0]), None][0]
            boxes.setdefault(variant.method, []).append(first)
    truth = [item.boxes_of(features.truth.name) for item in features.truth.images]
    return {method: corloc(own, truth) for method, own in boxes.items()}


def thinned(truth: GroundTruthSet, most: int) -> GroundTruthSet:
    """At most so many images, evenly over the set."""
    return replace(truth, images=truth.images[:: -(-len(truth.images) // most)])


def objects(sets: Sequence[GroundTruthSet], judge: Judge, cache: Path | None) -> None:
    """Print the means over the sets of each step, on each pair of layers."""
    backbone = load_backbone()
    layer_map = map_layers(backbone)
    found: dict[tuple[str, str], list[float]] = {}
    for truth in sets:
        for name in PAIRS:
            features, separation = one_object(truth, layer_map, name, cache)
            for step, value in (judge(features) | {"separation": separation}).items():
                found.setdefault((name, step), []).append(value)
    print(f"{len(sets)} sets, {sum(len(truth.images) for truth in sets)} images")
    for (name, step), values in found.items():
        print(f"{name}, {step}: {statistics.mean(values):.3f} (from {min(values):.3f})", flush=True)


def one_object(
    truth: GroundTruthSet, layer_map: LayerMap, name: str, cache: Path | None
) -> tuple[Features, float]:
    """The object of one set, with its classifier, and the separation."""
    backbone = layer_map.backbone
    fused, of_cells = ([layer_map.resolve(x) for x in names] for names in PAIRS[name])
    fused = weighable(fused)
    layers = list({layer.path: layer for layer in (*fused, *of_cells)}.values())
    extracted, _ = extract_layers([x.image for x in truth.images], backbone, layers, cache=cache)
    by_path = {layer.path: own for layer, own in zip(layers, extracted, strict=True)}
    activations = [by_path[layer.path] for layer in fused]
    contrasts = [border_contrast(A) for A in activations]
    whole = fused_object(activations, [contrast.weights for contrast in contrasts])
    activations = [by_path[layer.path] for layer in of_cells]
    cells = Cells.of(activations)
    whole = classify_object(whole, cells)
    first = by_path[fused[0].path]
    return Features(truth, first, whole), contrasts[-1].separation


def cars(data: Path, cache: Path | None) -> None:
    """Print the factor quality of parts inside the object."""
    truth = load_coco(data / "car_parts", merge=CAR_PARTS)
    truth = thinned(truth, -(-len(truth.images) // 3))
    labels = [item.labels() for item in truth.images]
    files = [item.image for item in truth.images]
    print(f"{len(files)} cars")
    for name, layer in PART_LAYERS.items():
        result = deepff.discover_parts(files, PART_COUNTS, layer=layer, cache=cache)
        for k in PART_COUNTS:
            masks = (regions.masks for regions in find_regions(result, k))
            overlaps = count_overlaps(zip(masks, labels, strict=True), len(truth.part_names))
            print(f"{name}, {result.sources[0].layer}, k = {k}: {factor_quality(overlaps):.3f}")


def main() -> None:
    """Print what was asked for."""
    options = arguments()
    torch.set_num_threads(1)
    if options.only in (None, "icoseg"):
        groups = [thinned(truth, 6) for truth in load_icoseg(options.data / "icoseg")]
        objects(groups, overlap, options.cache)
    if options.only in (None, "voc"):
        folder = options.data / "VOCdevkit"
        sets = [load_voc(folder, year=2007, classes=[name])[0] for name in VOC_CLASSES]
        objects([thinned(truth, 10) for truth in sets], localized, options.cache)
    if options.only in (None, "cars"):
        cars(options.data, options.cache)


if __name__ == "__main__":
    sys.exit(main())
