"""Specks among the pieces of masks, and corners of polygons, of objects that are annotated.

    OMP_NUM_THREADS=1 python benchmarks/annotations.py DATA

DATA holds iCoseg as ``icoseg/{images,ground_truth}/<group>/`` and VOC 2007 as ``VOCdevkit/``.
Pieces are those of the recipe contrast's masks, group by group; one is an object where its IoU with
a connected piece of the annotation is above a half.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from skimage.draw import polygon as filled

import deepff
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.export.instances import Instance, find_instances
from deepff.export.polygons import instance_polygons
from deepff.options import LEAST_SHARE, SIMPLIFY, Recipe

_IGNORED = 255  # VOC's borders of objects
Pieces = list[tuple[Instance, tuple[int, int]]]  # with the image's size (H, W)


def pieces(labels: np.ndarray) -> Pieces:
    return [(piece, labels.shape) for piece in find_instances(labels, min_area=1)]


def share(piece: Instance, size: tuple[int, int]) -> float:
    """Of the image's pixels."""
    return piece.area / (size[0] * size[1])


def is_object(piece: Instance, size: tuple[int, int], truth: Pieces) -> bool:
    mask = piece.full_mask(size)
    for one, _ in truth:
        other = one.full_mask(size)
        if 2 * np.count_nonzero(mask & other) > np.count_nonzero(mask | other):
            return True
    return False


def icoseg(root: Path) -> Iterator[tuple[Pieces, Pieces]]:
    """Pieces that are annotated and that are found, image by image."""
    for group in load_icoseg(root):
        result = deepff.discover([one.image.path for one in group.images], recipe=Recipe.CONTRAST)
        for image, regions in zip(group.images, result.regions(), strict=True):
            annotated = (image.labels() == 1).astype(np.uint8)
            yield pieces(annotated), pieces(regions.labels.cpu().numpy())


def voc_objects(root: Path) -> Pieces:
    """The objects of VOC's segmentations, each as a whole."""
    found: Pieces = []
    for path in sorted((root / "VOC2007" / "SegmentationObject").glob("*.png")):
        numbers = np.array(Image.open(path))
        numbers[numbers == _IGNORED] = 0
        objects = find_instances(numbers, "parts", min_area=1)
        found += [(instance, numbers.shape) for instance in objects]
    return found


def changed(piece: Instance, polygons: list[np.ndarray]) -> float:
    """The share of a mask's pixels that polygons change, filled by pixel centres."""
    x_min, y_min, _, _ = piece.box
    drawn = np.zeros_like(piece.mask)
    for corners in polygons:
        x, y = (corners - (x_min, y_min) - 0.5).T
        drawn[filled(y, x, drawn.shape)] = True
    return np.count_nonzero(drawn != piece.mask) / piece.area


def tell_smallest(what: str, objects: Pieces) -> None:
    smallest = sorted((share(*one), one[0].area) for one in objects)[:3]
    print(
        f"{len(objects)} {what}; the smallest have",
        ", ".join(f"{of:.4%} ({area} pixels)" for of, area in smallest),
    )


def tell_corners(what: str, objects: Pieces) -> None:
    """Of objects that an export would hold."""
    held = [piece for piece, size in objects if share(piece, size) >= LEAST_SHARE]
    for tolerance in (0, SIMPLIFY):
        polygons = [instance_polygons(piece, tolerance) for piece in held]
        corners = [sum(map(len, each)) for each in polygons]
        most = max(changed(piece, each) for piece, each in zip(held, polygons, strict=True))
        print(
            f"{len(held)} {what}, --simplify {tolerance}: {np.median(corners):.0f} corners at the "
            f"median; of none more than {most:.2%} of the pixels changes"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    annotated: Pieces = []
    found: Pieces = []
    right: list[bool] = []
    for truth, own in icoseg(data / "icoseg"):
        annotated += truth
        found += own
        right += [is_object(*piece, truth) for piece in own]
    shares = np.array([share(*piece) for piece in found])
    small, objects = shares < LEAST_SHARE, np.array(right)
    print(
        f"{len(found)} pieces of masks of iCoseg: {small.sum()} below {LEAST_SHARE:.2%} of the "
        f"image, {(small & objects).sum()} of these objects; the smallest object has "
        f"{shares[objects].min():.4%}"
    )
    tell_smallest("annotated pieces of iCoseg", annotated)
    tell_smallest("annotated objects of VOC 2007", voc_objects(data / "VOCdevkit"))
    tell_corners("annotated pieces", annotated)
    tell_corners("pieces of masks", found)


if __name__ == "__main__":
    main()
