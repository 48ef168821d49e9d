"""The commands that make a result: ``discover`` and ``apply``."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepff.cli.messages import check_output, summarize
from deepff.cli.parameters import (
    FACTORIZATION,
    IMAGES,
    NETWORK,
    RUNNING,
    BatchSize,
    Cache,
    DeviceChoice,
    EngineChoice,
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
    Interpolation,
    Method,
    Recipe,
    Solver,
)

if TYPE_CHECKING:
    from deepff.images.image_set import SetImage
    from deepff.result import Result


@dataclass
class ImagePanel:
    """Which images are factorized, and how they are prepared."""

    images: Annotated[list[Path] | None, typer.Argument(help="Folders, files or globs.")] = None
    sample: Annotated[
        bool, option(IMAGES, "Use sample photographs, in several framings.", "--sample")
    ] = False
    size: Size = SIZE
    mean: Annotated[str | None, option(IMAGES, "Channel means, as R,G,B in [0, 1].")] = None
    std: Annotated[str | None, option(IMAGES, "Channel deviations, as R,G,B.")] = None
    interpolation: Annotated[
        Interpolation | None,
        option(IMAGES, "How images are resized; by default as the network was trained."),
    ] = None
    stretch: Annotated[
        bool,
        option(IMAGES, "Make the largest value of images of 10 to 16 bits white.", "--stretch"),
    ] = False


@dataclass
class NetworkPanel:
    """The network and its layers."""

    model: Model = MODEL
    layer: Annotated[
        list[str] | None,
        option(NETWORK, "Layer, as `deepff layers` lists it; several give one map of the object."),
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
            "Number of factors: 4, 1-4, 2,3,6 or auto; by default 4, or 1 for the object.",
            "-k",
            "--n-components",
        ),
    ] = None
    recipe: Annotated[
        Recipe | None,
        option(
            FACTORIZATION,
            "contrast: one map of the object, from weighted, fused layers; by default paper.",
        ),
    ] = None
    inside_object: Annotated[
        bool,
        option(
            FACTORIZATION, "The factors are parts of the object, found first.", "--inside-object"
        ),
    ] = False
    method: Annotated[
        Method | None,
        option(
            FACTORIZATION,
            "By default auto: nmf, or semi-nmf where the layer goes negative." + listed(Method),
            metavar="METHOD",
        ),
    ] = None
    solver: Annotated[
        Solver | None,
        option(FACTORIZATION, "NMF: HALS (the default), or the paper's multiplicative updates."),
    ] = None
    channel_weights: Annotated[
        ChannelWeights | None,
        option(
            FACTORIZATION, "border: channels weigh more the less they fire on the images' border."
        ),
    ] = None
    kinds: Annotated[
        str | None,
        option(
            FACTORIZATION,
            "For --recipe contrast: how many kinds of things the images show, each a factor of "
            "its own; by default auto.",
        ),
    ] = None
    seed: Annotated[int, option(FACTORIZATION, "Seed of the factorization.", min=0)] = 0


@dataclass
class RunPanel:
    """Where and how a run computes."""

    cache: Cache = None
    memory: Annotated[
        str | None,
        option(
            RUNNING,
            "What activations and coefficients may take in memory, such as 2GiB or 500MB; "
            "the rest is on disk. By default what is free.",
        ),
    ] = None
    batch_size: BatchSize = BATCH_SIZE
    device: DeviceChoice = Device.AUTO
    engine: EngineChoice = Engine.AUTO
    amp: Annotated[bool, option(RUNNING, "Mixed precision on a CUDA device.", "--amp")] = False


def discover(
    ctx: typer.Context,
    images: ImagePanel,
    network: NetworkPanel,
    factors: FactorPanel,
    *,
    out: NewFolder = Path("result"),
    overlays: Overlays = False,
    overwrite: Overwrite = False,
    run: RunPanel,
) -> None:
    """Find what a network treats as the same thing; write heat maps, pictures and a report."""
    _check(images, network, factors)
    k: list[int] | Literal["auto"] | None = (
        "auto" if factors.k == "auto" else None if factors.k is None else factor_counts(factors.k)
    )
    memory = byte_count(run.memory)
    mean, std = three_numbers(images.mean, "--mean"), three_numbers(images.std, "--std")

    from deepff.discovery.discover import discover
    from deepff.discovery.discover_parts import discover_parts
    from deepff.factorization import NMF
    from deepff.images.image_files import find_images, natural_key
    from deepff.images.samples import sample_images
    from deepff.networks.class_labels import read_labels
    from deepff.networks.loading import load_backbone
    from deepff.runtime import distributed

    distributed.join()
    # In natural order over all that was named: a shell puts img10 before img2.
    named = sorted(images.images or [], key=lambda path: natural_key(path.as_posix()))
    files = sample_images() if images.sample else find_images(named)
    if distributed.rank() == 0:
        check_output(out, overwrite)
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
    if factors.inside_object:
        result = discover_parts(files, k or N_PARTS, **common)
    else:
        method = factors.method or Method.AUTO
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
        _save(result, ctx, out, overlays, overwrite)


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
        raise InputError("--sample brings its own images; leave it or the others out")
    if not images.sample and not images.images:
        raise InputError("name folders, files or globs of images, or try --sample")
    several = factors.recipe or factors.channel_weights or solver or method
    if factors.inside_object and (several or len(network.layer or ()) > 1):
        raise InputError(
            "--inside-object has its own way to factorize one layer; leave out --recipe, --method, "
            "--solver, --channel-weights and a second --layer"
        )
    if factors.kinds is not None and factors.recipe is not Recipe.CONTRAST:
        raise InputError("--kinds is for --recipe contrast; leave it out, or add the recipe")
    if solver and method not in (None, Method.AUTO, Method.NMF):
        raise InputError(f"--solver is for the method nmf; leave it out for {method}")


def _save(result: "Result", ctx: typer.Context, out: Path, overlays: bool, overwrite: bool) -> None:
    result.command = shlex.join(argument for argument in ctx.obj if argument != "--overwrite")
    result.save(out, progress=True, overlays=overlays, overwrite=overwrite)
    summarize(result, out)


def apply(
    ctx: typer.Context,
    bank: Annotated[
        Path, typer.Argument(help="A result's concepts.safetensors.", show_default=False)
    ],
    images: Annotated[
        list[Path], typer.Argument(help="Folders, files or globs.", show_default=False)
    ],
    without: Annotated[
        list[Path] | None,
        option(
            IMAGES,
            "Images that do not show the object: a folder, file or glob, any number of times. They "
            "tell what is left out for its score.",
        ),
    ] = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    out: NewFolder = Path("result"),
    overlays: Overlays = False,
    overwrite: Overwrite = False,
    cache: Cache = None,
    batch_size: BatchSize = BATCH_SIZE,
    device: DeviceChoice = Device.AUTO,
    engine: EngineChoice = Engine.AUTO,
) -> None:
    """Find a result's factors in new images, for segment, localize and export.

    Names that were given in `deepff label` go along, and images in which it was decided that
    nothing is here count as --without.
    """
    from deepff.app.label_file import FILE, carry_over, load_labels
    from deepff.app.labels import OBJECT
    from deepff.discovery.apply import apply
    from deepff.images.image_files import find_images
    from deepff.report.load import load
    from deepff.results.concept_bank import load_concepts

    concepts, files = load_concepts(bank), find_images(images)
    empty: list[SetImage] = [*find_images(without)] if without else []
    check_output(out, overwrite)
    labels = None
    if (bank.parent / FILE).is_file():
        before = load(bank.parent)
        labels = load_labels(bank.parent, before)
        if concepts.known is not None:
            is_empty = {name: labels.image(name).shows_nothing for name in before.names}
            empty += [image.item for image in before.images if is_empty[image.name]]
    backbone = None
    if weights is not None or engine != Engine.AUTO:
        backbone = concepts.sources[0].backbone(
            weights=weights, num_classes=num_classes, device=device, engine=engine
        )
    result = apply(
        concepts,
        files,
        without=empty or None,
        model=backbone,
        batch_size=batch_size,
        cache=cache,
        device=device,
        progress=True,
    )
    if labels is not None and labels.settings.masks == OBJECT and before.object is not None:
        result.object = apply(before.object.bank, files, model=backbone, device=device)
    _save(result, ctx, out, overlays, overwrite)
    if labels is not None and not (out / FILE).exists():
        carry_over(labels, out, result, backbone)
