"""Masks and boxes of a saved result, written into its folder and shown in its report."""

from pathlib import Path

import numpy as np
from PIL import Image

from deepff.errors import InputError
from deepff.export.boxes import RegionBox, region_boxes, write_boxes
from deepff.export.png import folder_names, write_label_map, write_label_names, write_masks
from deepff.images.image_files import output_names
from deepff.options import RECIPE_OPTIONS, RegionOptions, region_options
from deepff.regions.regions import Regions, available, find_regions, region_names, with_regions
from deepff.report.galleries import RegionGallery, gallery_settings
from deepff.report.report import PAGE, write_report_page
from deepff.report.save import OBJECT
from deepff.result import Result
from deepff.results.tree import color_slots
from deepff.runtime.outputs import Rules, check_outputs, check_unchanged, output_folder
from deepff.runtime.progress import track

_LABELS = "labels"

# A pixel of the photograph decoded for the gallery, and of copies of its label map.
_WRITING_BYTES = 10


def segment(
    result: Result,
    folder: str | Path,
    k: int | None = None,
    options: RegionOptions | None = None,
    overwrite: bool = False,
    memory: int | None = None,
    progress: bool = False,
) -> Path:
    """Write every image's masks and label map as PNG, and show them in the report.

    Parameters
    ----------
    result : Result
    folder : path
        The folder of the saved result.
    k : int, optional
        Which factorization; by default the largest.
    options : RegionOptions, optional
    overwrite : bool
        Replace files of these names that deepff did not write, or that were changed since.
    memory : int, optional
        See :func:`deepff.regions.regions.find_regions`.
    progress : bool
        Show progress on standard error.

    Returns
    -------
    Path
        ``<folder>/masks/k<k>``: a folder of masks for each region, and ``labels/`` with label maps
        and ``labels.txt``. What an earlier call left there stays until all is written, and is then
        replaced.

    Raises
    ------
    InputError
        See :func:`deepff.regions.regions.find_regions` and
        :func:`deepff.runtime.outputs.check_outputs`.
    """
    found = result.factorization(k)
    options = available(options or RECIPE_OPTIONS[result.recipe], found)
    heatmaps = found.heatmaps
    names = region_names(result, k, options)
    out = Path(folder) / "masks" / f"k{heatmaps.n_factors}"
    files = output_names(result.names)
    of_regions = folder_names(names, taken=[_LABELS])
    planned = [f"{name}/{file}.png" for name in [*of_regions, _LABELS] for file in files]
    rules = Rules(overwrite, anew=True, inputs=result.paths)
    if not overwrite:
        check_unchanged(Path(folder) / PAGE)
    check_outputs(out, [*planned, f"{_LABELS}/labels.txt"], rules)
    title = _title("masks", heatmaps.n_factors)
    gallery = RegionGallery(
        folder, title, str(options), names, places=_places(result, heatmaps.n_factors, options)
    )
    with (
        output_folder(out, rules) as temporary,
        gallery,
        track("masks", len(files), enabled=progress) as advance,
    ):

        def write(index: int, regions: Regions) -> None:
            labels = regions.labels.cpu().numpy()
            write_masks(regions, [temporary / name for name in of_regions], files[index])
            write_label_map(labels, len(names), temporary / _LABELS, files[index])
            gallery.add(result, index, [labels])

        for _ in with_regions(write, result, heatmaps.n_factors, options, memory, _WRITING_BYTES):
            advance(1)
        write_label_names(names, temporary / _LABELS)
    write_report_page(result, folder)
    return out


def compare_recipes(result: Result, folder: str | Path, progress: bool = False) -> None:
    """Show the object's masks by both recipes side by side in the report of a saved result.

    Parameters
    ----------
    result : Result
        With k = 1, the paper's map of the object, and an ``object``, whose masks :func:`segment`
        has written. An image that the object's result lacks is shown without a mask.
    folder : path
        The folder of the saved result.
    progress : bool
        Show progress on standard error.

    Raises
    ------
    InputError
        There is nothing to compare.
    """
    if result.object is None:
        raise InputError("the result has no masks of the object to compare; segment it first")
    folder = Path(folder)
    description = "left the paper's recipe, k = 1, right contrast"
    gallery = RegionGallery(folder, "recipes", description, ["object"], n_panels=2)
    labels = folder / OBJECT / "masks" / "k1" / "labels"
    contrast = dict(zip(result.object.names, output_names(result.object.names), strict=True))
    with gallery, track("recipes", len(result.names), enabled=progress) as advance:
        for index, found in enumerate(find_regions(result, 1, RECIPE_OPTIONS["paper"])):
            paper = found.labels.cpu().numpy()
            if result.names[index] in contrast:
                with Image.open(labels / f"{contrast[result.names[index]]}.png") as image:
                    gallery.add(result, index, [paper, np.asarray(image)])
            else:
                gallery.add(result, index, [paper, np.zeros_like(paper)])
            advance(1)
    write_report_page(result, folder)


def localize(
    result: Result,
    folder: str | Path,
    k: int | None = None,
    options: RegionOptions | None = None,
    all_components: bool = False,
    min_area: int | None = None,
    overwrite: bool = False,
    memory: int | None = None,
    progress: bool = False,
) -> list[RegionBox]:
    """Write the boxes around every image's regions as JSON and CSV, and show them in the report.

    Parameters
    ----------
    result, folder, k, options, overwrite, memory, progress
        As for :func:`segment`.
    all_components, min_area
        See :func:`deepff.export.boxes.region_boxes`.

    Returns
    -------
    list of RegionBox
        What is in ``<folder>/boxes/k<k>.json`` and ``.csv``.

    Raises
    ------
    InputError
        See :func:`deepff.regions.regions.find_regions`.
    """
    factorization = result.factorization(k)
    options = available(options or region_options(result.recipe, for_boxes=True), factorization)
    heatmaps = factorization.heatmaps
    names = region_names(result, k, options)
    out, file = Path(folder) / "boxes", f"k{heatmaps.n_factors}"
    rules = Rules(overwrite, inputs=result.paths)
    if not overwrite:
        check_unchanged(Path(folder) / PAGE)
    check_outputs(out, [f"{file}.json", f"{file}.csv"], rules)
    gallery = RegionGallery(
        folder,
        _title("boxes", heatmaps.n_factors),
        str(options),
        names,
        places=_places(result, heatmaps.n_factors, options),
    )
    found: list[RegionBox] = []
    with (
        output_folder(out, rules) as temporary,
        gallery,
        track("boxes", len(result.names), enabled=progress) as advance,
    ):

        def boxes_of(index: int, regions: Regions) -> list[RegionBox]:
            boxes = region_boxes(regions, result.names[index], names, all_components, min_area)
            drawn = [(names.index(box.region), box.box) for box in boxes]
            gallery.add(result, index, [regions.labels.cpu().numpy()], drawn)
            return boxes

        for boxes in with_regions(
            boxes_of, result, heatmaps.n_factors, options, memory, _WRITING_BYTES
        ):
            found += boxes
            advance(1)
        write_boxes(found, temporary / file, str(options))
    write_report_page(result, folder)
    return found


def settings_of(folder: str | Path, kind: str, k: int) -> tuple[str, str] | None:
    """With what settings the masks or boxes that a result's folder holds were made.

    Parameters
    ----------
    folder : path
    kind : {"masks", "boxes"}
    k : int

    Returns
    -------
    (str, str) or None
        For people: how regions were found, and which; None where there are none.
    """
    made = Path(folder) / kind / f"k{k}"
    if not (made.is_dir() or made.with_suffix(".json").is_file()):
        return None
    return gallery_settings(folder, _title(kind, k))


def _title(kind: str, k: int) -> str:
    """Of the gallery in the report."""
    return f"{kind}-k{k}"


def _places(result: Result, k: int, options: RegionOptions) -> list[int]:
    """Each region's place in the palette, of its first factor: its heat map's colour."""
    places = color_slots(result.factorizations)[k]
    if options.parts is None:
        return places
    first = {name: factor for factor, name in sorted(options.parts.items(), reverse=True)}
    return [places[first[name]] for name in region_names(result, k, options)]
