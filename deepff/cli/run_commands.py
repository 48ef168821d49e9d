"""The commands that make a result: ``discover`` and ``apply``."""

import shlex
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepff.cli.messages import check_output, print_json, summarize
from deepff.cli.parameters import (
    FACTORIZATION,
    IMAGES,
    NETWORK,
    OUTPUT,
    RUNNING,
    SOURCES,
    BatchSize,
    Cache,
    DeviceChoice,
    EngineChoice,
    Every,
    FramesPerSecond,
    Json,
    LabelsFile,
    Model,
    NewFolder,
    NumClasses,
    Overlays,
    Overwrite,
    Size,
    Weights,
    byte_count,
    factor_counts,
    listed,
    option,
    three_numbers,
)
from deepff.errors import InputError
from deepff.options import (
    BATCH_SIZE,
    MODEL,
    N_PARTS,
    SIZE,
    ChannelWeights,
    Device,
    Engine,
    ExportFormat,
    ExportOptions,
    Interpolation,
    Method,
    Recipe,
    Solver,
)

if TYPE_CHECKING:
    from deepff.images.image_files import ImageFile
    from deepff.images.image_set import SetImage
    from deepff.result import ClassResults, Result
    from deepff.results.concept_bank import ConceptBank


@dataclass
class ImagePanel:
    """Which images are factorized, and how they are prepared."""

    images: Annotated[list[str] | None, typer.Argument(help=SOURCES)] = None
    sample: Annotated[bool, option(IMAGES, "Use deepff's sample photographs.", "--sample")] = False
    every: Every = 1
    fps: FramesPerSecond = None
    size: Size = SIZE
    stretch: Annotated[
        bool,
        option(IMAGES, "Brighten 10- to 16-bit images: make the maximum white.", "--stretch"),
    ] = False
    mean: Annotated[str | None, option(IMAGES, "Mean per channel, as R,G,B in [0, 1].")] = None
    std: Annotated[str | None, option(IMAGES, "Standard deviation per channel.")] = None
    interpolation: Annotated[
        Interpolation | None,
        option(IMAGES, "How to resize images. By default as in the network's training."),
    ] = None


@dataclass
class NetworkPanel:
    """The network and its layers."""

    model: Model = MODEL
    layer: Annotated[
        list[str] | None,
        option(NETWORK, "Layer, from `deepff layers`. Repeat it for one object map from several."),
    ] = None
    weights: Weights = None
    num_classes: NumClasses = None
    labels: LabelsFile = None


@dataclass
class FactorPanel:
    """How many factors, and how they are found."""

    k: Annotated[
        str | None,
        option(
            FACTORIZATION,
            "Number of factors: 4, 1-4, 2,3,6 or auto. By default 4; with --inside-object 3; with "
            "--recipe contrast 1.",
            "-k",
            "--n-components",
        ),
    ] = None
    recipe: Annotated[
        Recipe | None,
        option(
            FACTORIZATION,
            "paper (the default): several factors. contrast: one map of the object, which stands "
            "out from the images' border.",
        ),
    ] = None
    per_class: Annotated[
        bool,
        option(
            FACTORIZATION,
            "Factorize the images of each class apart: a folder holds a folder for each class.",
            "--per-class",
        ),
    ] = False
    inside_object: Annotated[
        bool,
        option(FACTORIZATION, "Find the object first, then its parts.", "--inside-object"),
    ] = False
    kinds: Annotated[
        str | None,
        option(
            FACTORIZATION,
            "With --recipe contrast: how many kinds of objects the images show. Each gets a "
            "factor. By default auto.",
        ),
    ] = None
    method: Annotated[
        Method | None,
        option(
            FACTORIZATION,
            "auto (the default): nmf, or semi-nmf if the layer has negative values."
            + listed(Method),
            metavar="METHOD",
        ),
    ] = None
    solver: Annotated[
        Solver | None,
        option(
            FACTORIZATION, "For nmf: hals (the default), or the paper's multiplicative updates."
        ),
    ] = None
    channel_weights: Annotated[
        ChannelWeights | None,
        option(FACTORIZATION, "border: channels that respond at the images' border count less."),
    ] = None
    seed: Annotated[int, option(FACTORIZATION, "Random seed of the factorization.", min=0)] = 0


@dataclass
class RunPanel:
    """Where and how a run computes."""

    cache: Cache = None
    memory: Annotated[
        str | None,
        option(
            RUNNING,
            "Memory limit for activations and coefficients, such as 2GiB or 500MB. The rest goes "
            "to disk. By default what is free.",
        ),
    ] = None
    batch_size: BatchSize = BATCH_SIZE
    device: DeviceChoice = Device.AUTO
    engine: EngineChoice = Engine.AUTO
    amp: Annotated[bool, option(RUNNING, "Use mixed precision on a CUDA device.", "--amp")] = False


def discover(
    ctx: typer.Context,
    factors: FactorPanel,
    *,
    out: NewFolder = Path("result"),
    overlays: Overlays = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    network: NetworkPanel,
    images: ImagePanel,
    run: RunPanel,
) -> None:
    """Find what a network treats as the same thing, and write heat maps and a report."""
    _check(images, network, factors)
    k: list[int] | Literal["auto"] | None = (
        "auto" if factors.k == "auto" else None if factors.k is None else factor_counts(factors.k)
    )
    memory = byte_count(run.memory)
    mean, std = three_numbers(images.mean, "--mean"), three_numbers(images.std, "--std")

    from deepff.discovery.discover import discover
    from deepff.discovery.discover_parts import discover_parts
    from deepff.factorization import NMF
    from deepff.images.image_files import natural_key, video_frames
    from deepff.images.samples import sample_images
    from deepff.networks.class_labels import read_labels
    from deepff.networks.loading import load_backbone
    from deepff.report.save import class_folders
    from deepff.runtime import distributed

    distributed.join()
    # In natural order over all that was named: a shell puts img10 before img2.
    named = sorted(images.images or [], key=natural_key)
    files = sample_images() if images.sample else video_frames(named, images.every, images.fps)
    classes = _classes(files) if factors.per_class else None
    if distributed.rank() == 0:
        for folder in class_folders(out, classes).values() if classes else [out]:
            check_output(folder, overwrite)
    backbone = load_backbone(
        network.model,
        weights=network.weights,
        num_classes=network.num_classes,
        mean=mean,
        std=std,
        interpolation=images.interpolation,
        labels=None if network.labels is None else read_labels(network.labels),
        device=run.device,
        engine=run.engine,
    )
    layer = network.layer
    common: dict[str, Any] = {
        "model": backbone,
        "layer": layer[0] if layer and len(layer) == 1 else layer or None,
        "size": images.size,
        "random_state": factors.seed,
        "batch_size": run.batch_size,
        "cache": run.cache,
        "memory": memory,
        "amp": run.amp,
        "stretch": images.stretch,
        "progress": True,
    }
    result: Result | ClassResults
    if factors.inside_object:
        result = discover_parts(files, k or N_PARTS, **common)
    else:
        method = factors.method or Method.AUTO
        common["classes"] = classes
        result = discover(
            files,
            k,
            recipe=factors.recipe or Recipe.PAPER,
            channel_weights=factors.channel_weights,
            kinds=_kinds(factors.kinds),
            method=NMF(1, solver=factors.solver) if factors.solver else method,
            **common,
        )
    is_first = distributed.rank() == 0
    distributed.leave()
    if is_first:
        _save(result, ctx, out, overlays, overwrite, as_json)


def _kinds(text: str | None) -> int | Literal["auto"]:
    if text is None or text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--kinds takes a number of 1 or more, or auto, not {text!r}")
    return int(text)


def _check(images: ImagePanel, network: NetworkPanel, factors: FactorPanel) -> None:
    """Raise InputError where options exclude each other."""
    method, solver = factors.method, factors.solver
    if images.sample and images.images:
        raise InputError("--sample comes with images; leave out either --sample or your images")
    if not images.sample and not images.images:
        raise InputError("no images are given; name folders, files or globs, or try --sample")
    several = factors.per_class or factors.recipe or factors.channel_weights or solver or method
    if factors.inside_object and (several or len(network.layer or ()) > 1):
        raise InputError(
            "--inside-object sets how to factorize one layer; leave out --recipe, --method, "
            "--solver, --channel-weights, --per-class and a second --layer"
        )
    if factors.kinds is not None and factors.recipe is not Recipe.CONTRAST:
        raise InputError(
            "--kinds works only with --recipe contrast; add that, or leave out --kinds"
        )
    if solver and method not in (None, Method.AUTO, Method.NMF):
        raise InputError(f"--solver works only with the method nmf; leave it out for {method}")


def _classes(files: "Sequence[SetImage]") -> list[str]:
    """The class of each file: the first folder in its name."""
    outside = next((file.name for file in files if "/" not in file.name), None)
    if outside is not None:
        raise InputError(
            f"--per-class takes a folder that holds a folder per class, and {outside} is in none"
        )
    return [file.name.partition("/")[0] for file in files]


def _save(
    result: "Result | ClassResults",
    ctx: typer.Context,
    out: Path,
    overlays: bool,
    overwrite: bool,
    as_json: bool = False,
) -> None:
    from deepff.images.stored import public
    from deepff.report.save import CLASSES
    from deepff.result import Result
    from deepff.runtime.outputs import read_manifest

    results = {"": result} if isinstance(result, Result) else result
    for each in results.values():
        each.command = shlex.join(public(x) for x in ctx.obj if x != "--overwrite")
    of_classes = result.save(out, progress=True, overlays=overlays, overwrite=overwrite)
    folders = of_classes or {"": out}
    with redirect_stdout(StringIO()) if as_json else nullcontext():  # but for warnings
        for label, folder in folders.items():
            summarize(results[label], folder)
        if of_classes:
            typer.echo(out / CLASSES)
    if as_json:
        documents = {x: {"folder": str(f), **(read_manifest(f) or {})} for x, f in folders.items()}
        print_json({"classes": documents} if of_classes else documents[""])


def apply(
    ctx: typer.Context,
    bank: Annotated[
        Path, typer.Argument(help="The result's concepts.safetensors.", show_default=False)
    ],
    images: Annotated[list[str], typer.Argument(help=SOURCES, show_default=False)],
    without: Annotated[
        list[str] | None,
        option(
            IMAGES,
            "Images without the object: a folder, file or glob. Repeatable. They show which "
            "scores are too low for the object.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        option(
            IMAGES,
            "Longer side of the resized images, in pixels. By default as in the result; 1.4 times "
            "as much finds more of small or touching objects, in twice the time.",
            min=1,
            show_default=False,
        ),
    ] = None,
    every: Every = 1,
    fps: FramesPerSecond = None,
    out: NewFolder = Path("result"),
    each: Annotated[
        bool,
        option(
            OUTPUT,
            "Write a result for each archive or folder to --out/NAME, without a report except with "
            "--overlays. A rerun continues. Processes of torchrun share the archives.",
            "--each",
        ),
    ] = False,
    format: Annotated[
        list[ExportFormat] | None,
        option(
            OUTPUT,
            "With --each: also export masks and boxes, to --out/NAME/export/FORMAT. Repeatable."
            + listed(ExportFormat),
            metavar="FORMAT",
        ),
    ] = None,
    overlays: Overlays = False,
    overwrite: Overwrite = False,
    weights: Weights = None,
    num_classes: NumClasses = None,
    cache: Cache = None,
    batch_size: BatchSize = BATCH_SIZE,
    device: DeviceChoice = Device.AUTO,
    engine: EngineChoice = Engine.AUTO,
) -> None:
    """Find a result's factors in new images. Then use segment, localize or export.

    Names from `deepff label` are kept.
    Images that were marked there as empty count as --without.
    """
    from deepff.app.label_file import FILE, carry_over, load_labels
    from deepff.app.labels import OBJECT
    from deepff.discovery.apply import apply
    from deepff.images.image_files import find_images, video_frames
    from deepff.report.load import load_result
    from deepff.results.concept_bank import load_concepts
    from deepff.runtime import distributed

    concepts = load_concepts(bank)
    files = [] if each else video_frames(images, every, fps)
    empty: list[SetImage] = [*find_images(without)] if without else []
    if not each:
        if format:
            raise InputError("--format works only with --each; without it, use deepff export")
        check_output(out, overwrite)
    labels = None
    if (bank.parent / FILE).is_file():
        before = load_result(bank.parent)
        labels = load_labels(bank.parent, before)
        if concepts.known is not None:
            is_empty = {name: labels.image(name).shows_nothing for name in before.names}
            empty += [image.item for image in before.images if is_empty[image.name]]
    backbone = None
    distributed.launched()  # before a network is on a GPU
    if each or weights is not None or engine != Engine.AUTO:
        backbone = concepts.sources[0].backbone(
            weights=weights, num_classes=num_classes, device=device, engine=engine
        )
    run = {"size": size, "batch_size": batch_size, "cache": cache, "device": device}
    settings: dict[str, Any] = {**run, "model": backbone}
    if each:
        if empty:
            raise InputError(
                "--each needs a bank that knows images without the object: apply it once"
            )
        saving = {"overlays": overlays, "report": overlays, "overwrite": overwrite}
        return _apply_each(ctx, concepts, images, out, format or [], saving, settings)
    result = apply(concepts, files, without=empty or None, progress=True, **settings)
    if labels is not None and labels.settings.masks == OBJECT and before.object is not None:
        result.object = apply(before.object.bank, files, model=backbone, device=device)
    _save(result, ctx, out, overlays, overwrite)
    if labels is not None and not (out / FILE).exists():
        carry_over(labels, out, result, backbone)


def _apply_each(
    ctx: typer.Context,
    bank: "ConceptBank",
    sources: list[str],
    out: Path,
    formats: list[ExportFormat],
    saving: dict[str, bool],
    settings: dict[str, Any],
) -> None:
    """Save, and export, a result for each source that has none of this bank, and list the next one
    meanwhile. InputError, at the end, for those that cannot be read."""
    from deepff.discovery.apply import apply
    from deepff.export.formats import planned_files
    from deepff.images.image_files import find_images, separate_sources
    from deepff.images.stored import public
    from deepff.report.load import load_result
    from deepff.results.concept_bank import FILE, load_concepts
    from deepff.runtime.distributed import launched
    from deepff.runtime.outputs import read_manifest
    from deepff.runtime.parallel import ahead

    for each in formats:  # a missing package is named before the network runs
        planned_files(each, [], [], ExportOptions())

    def is_saved(name: str) -> bool:
        complete = (read_manifest(out / name) or {}).get("status") == "complete"
        return complete and load_concepts(out / name / FILE).marks_as(bank)

    def lacking(name: str) -> list[ExportFormat]:
        return [each for each in formats if not (out / name / "export" / each).exists()]

    # The images, and the rows of the network, are freed before the next source's.
    def write(name: str, files: "Future[list[ImageFile]]") -> str:
        if is_saved(name):
            result = load_result(out / name)
        else:
            result = apply(bank, files.result(), **settings)
            result.command = shlex.join(map(public, ctx.obj))
            result.save(out / name, **saving)
        for each in lacking(name):
            result.export(each, out / name / "export" / each)
        return f"{out / name}: {len(result.images)} images, {len(result.skipped)} skipped"

    failed = []
    number, n_processes = launched()
    own = list(separate_sources(sources).items())[number::n_processes]
    todo = ((name, x) for name, x in own if not is_saved(name) or lacking(name))
    with ThreadPoolExecutor(1) as pool:
        for name, files in ahead(((name, pool.submit(find_images, x)) for name, x in todo), 1):
            try:
                typer.echo(write(name, files))
            except InputError as error:
                failed.append(f"{name} ({error})")
    if failed:
        raise InputError(f"these are left out, and a rerun tries them again: {'; '.join(failed)}")
