"""Commands that make regions of a result: ``segment``, ``localize`` and ``export``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepff.cli.messages import summarize, warn, without_any
from deepff.cli.parameters import (
    OUTPUT,
    MinArea,
    RegionPanel,
    ResultFolder,
    ResultPanel,
    byte_count,
    listed,
    option,
)
from deepff.errors import InputError
from deepff.options import (
    LEAST_SHARE,
    SIMPLIFY,
    ExportFormat,
    ExportOptions,
    Instances,
    Photographs,
    Recipe,
    Refinement,
    RegionOptions,
    Which,
    parsed_split,
    region_options,
)

if TYPE_CHECKING:
    from deepff.export.formats import ExportSummary
    from deepff.result import Result


def segment(folder: ResultFolder, regions: RegionPanel, opening: ResultPanel) -> None:
    """Write PNG masks and label maps of every image to the result's folder."""
    from deepff.export.folder import compare_recipes, segment
    from deepff.report.load import load_result

    result, where, k = _opened(folder, regions, opening)
    options = _region_options(result, k, regions)
    with _other_settings_reported(where, "masks", k or result.n_components):
        out = segment(result, where, k, options, _settings(opening), progress=True)
    typer.echo(out)
    if where != folder:
        whole = load_result(folder, opening.photos)
        if 1 in whole.factorizations:
            compare_recipes(whole, folder, progress=True)
            typer.echo(folder / "report.html")


def localize(
    folder: ResultFolder,
    regions: RegionPanel,
    *,
    best: Annotated[
        bool,
        option(
            OUTPUT,
            "One box per region: around the piece with the highest score, or the largest one if "
            "pieces have no scores.",
            "--best",
            "--largest",
        ),
    ] = False,
    min_area: MinArea = None,
    opening: ResultPanel,
) -> None:
    """Write boxes of every image to the result's folder, as JSON and CSV."""
    from deepff.export.folder import localize
    from deepff.regions.regions import least_score

    result, folder, k = _opened(folder, regions, opening)
    options = _region_options(result, k, regions)
    with _other_settings_reported(folder, "boxes", k or result.n_components):
        settings = _settings(opening, min_area)
        boxes = localize(result, folder, k, options, settings, best, progress=True)
    n_empty = len(result.names) - len({box.image for box in boxes})
    typer.echo(f"{len(boxes)} box{'' if len(boxes) == 1 else 'es'}{without_any(n_empty)}")
    factorization = result.factorization(k)
    if n_empty and factorization.scores is not None:
        least = least_score(result, factorization, options)
        typer.echo(
            f"left out: objects that score less than {least:g} (--min-score) and, by default, "
            "those smaller than four cells of their map (--min-area)"
        )
    typer.echo(folder / "boxes" / f"k{k or result.n_components}.json")


def _settings(opening: ResultPanel, min_area: int | None = None) -> ExportOptions:
    memory = byte_count(opening.memory)
    return ExportOptions(min_area=min_area, overwrite=opening.overwrite, memory=memory)


@contextmanager
def _other_settings_reported(folder: Path, kind: str, k: int) -> Iterator[None]:
    """Say what was made with other settings, and is replaced by what the block makes."""
    from deepff.export.folder import settings_of

    before = settings_of(folder, kind, k)
    yield
    after = settings_of(folder, kind, k)
    if before is not None and after is not None and before != after:
        other = "; ".join(old for old, new in zip(before, after, strict=True) if old != new)
        warn(f"replaced {kind} of k = {k} that were made with other settings ({other})")


def _opened(
    folder: Path, regions: RegionPanel, opening: ResultPanel
) -> "tuple[Result, Path, int | None]":
    """The result in a folder, or that of its object, with its folder, and which k is meant."""
    from deepff.discovery.discover import find_object, lacks_object
    from deepff.report.load import load_result
    from deepff.report.save import OBJECT, check_output_folder

    result = load_result(folder, opening.photos)
    if not regions.object or result.is_object:
        return result, folder, regions.k
    if regions.k not in (None, 1):
        raise InputError(f"--object does not use the factors of k = {regions.k}; leave out -k")
    if regions.recipe is Recipe.PAPER:
        return result, folder, 1
    if lacks_object(result):
        check_output_folder(folder / OBJECT, opening.overwrite)
    backbone = None
    if opening.weights is not None:
        backbone = result.sources[0].backbone(
            weights=opening.weights, num_classes=opening.num_classes, device=opening.device
        )
    object_result = find_object(result, model=backbone, device=opening.device, progress=True)
    if object_result is not result.object:
        object_result.save(folder / OBJECT, progress=True, overwrite=opening.overwrite)
        summarize(object_result, folder / OBJECT)
    return object_result, folder / OBJECT, object_result.n_components


def _region_options(result: "Result", k: int | None, regions: RegionPanel) -> RegionOptions:
    from deepff.regions.part_names import read_parts
    from deepff.regions.regions import check_classifier

    refine = regions.refine
    if regions.crf and refine not in (None, Refinement.DFF_CRF):
        raise InputError(f"--crf means --refine dff-crf; leave out --crf to use {refine}")
    factorization = result.factorization(k)
    check_classifier(refine, factorization)
    n_factors = factorization.heatmaps.n_factors
    return region_options(
        regions.recipe or result.recipe,
        regions.threshold,
        regions.value,
        Refinement.DFF_CRF if regions.crf else refine,
        None if regions.parts is None else read_parts(regions.parts, n_factors),
        regions.min_score,
    )


def export(
    folder: ResultFolder,
    format: Annotated[
        list[ExportFormat],
        option(
            OUTPUT,
            "File format. Repeat it to write several, each in a separate folder."
            + listed(ExportFormat),
            metavar="FORMAT",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        option(OUTPUT, "By default RESULT/export/FORMAT, where it replaces an earlier export."),
    ] = None,
    labels: Annotated[
        bool | None,
        option(
            OUTPUT,
            "Export what you decided in `deepff label`, or the masks of the factors. By default "
            "the former, if there is a labels.json and no option about masks.",
            "--labels/--no-labels",
        ),
    ] = None,
    which: Annotated[
        Which | None,
        option(
            OUTPUT,
            "With labels: which images to write. By default accepted, or not-skipped if none is "
            "accepted." + listed(Which),
            metavar="WHICH",
        ),
    ] = None,
    split: Annotated[
        str | None,
        option(
            OUTPUT,
            "Percentages for training, validation and test, such as 80/10/10. By default 80/20 for "
            "YOLO and VOC; COCO gets one file.",
        ),
    ] = None,
    images: Annotated[
        Photographs | None,
        option(
            OUTPUT,
            "Copy the photographs, link to them, or neither. By default copy for COCO and VOC, "
            "link for YOLO, none for others.",
        ),
    ] = None,
    instances: Annotated[
        Instances,
        option(OUTPUT, "One annotation per connected piece (components), or per image and part."),
    ] = Instances.COMPONENTS,
    min_area: MinArea = None,
    simplify: Annotated[
        float,
        option(OUTPUT, "How far polygons may cut corners, in pixels. 0 keeps every pixel.", min=0),
    ] = SIMPLIFY,
    seed: Annotated[int, option(OUTPUT, "Random seed of --split.")] = 0,
    regions: RegionPanel,
    opening: ResultPanel,
) -> None:
    """Write masks and boxes for a labeling tool or a training program."""
    from deepff.report.save import LABELS

    has_scores = False
    if labels is None:
        labels = regions == RegionPanel() and (folder / LABELS).is_file()
    if labels:
        write = _labels_writer(folder, regions, opening.photos, which)
    else:
        if which is not None:
            raise InputError(
                "--which works only with --labels; add --labels to export what you decided in "
                "`deepff label`"
            )
        from deepff.export import formats

        result, folder, k = _opened(folder, regions, opening)
        options = _region_options(result, k, regions)
        has_scores = result.factorization(k).scores is not None
        write = partial(formats.export, result, k=k, options=options)
    settings = ExportOptions(
        instances,
        min_area,
        simplify,
        images,
        None if split is None else parsed_split(split),
        seed,
        opening.overwrite,
        anew=out is None,
        memory=byte_count(opening.memory),
    )
    if out is None:
        out = folder / "export" / ("" if len(set(format)) > 1 else format[0])
    summary = write(formats=format, folder=out, settings=settings, progress=True)
    by_default = "four cells of their map" if has_scores else f"{LEAST_SHARE:.2%} of their image"
    least = by_default if min_area is None else f"{min_area} pixels"
    specks = f", {summary.n_specks} smaller than {least} left out"
    left_out = specks if summary.n_specks else ""
    typer.echo(f"{summary.n_instances} instances{left_out}{without_any(summary.n_empty)}")
    if summary.n_unlikely:
        typer.echo(f"{summary.n_unlikely} left out for a low score (--min-score 0 keeps all)")
    for path in summary.folders:
        typer.echo(path)


def _labels_writer(
    folder: Path, regions: RegionPanel, photos: str | None, which: Which | None
) -> "Callable[..., ExportSummary]":
    """What exports the labels that were decided in the app."""
    if regions != RegionPanel():
        raise InputError(
            "--labels takes k, threshold, refinement and names from labels.json; leave out the "
            "options for these"
        )
    from deepff.app.label_file import chosen_images, export_labelled, load_labels
    from deepff.report.load import load_result

    result = load_result(folder, photos)
    decided = load_labels(folder, result)
    n_images = len(chosen_images(decided, result, which)[0])
    accepted, skipped = (decided.count(state, result.names) for state in ("accepted", "skipped"))
    typer.echo(
        f"what you labeled: {n_images} of {len(result.names)} images, {accepted} accepted, "
        f"{skipped} skipped (--no-labels exports the factors)"
    )
    return partial(export_labelled, result, decided, which=which)
