"""Masks and boxes of a saved result, written into its folder and shown in its report."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.errors import InputError
from deepff.export.boxes import RegionBox, region_boxes, write_boxes
from deepff.export.png import (
    folder_names,
    write_label_map,
    write_label_names,
    write_masks,
    write_video,
)
from deepff.images.image_files import output_names
from deepff.images.stored import frame_of
from deepff.options import RECIPE_OPTIONS, ExportOptions, RegionOptions, region_options
from deepff.regions.regions import Regions, available, find_regions, region_names, with_regions
from deepff.report.report import PAGE, galleries, region_gallery, write_report_page
from deepff.report.save import OBJECT
from deepff.result import Result
from deepff.results.factorization import color_slots
from deepff.runtime.outputs import Rules, check_outputs, check_unchanged, output_folder
from deepff.runtime.progress import track

_LABELS = "labels"

# The bytes per pixel that writing takes: a photograph for the gallery, copies of its label map.
_WRITING_BYTES = 10


def segment(
    result: Result,
    folder: str | Path,
    k: int | None = None,
    options: RegionOptions | None = None,
    settings: ExportOptions | None = None,
    progress: bool = False,
) -> Path:
    """Write every image's masks and label map as PNG, and show them in the report: in
    ``<folder>/masks/k<k>``, which is returned, a folder of masks per region, and ``labels/`` with
    label maps and ``labels.txt``; of videos also the frames with their label maps over them."""
    settings = settings or ExportOptions()
    factorization = result.factorization(k)
    options = available(options or RECIPE_OPTIONS[result.recipe], factorization)
    k = factorization.heatmaps.n_factors
    names = region_names(result, k, options)
    out = Path(folder) / "masks" / f"k{k}"
    files = output_names(result.names)
    region_folders = folder_names(names, taken=[_LABELS])
    planned = [f"{name}/{file}.png" for name in [*region_folders, _LABELS] for file in files]
    videos = _videos(result)
    rules = Rules(settings.overwrite, remove_stale=True, inputs=result.paths)
    _check_folder(Path(folder), out, [*planned, f"{_LABELS}/labels.txt", *videos], rules)
    with (
        output_folder(out, rules) as temporary,
        _gallery(result, folder, "masks", k, options) as draw,
        track("masks", len(files), enabled=progress) as advance,
    ):

        def write(index: int, regions: Regions) -> None:
            labels = regions.labels.cpu().numpy()
            write_masks(regions, [temporary / name for name in region_folders], files[index])
            write_label_map(labels, len(names), temporary / _LABELS, files[index])
            draw(result, index, [labels])

        for _ in with_regions(write, result, k, options, settings.memory, _WRITING_BYTES):
            advance(1)
        write_label_names(names, temporary / _LABELS)
        for video, indices in videos.items():
            maps = [temporary / _LABELS / f"{files[index]}.png" for index in indices]
            write_video([result.images[index] for index in indices], maps, temporary / video)
    write_report_page(result, folder)
    return out


def _videos(result: Result) -> dict[str, list[int]]:
    """Names of files for the result's videos, and the indices of each one's frames."""
    frames: dict[str, list[int]] = {}
    for index, image in enumerate(result.images):
        if video := frame_of(image.origin)[0]:
            frames.setdefault(video, []).append(index)
    names = output_names([video.rpartition("/")[2] for video in frames])
    return {f"{name}.mp4": of_one for name, of_one in zip(names, frames.values(), strict=True)}


def compare_recipes(result: Result, folder: str | Path, progress: bool = False) -> None:
    """Show the object's masks by both recipes side by side in the report of a saved result with k =
    1 and an ``object``, whose masks :func:`segment` has written. An image that the object's result
    lacks is shown without a mask."""
    if result.object is None:
        raise InputError("the result has no masks of the object to compare; segment it first")
    folder = Path(folder)
    description = "left the paper's recipe, k = 1, right contrast"
    gallery = region_gallery(folder, "recipes", description, ["object"], n_panels=2)
    labels = folder / OBJECT / "masks" / f"k{result.object.n_components}" / "labels"
    contrast = dict(zip(result.object.names, output_names(result.object.names), strict=True))
    with gallery as draw, track("recipes", len(result.names), enabled=progress) as advance:
        for index, regions in enumerate(find_regions(result, 1, RECIPE_OPTIONS["paper"])):
            paper = regions.labels.cpu().numpy()
            other = np.zeros_like(paper)
            if result.names[index] in contrast:
                other = np.asarray(Image.open(labels / f"{contrast[result.names[index]]}.png"))
                other = (other > 0).astype(np.uint8)  # of whatever kind
            draw(result, index, [paper, other])
            advance(1)
    write_report_page(result, folder)


def localize(
    result: Result,
    folder: str | Path,
    k: int | None = None,
    options: RegionOptions | None = None,
    settings: ExportOptions | None = None,
    best: bool = False,
    progress: bool = False,
) -> list[RegionBox]:
    """Write the boxes around every image's regions as JSON and CSV, and show them in the report: in
    ``<folder>/boxes/k<k>.json`` and ``.csv``; see :func:`region_boxes`."""
    settings = settings or ExportOptions()
    factorization = result.factorization(k)
    options = available(options or region_options(result.recipe), factorization)
    k = factorization.heatmaps.n_factors
    names = region_names(result, k, options)
    out = Path(folder) / "boxes"
    rules = Rules(settings.overwrite, inputs=result.paths)
    _check_folder(Path(folder), out, [f"k{k}.json", f"k{k}.csv"], rules)
    all_boxes: list[RegionBox] = []
    with (
        output_folder(out, rules) as temporary,
        _gallery(result, folder, "boxes", k, options) as draw,
        track("boxes", len(result.names), enabled=progress) as advance,
    ):

        def boxes_of(index: int, regions: Regions) -> list[RegionBox]:
            image = result.names[index]
            boxes = region_boxes(regions, image, names, best, settings.min_area)
            drawn = [(names.index(box.region), box.box, box.score) for box in boxes]
            draw(result, index, [regions.labels.cpu().numpy()], drawn)
            return boxes

        for boxes in with_regions(boxes_of, result, k, options, settings.memory, _WRITING_BYTES):
            all_boxes += boxes
            advance(1)
        write_boxes(all_boxes, temporary / f"k{k}", str(options))
    write_report_page(result, folder)
    return all_boxes


def settings_of(folder: str | Path, kind: str, k: int) -> tuple[str, str] | None:
    """How the "masks" or "boxes" in a folder were made, and of which regions, in words."""
    path = Path(folder) / kind / f"k{k}"
    if path.is_dir() or path.with_suffix(".json").is_file():
        for gallery in galleries(Path(folder)):
            if gallery["title"] == f"{kind}-k{k}":
                return gallery["description"], f"regions: {', '.join(gallery['regions'])}"
    return None


def _check_folder(folder: Path, out: Path, files: list[str], rules: Rules) -> None:
    """Raise InputError where files or the report would be lost that are not deepff's."""
    if not rules.overwrite:
        check_unchanged(folder / PAGE)
    check_outputs(out, files, rules)


def _gallery(
    result: Result, folder: str | Path, kind: str, k: int, options: RegionOptions
) -> AbstractContextManager[Callable[..., None]]:
    """The gallery in the report, where regions have the color of their first factor's heat map."""
    names = region_names(result, k, options)
    slots = color_slots(result.factorizations)[k]
    if options.parts is not None:
        first = {name: factor for factor, name in sorted(options.parts.items(), reverse=True)}
        slots = [slots[first[name]] for name in names]
    return region_gallery(folder, f"{kind}-k{k}", str(options), names, color_slots=slots)
