"""Commands that make regions of a result: ``segment``, ``localize`` and ``export``."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepff.cli.messages import report_skipped, summarize
from deepff.cli.options import (
    Crf,
    Device,
    DeviceChoice,
    FactorCount,
    MinArea,
    NumClasses,
    Object,
    Parts,
    Recipe,
    RecipeChoice,
    Refine,
    RefineMethod,
    ResultFolder,
    Threshold,
    ThresholdMethod,
    ThresholdValue,
    Weights,
)
from deepff.errors import InputError

if TYPE_CHECKING:
    from deepff.regions.find import RegionOptions
    from deepff.results.result import Result


class ExportFormat(StrEnum):
    """What the annotations are written for."""

    coco = "coco"
    coco_polygons = "coco-polygons"
    yolo = "yolo"
    yolo_seg = "yolo-seg"
    voc = "voc"
    labelme = "labelme"
    label_studio = "label-studio"
    cvat = "cvat"
    png = "png"


class Instances(StrEnum):
    """What one annotation is."""

    components = "components"
    parts = "parts"


def segment(
    folder: ResultFolder,
    k: FactorCount = None,
    object: Object = False,
    recipe: RecipeChoice = None,
    threshold: ThresholdMethod = None,
    value: ThresholdValue = None,
    refine: RefineMethod = None,
    crf: Crf = False,
    parts: Parts = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    device: DeviceChoice = Device.auto,
) -> None:
    """Write masks and label maps of every image as PNG, into the result's folder."""
    from deepff.export.folder import compare_recipes, segment
    from deepff.report.load import load

    result, where, k = _opened(folder, k, object, recipe, weights, num_classes, device)
    options = _region_options(result, k, recipe, threshold, value, refine, crf, parts)
    typer.echo(segment(result, where, k, options, progress=True))
    if where != folder:
        whole = load(folder)
        if 1 in whole.factorizations:
            compare_recipes(whole, folder, progress=True)
            typer.echo(folder / "report.html")


def localize(
    folder: ResultFolder,
    k: FactorCount = None,
    object: Object = False,
    recipe: RecipeChoice = None,
    threshold: ThresholdMethod = None,
    value: ThresholdValue = None,
    refine: RefineMethod = None,
    crf: Crf = False,
    parts: Parts = None,
    all_components: Annotated[
        bool,
        typer.Option("--all-components", help="A box around every component, not the largest."),
    ] = False,
    min_area: MinArea = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    device: DeviceChoice = Device.auto,
) -> None:
    """Write boxes of every image as JSON and CSV, into the result's folder."""
    from deepff.export.folder import localize

    result, folder, k = _opened(folder, k, object, recipe, weights, num_classes, device)
    options = _region_options(result, k, recipe, threshold, value, refine, crf, parts)
    boxes = localize(result, folder, k, options, all_components, min_area, progress=True)
    typer.echo(f"{len(boxes)} boxes")
    typer.echo(folder / "boxes" / f"k{k or result.n_components}.json")


def _opened(
    folder: Path,
    k: int | None,
    object: bool,
    recipe: Recipe | None,
    weights: Path | None,
    num_classes: int | None,
    device: Device,
) -> "tuple[Result, Path, int | None]":
    """The result in a folder, or that of its object, its own folder, and which k is meant."""
    from deepff.discovery.discover import find_object
    from deepff.report.load import load
    from deepff.report.save import OBJECT

    result = load(folder)
    if not object or (result.recipe == "contrast" and result.parts_of is None):
        return result, folder, k
    if k not in (None, 1):
        raise InputError(f"--object is one factor; leave out -k {k}")
    if recipe is Recipe.paper:
        return result, folder, 1
    found = find_object(
        result, weights=weights, num_classes=num_classes, device=device, progress=True
    )
    if found is not result.object:
        found.save(folder / OBJECT, progress=True)
        report_skipped(found.skipped, folder / OBJECT)
        summarize(found, folder / OBJECT)
    return found, folder / OBJECT, 1


def _region_options(
    result: "Result",
    k: int | None,
    recipe: Recipe | None,
    threshold: Threshold | None,
    value: float | None,
    refine: Refine | None,
    crf: bool,
    parts: Path | None,
) -> "RegionOptions":
    from deepff.regions.find import RECIPE_OPTIONS, RegionOptions, factorization_for
    from deepff.regions.part_names import read_parts

    if crf and refine not in (None, Refine.guided_crf):
        raise InputError(f"--crf means --refine guided-crf; leave it out for {refine.value}")
    refine = Refine.guided_crf if crf else refine
    defaults = RECIPE_OPTIONS[recipe or result.recipe]
    method = defaults.threshold if threshold is None else threshold.value
    if value is not None and method not in ("percentile", "max-fraction"):
        raise InputError(
            f"--value is for the thresholds percentile and max-fraction; leave it out for {method}"
        )
    if value is None:
        value = 0.5 if method == "max-fraction" else 75.0
    n_factors = factorization_for(result, k).heatmaps.n_factors
    names = None if parts is None else read_parts(parts, n_factors)
    return RegionOptions(method, value, refine.value if refine else defaults.refine, names)


def export(
    folder: ResultFolder,
    format: Annotated[
        ExportFormat,
        typer.Option(help="What the annotations are written for.", show_default=False),
    ],
    k: FactorCount = None,
    object: Object = False,
    recipe: RecipeChoice = None,
    threshold: ThresholdMethod = None,
    value: ThresholdValue = None,
    refine: RefineMethod = None,
    crf: Crf = False,
    parts: Parts = None,
    instances: Annotated[
        Instances, typer.Option(help="One annotation a connected component, or a part and image.")
    ] = Instances.components,
    min_area: MinArea = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; by default RESULT/export/FORMAT, anew.")
    ] = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    device: DeviceChoice = Device.auto,
    labels: Annotated[
        bool,
        typer.Option("--labels", help="What was decided with `deepff label`, in place of options."),
    ] = False,
) -> None:
    """Write masks and boxes for a labelling tool or a training program."""
    import shutil
    from functools import partial

    from deepff.export.formats import export

    write: Callable[..., int]
    if labels:
        choices = (k, recipe, threshold, value, refine, parts)
        if object or crf or any(choice is not None for choice in choices):
            raise InputError(
                "--labels takes k, threshold, refinement and names from labels.json; leave the "
                "options for these out"
            )
        from deepff.app.label_file import export_labelled, load_labels
        from deepff.report.load import load

        result = load(folder)
        write = partial(export_labelled, result, load_labels(folder, result))
    else:
        result, folder, k = _opened(folder, k, object, recipe, weights, num_classes, device)
        options = _region_options(result, k, recipe, threshold, value, refine, crf, parts)
        write = partial(export, result, k=k, options=options)
    if out is None:
        out = folder / "export" / format.value
        if out.exists():
            shutil.rmtree(out)
    count = write(
        format=format.value, folder=out, instances=instances.value, min_area=min_area, progress=True
    )
    typer.echo(f"{count} instances")
    typer.echo(out)
