"""Commands that make regions of a result: ``segment``, ``localize`` and ``export``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepff.cli.messages import report_skipped, summarize, warn
from deepff.cli.parameters import (
    OUTPUT,
    Crf,
    DeviceChoice,
    FactorCount,
    FormatChoice,
    InstancesChoice,
    MaskMemory,
    MinArea,
    NumClasses,
    Object,
    Overwrite,
    Parts,
    PhotographsChoice,
    Photos,
    RecipeChoice,
    RefineMethod,
    ResultFolder,
    Simplify,
    Split,
    SplitSeed,
    ThresholdMethod,
    ThresholdValue,
    Weights,
    byte_count,
)
from deepff.errors import InputError
from deepff.options import (
    LEAST_SHARE,
    SIMPLIFY,
    Device,
    ExportOptions,
    Instances,
    Recipe,
    Refinement,
    RegionOptions,
    Threshold,
    Which,
    parsed_split,
    region_options,
)

if TYPE_CHECKING:
    from deepff.result import Result


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
    overwrite: Overwrite = False,
    photos: Photos = None,
    memory: MaskMemory = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    device: DeviceChoice = Device.AUTO,
) -> None:
    """Write masks and label maps of every image as PNG, into the result's folder."""
    from deepff.export.folder import compare_recipes, segment
    from deepff.report.load import load

    result, where, k = _opened(folder, photos, k, object, recipe, weights, num_classes, device)
    options = _region_options(result, k, recipe, threshold, value, refine, crf, parts)
    with _other_settings_told(where, "masks", k or result.n_components):
        out = segment(result, where, k, options, overwrite, byte_count(memory), progress=True)
    typer.echo(out)
    if where != folder:
        whole = load(folder, photos)
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
        typer.Option(
            "--all-components",
            help="A box around every component, not the largest.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    min_area: MinArea = None,
    overwrite: Overwrite = False,
    photos: Photos = None,
    memory: MaskMemory = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    device: DeviceChoice = Device.AUTO,
) -> None:
    """Write boxes of every image as JSON and CSV, into the result's folder."""
    from deepff.export.folder import localize

    result, folder, k = _opened(folder, photos, k, object, recipe, weights, num_classes, device)
    options = _region_options(result, k, recipe, threshold, value, refine, crf, parts, True)
    with _other_settings_told(folder, "boxes", k or result.n_components):
        boxes = localize(
            result,
            folder,
            k,
            options,
            all_components,
            min_area,
            overwrite,
            byte_count(memory),
            progress=True,
        )
    typer.echo(f"{len(boxes)} boxes")
    typer.echo(folder / "boxes" / f"k{k or result.n_components}.json")


@contextmanager
def _other_settings_told(folder: Path, kind: str, k: int) -> Iterator[None]:
    """Say what was made with other settings, and is replaced by what the block makes."""
    from deepff.export.folder import settings_of

    before = settings_of(folder, kind, k)
    yield
    after = settings_of(folder, kind, k)
    if before is not None and after is not None and before != after:
        other = "; ".join(old for old, new in zip(before, after, strict=True) if old != new)
        warn(f"replaced {kind} of k = {k} that were made with other settings ({other})")


def _opened(
    folder: Path,
    photos: Path | None,
    k: int | None,
    object: bool,
    recipe: Recipe | None,
    weights: Path | None,
    num_classes: int | None,
    device: Device,
) -> "tuple[Result, Path, int | None]":
    """The result in a folder, or that of its object, its own folder, and which k is meant."""
    from deepff.discovery.find_object import find_object
    from deepff.report.load import load
    from deepff.report.save import OBJECT

    result = load(folder, photos)
    if not object or (result.recipe == Recipe.CONTRAST and result.parts_of is None):
        return result, folder, k
    if k not in (None, 1):
        raise InputError(f"--object is one factor; leave out -k {k}")
    if recipe is Recipe.PAPER:
        return result, folder, 1
    backbone = None
    if weights is not None:
        backbone = result.sources[0].backbone(
            weights=weights, num_classes=num_classes, device=device
        )
    found = find_object(result, model=backbone, device=device, progress=True)
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
    refine: Refinement | None,
    crf: bool,
    parts: Path | None,
    for_boxes: bool = False,
) -> RegionOptions:
    from deepff.regions.part_names import read_parts
    from deepff.regions.regions import check_classifier

    if crf and refine not in (None, Refinement.GUIDED_CRF):
        raise InputError(f"--crf means --refine guided-crf; leave it out for {refine}")
    found = result.factorization(k)
    check_classifier(refine, found)
    n_factors = found.heatmaps.n_factors
    return region_options(
        recipe or result.recipe,
        threshold,
        value,
        Refinement.GUIDED_CRF if crf else refine,
        None if parts is None else read_parts(parts, n_factors),
        for_boxes=for_boxes,
    )


def export(
    folder: ResultFolder,
    format: FormatChoice,
    k: FactorCount = None,
    object: Object = False,
    recipe: RecipeChoice = None,
    threshold: ThresholdMethod = None,
    value: ThresholdValue = None,
    refine: RefineMethod = None,
    crf: Crf = False,
    parts: Parts = None,
    instances: InstancesChoice = Instances.COMPONENTS,
    min_area: MinArea = None,
    simplify: Simplify = SIMPLIFY,
    images: PhotographsChoice = None,
    split: Split = "80/20",
    seed: SplitSeed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to; by default RESULT/export/FORMAT, anew.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    overwrite: Overwrite = False,
    photos: Photos = None,
    memory: MaskMemory = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    device: DeviceChoice = Device.AUTO,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels",
            help="What was decided with `deepff label`, in place of options.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    which: Annotated[
        Which | None,
        typer.Option(
            help="With --labels, the images to write; by default the accepted ones, or all but "
            "skipped ones where none is.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Write masks and boxes for a labelling tool or a training program."""
    from functools import partial

    from deepff.export.formats import ExportSummary, export

    write: Callable[..., ExportSummary]
    if labels:
        choices = (k, recipe, threshold, value, refine, parts)
        if object or crf or any(choice is not None for choice in choices):
            raise InputError(
                "--labels takes k, threshold, refinement and names from labels.json; leave the "
                "options for these out"
            )
        from deepff.app.label_file import chosen_images, export_labelled, load_labels
        from deepff.report.load import load

        result = load(folder, photos)
        decided = load_labels(folder, result)
        n_images = len(chosen_images(decided, result.names, which))
        accepted, skipped = (decided.count(s, result.names) for s in ("accepted", "skipped"))
        typer.echo(
            f"{n_images} of {len(result.names)} images: {accepted} accepted, {skipped} skipped"
        )
        write = partial(export_labelled, result, decided, which=which)
    elif which is not None:
        raise InputError("--which is for what was decided with `deepff label`: give --labels too")
    else:
        result, folder, k = _opened(folder, photos, k, object, recipe, weights, num_classes, device)
        options = _region_options(result, k, recipe, threshold, value, refine, crf, parts)
        write = partial(export, result, k=k, options=options)
    settings = ExportOptions(
        instances,
        min_area,
        simplify,
        images,
        parsed_split(split),
        seed,
        overwrite,
        anew=out is None,
        memory=byte_count(memory),
    )
    if out is None:
        out = folder / "export" / ("" if len(set(format)) > 1 else format[0])
    written = write(formats=format, folder=out, settings=settings, progress=True)
    left_out = f", {written.n_specks} smaller than {_least(min_area)} left out"
    typer.echo(f"{written.n_instances} instances{left_out if written.n_specks else ''}")
    for place in written.folders:
        typer.echo(place)


def _least(min_area: int | None) -> str:
    if min_area is None:
        return f"{LEAST_SHARE:.2%} of their image"
    return f"{min_area} pixels"
