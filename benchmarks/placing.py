"""Maps drawn where a layer's cells look, beside the same maps over the pixels that cells cover.

    OMP_NUM_THREADS=1 python benchmarks/placing.py ICOSEG [--model efficientnet_lite2] [--cache DIR]

ICOSEG is laid out as ``{images,ground_truth}/<group>/``: set-wide IoU of the object's mask by the
paper's recipe with k = 1, the mean over all groups.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import deepff
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.evaluation.metrics import iou
from deepff.evaluation.predictions import (
    DFF,
    Features,
    Network,
    Variant,
    collect,
    count_by_variant,
    factor_finders,
    factorize,
)


def over_pixels(features: Features) -> Features:
    """The same with every grid over the pixels that its cells cover."""
    images = [replace(image, extent=None) for image in features.activations.images]
    return replace(features, activations=replace(features.activations, images=images))


def score(features: Features) -> float:
    found = {Variant(DFF, 1): factorize(features.activations, "nmf", 1, seed=0)}
    (counts,) = count_by_variant(features, factor_finders(features, found, crf=False)).values()
    return float(iou(counts)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("icoseg", type=Path)
    parser.add_argument("--model", default="efficientnet_lite2")
    parser.add_argument("--cache", type=Path, help="keep activations here for another run")
    asked = parser.parse_args()
    backbone = deepff.load_backbone(asked.model)
    network = Network.of(backbone, cache=asked.cache)
    sets = [collect(truth, network) for truth in load_icoseg(asked.icoseg)]
    for where, placed in (
        ("where cells look", sets),
        ("over the pixels that cells cover", map(over_pixels, sets)),
    ):
        print(f"{asked.model}, {where}: IoU {statistics.mean(map(score, placed)):.3f}")


if __name__ == "__main__":
    main()
