"""Crops of the photographs where factors are strongest."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from deepff.images.decoding import UnreadableImageError
from deepff.images.painting import outlines
from deepff.layers.layer import WHOLE
from deepff.pictures.figures import photo_shape
from deepff.pictures.tree_drawing import colors_over_k
from deepff.results.heatmaps import HeatMaps
from deepff.results.run import Run
from deepff.results.sampling import sampled
from deepff.runtime.files import atomic_path
from deepff.runtime.parallel import in_parallel

FOLDER = "crops"
N_STRONGEST = 6
_LEAST_SIDE = 150  # pixels of the photograph
_CELLS = 3.0
_LARGEST_SIDE = 320  # pixels of the picture


@dataclass(frozen=True)
class Crop:
    """Where a factor is strongest in one of the images where it is strongest."""

    image: int
    file: str  # the picture, a path in the folder of the result
    box: tuple[int, int, int, int]  # (left, top, right, bottom), in pixels of the image


# For each k and factor.
Crops = Mapping[int, list[list[Crop]]]


def strongest_crops(run: Run) -> Crops:
    """For each k and factor its crops, of up to six images, by their largest |value|: squares of
    three cells of the layer, and of 150 pixels at least, cut where the image ends."""
    return {k: _of_factors(f.heatmaps, k) for k, f in run.factorizations.items()}


def _of_factors(heatmaps: HeatMaps, k: int) -> list[list[Crop]]:
    peaks = torch.stack([heatmaps.grid(i).abs().amax((1, 2)).cpu() for i in range(len(heatmaps))])
    order = np.argsort(-peaks.numpy(), axis=0, kind="stable")[:N_STRONGEST]
    return [
        [
            Crop(i, f"{FOLDER}/k{k}-{j}-{rank}.jpg", _box(heatmaps, i, j))
            for rank, i in enumerate(order[:, j].tolist())
            if peaks[i, j] > 0
        ]
        for j in range(k)
    ]


def _box(heatmaps: HeatMaps, index: int, factor: int) -> tuple[int, int, int, int]:
    height, width = heatmaps.image_sizes[index]
    shape = photo_shape((height, width))
    grid_map = heatmaps.grid(index)[factor, None]
    values = sampled(grid_map, shape, heatmaps.extents[index])[0].abs()
    row, column = divmod(int(values.argmax()), shape[1])
    y, x = (row + 0.5) * height / shape[0], (column + 0.5) * width / shape[1]
    (top, bottom), (left, right) = heatmaps.extents[index] or WHOLE
    rows, columns = heatmaps.grids[index]
    cell = max((bottom - top) * height / rows, (right - left) * width / columns)
    side = round(max(_LEAST_SIDE, _CELLS * cell))
    across, down = min(side, width), min(side, height)
    x0 = min(max(0, round(x - across / 2)), width - across)
    y0 = min(max(0, round(y - down / 2)), height - down)
    return x0, y0, x0 + across, y0 + down


def write_crops(run: Run, folder: Path, crops: Crops) -> None:
    """Cut the crops out of the photographs at full resolution, with an outline of where the factor
    is half as strong as at most there. Those that can't be read any more are left out."""
    by_image: dict[int, list[tuple[int, int, Crop]]] = {}
    for k, of_k in crops.items():
        for j, of_factor in enumerate(of_k):
            for crop in of_factor:
                by_image.setdefault(crop.image, []).append((k, j, crop))
    colors = colors_over_k(run.factorizations)

    def write(item: tuple[int, list[tuple[int, int, Crop]]]) -> None:
        index, of_image = item
        try:
            pixels = run.images[index].read()
        except UnreadableImageError:
            return
        if pixels.shape[:2] != run.images[index].size:
            return  # another photograph by now
        height, width = pixels.shape[:2]
        for k, j, crop in of_image:
            left, top, right, bottom = crop.box
            picture = Image.fromarray(np.ascontiguousarray(pixels[top:bottom, left:right]))
            picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
            heatmaps, shown = run.factorizations[k].heatmaps, np.array(picture)
            onto = ((top / height, bottom / height), (left / width, right / width))
            grid_map, extent = heatmaps.grid(index)[j, None], heatmaps.extents[index] or WHOLE
            values = sampled(grid_map, shown.shape[:2], extent, onto)[0].abs().cpu().numpy()
            shown[outlines((values >= values.max() / 2).astype(np.uint8), 2)] = colors[k][j]
            save_jpeg(Image.fromarray(shown), folder / crop.file)

    items = sorted(by_image.items())
    sizes = [3 * height * width for height, width in (run.image_sizes[i] for i, _ in items)]
    for _ in in_parallel(lambda number: write(items[number]), sizes):
        pass


def save_jpeg(picture: Image.Image, path: Path, quality: int = 85) -> None:
    """Write a picture as JPEG; it gets its name when it is whole."""
    with atomic_path(path) as temporary:
        picture.save(temporary, "JPEG", quality=quality)
