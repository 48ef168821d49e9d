"""What clicks in ``deepff label`` make of masks: mean IoU after 0 to 3 of them.

    OMP_NUM_THREADS=1 python benchmarks/clicks.py DATA FOLDER [--groups 033 022 ...] [--images 20]
        [--refined]

DATA holds iCoseg as ``icoseg/{images,ground_truth}/<group>/``; FOLDER keeps the results. A click is
in the middle of the largest part that a mask lacks or has too much. Masks are those of the
contrast without refinement, or with ``--refined`` the app's first.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from label_truth import iou
from PIL import Image
from scipy import ndimage

import deepff
from deepff.app.kept_masks import NamedMask
from deepff.app.masks import as_one
from deepff.app.mending import Point, taken
from deepff.app.workspace import Workspace
from deepff.options import RegionOptions, Threshold
from deepff.regions.regions import region_finder

N_CLICKS = 3
NAME = "object"
Mend = Callable[[NamedMask, list[Point]], NamedMask]


def largest_error(mask: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The largest connected part that the mask lacks or has too much."""
    parts = []
    for wrong in (truth & ~mask, mask & ~truth):
        numbers, n = ndimage.label(wrong)
        if n:
            parts.append(numbers == np.bincount(numbers.ravel())[1:].argmax() + 1)
    return max(parts, key=np.count_nonzero, default=np.zeros_like(mask))


def middle(part: np.ndarray) -> Point:
    """The point of a part that is deepest in it."""
    depth = ndimage.distance_transform_edt(np.pad(part, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(depth.argmax(), depth.shape)
    return (x + 0.5) / part.shape[1], (y + 0.5) / part.shape[0]


def after_clicks(start: np.ndarray, truth: np.ndarray, mend: Mend) -> list[float]:
    mask, points = NamedMask(start.astype(np.uint8), (NAME,)), list[Point]()
    ious = [iou(start, truth)]
    for _ in range(N_CLICKS):
        part = largest_error(mask.values > 0, truth)
        if np.count_nonzero(part) >= 30:
            points.append(middle(part))
            mask = mend(mask, points)
        ious.append(iou(mask.values > 0, truth))
    return ious


def contrast_masks(workspace: Workspace) -> Callable[[str], np.ndarray]:
    """Gives an image's mask by Otsu's threshold of the contrast."""
    assert workspace.result.object is not None
    whole = as_one(workspace.result.object)
    find = region_finder(whole, 1, RegionOptions(Threshold.OTSU_IMAGE))
    return lambda name: find(whole.names.index(name)).masks[0].cpu().numpy()


def of_group(photos: Path, folder: Path, n_images: int, refined: bool) -> np.ndarray:
    if not (folder / "manifest.json").exists():
        result = deepff.discover(sorted(photos.glob("*.jpg"))[:n_images], [1, 2, 3, 4, 5, 6])
        result.object = deepff.find_object(result)
        result.save(folder)
    workspace = Workspace(folder)
    workspace.open()
    labels, pictures = workspace.store.labels, workspace.pictures
    contrast = contrast_masks(workspace)
    ious = []
    for index, name in enumerate(pictures.names):
        truth_file = photos.parents[1] / "ground_truth" / photos.name / f"{Path(name).stem}.png"
        truth = np.asarray(Image.open(truth_file)) > 0
        start = workspace.masks.made(labels, name).values > 0 if refined else contrast(name)

        def click(mask: NamedMask, points: list[Point], index: int = index) -> NamedMask:
            scene_of = partial(pictures.scene, labels, index)
            return taken(mask, scene_of, points[-1:], NAME, points[:-1])

        ious.append(after_clicks(start, truth, click))
    return np.mean(ious, 0)


def seconds(workspace: Workspace) -> None:
    """Print how long a click takes at 12 megapixels: the first on an image, at the same place, and
    at another, close to the mask's border."""
    labels = workspace.store.labels
    values = np.zeros((3000, 4000), np.uint8)
    values[1000:2000, 1000:2000] = 1
    mask = NamedMask(values, (NAME,))
    for what, point in (("first", (0.5, 0.5)), ("same", (0.5, 0.5)), ("next", (0.26, 0.5))):
        began = time.perf_counter()
        taken(mask, partial(workspace.pictures.scene, labels, 0), [point], NAME, [])
        print(f"{what} click at 12 megapixels: {time.perf_counter() - began:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", nargs="*", default=[""])
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--refined", action="store_true")
    asked = parser.parse_args()
    groups = sorted((asked.data / "icoseg" / "images").iterdir())
    means = []
    for photos in groups:
        if photos.name.startswith(tuple(asked.groups)):
            folder = asked.folder / photos.name[:3]
            ious = of_group(photos, folder, asked.images, asked.refined)
            means.append(ious)
            print(photos.name[:20], ious.round(3), flush=True)
    print("mean", np.mean(means, 0).round(3))
    workspace = Workspace(folder)
    workspace.open()
    seconds(workspace)


if __name__ == "__main__":
    main()
