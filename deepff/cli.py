"""The command ``deepff``."""

import shlex
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from deepff.benchmark.cli import app as benchmark_app
from deepff.cli_options import (
    BatchSize,
    Cache,
    Crf,
    Device,
    DeviceChoice,
    FactorCount,
    Memory,
    Model,
    NumClasses,
    Object,
    Parts,
    Recipe,
    RecipeChoice,
    Refine,
    RefineMethod,
    ResultFolder,
    Size,
    Threshold,
    ThresholdMethod,
    ThresholdValue,
    Weights,
    byte_count,
    numbers,
)
from deepff.errors import InputError

if TYPE_CHECKING:
    from deepff.images import SkippedFile
    from deepff.regions import RegionOptions
    from deepff.result import Result


class _Group(TyperGroup):
    """Turns what a user can mend into one sentence and an exit status, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            _warn(f"error: {error}")
            raise typer.Exit(2) from None
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            _warn(f"error: {error.strerror or error}{where}")
            raise typer.Exit(2) from None
        except RuntimeError as error:
            # One of the processes of a shared run is gone, and its connections with it.
            if "torch" not in sys.modules or not _is_shared():
                raise
            _warn(f"error: another process of this run has stopped ({str(error).splitlines()[0]})")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            _warn("interrupted; with --cache the same command goes on where it stopped")
            raise typer.Exit(130) from None


def _is_shared() -> bool:
    from deepff.ranks import n_ranks

    return n_ranks() > 1


def _warn(message: str) -> None:
    typer.echo(f"deepff: {message}", err=True)


app = typer.Typer(
    name="deepff",
    cls=_Group,
    help="Deep Feature Factorization: what a deep CNN sees as alike in a set of images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(benchmark_app)


class Method(StrEnum):
    """How activations are factorised."""

    nmf = "nmf"
    pca = "pca"
    kmeans = "kmeans"


class Solver(StrEnum):
    """How NMF is solved."""

    hals = "hals"
    mu = "mu"


class ChannelWeights(StrEnum):
    """What channels are multiplied with before the factorization."""

    none = "none"
    border = "border"


class Interpolation(StrEnum):
    """How images are resized."""

    bilinear = "bilinear"
    bicubic = "bicubic"


def _triple(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 3:
        raise InputError(f"{option} takes three numbers such as 0.5,0.5,0.5, not {text!r}")
    return values


@app.command()
def discover(
    images: Annotated[
        list[Path] | None, typer.Argument(help="Folders, files or globs.", show_default=False)
    ] = None,
    k: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--n-components",
            help="Number of factors: 4, 1-4, 2,3,6 or auto; by default 4, or 1 for the object.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the result.")] = Path("result"),
    sample: Annotated[bool, typer.Option("--sample", help="Use six sample photographs.")] = False,
    model: Model = "efficientnet_lite0",
    layer: Annotated[
        list[str] | None,
        typer.Option(
            help="Layer, as `deepff layers` lists it; several give one map of the object.",
            show_default=False,
        ),
    ] = None,
    channel_weights: Annotated[
        ChannelWeights | None,
        typer.Option(help="border: channels weigh more the less they fire on the images' border."),
    ] = None,
    recipe: Annotated[
        Recipe, typer.Option(help="contrast: one map of the object, from weighted, fused layers.")
    ] = Recipe.paper,
    inside_object: Annotated[
        bool,
        typer.Option("--inside-object", help="The factors are parts of the object, found first."),
    ] = False,
    size: Size = 448,
    weights: Weights = None,
    num_classes: NumClasses = None,
    mean: Annotated[str | None, typer.Option(help="Channel means, as R,G,B in [0, 1].")] = None,
    std: Annotated[str | None, typer.Option(help="Channel deviations, as R,G,B.")] = None,
    interpolation: Annotated[
        Interpolation | None, typer.Option(help="How images are resized.")
    ] = None,
    method: Annotated[Method, typer.Option(help="How activations are factorised.")] = Method.nmf,
    solver: Annotated[
        Solver | None, typer.Option(help="NMF: HALS, or the paper's multiplicative updates.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the factorization.")] = 0,
    cache: Cache = None,
    memory: Memory = None,
    batch_size: BatchSize = 8,
    device: DeviceChoice = Device.auto,
    amp: Annotated[bool, typer.Option("--amp", help="Mixed precision on a CUDA device.")] = False,
) -> None:
    """Find what a network sees as alike in a set of images; write maps, pictures and a report."""
    if sample == bool(images):
        raise InputError("name folders, files or globs of images, or --sample, and not both")
    counts: list[int] | Literal["auto"] | None = (
        "auto" if k == "auto" else None if k is None else numbers(k)
    )
    bound = byte_count(memory)
    means, stds = _triple(mean, "--mean"), _triple(std, "--std")

    from deepff import ranks
    from deepff.discovery import discover
    from deepff.image_files import sample_images
    from deepff.part_discovery import discover_parts
    from deepff.result import check_output_folder

    ranks.join()
    if ranks.rank() == 0:
        check_output_folder(out)
    if inside_object and (
        channel_weights or solver or method != Method.nmf or len(layer or ()) > 1
    ):
        raise InputError(
            "--inside-object has its own way to factorise one layer; leave out --method, --solver, "
            "--channel-weights and a second --layer"
        )
    files = sample_images() if sample else images or []
    common: dict[str, Any] = {
        "model": model,
        "layer": layer[0] if layer and len(layer) == 1 else layer,
        "size": size,
        "weights": weights,
        "num_classes": num_classes,
        "mean": means,
        "std": stds,
        "interpolation": interpolation,
        "random_state": seed,
        "batch_size": batch_size,
        "cache": cache,
        "memory": bound,
        "device": device,
        "amp": amp,
        "progress": True,
    }
    if inside_object:
        result = discover_parts(files, counts or 3, **common)
    else:
        result = discover(
            files,
            counts,
            recipe=recipe,
            channel_weights=channel_weights,
            method=method,
            method_options={} if solver is None else {"solver": solver.value},
            **common,
        )
    if ranks.rank() > 0:
        return
    result.command = shlex.join(["deepff", *sys.argv[1:]])
    result.save(out, progress=True)
    _report_skipped(result.skipped, out)
    _summarize(result, out)


def _report_skipped(skipped: "list[SkippedFile]", out: Path) -> None:
    if skipped:
        shown = "; ".join(f"{file.name} ({file.reason})" for file in skipped[:3])
        rest = f"; all are in {out / 'manifest.json'}" if len(skipped) > 3 else ""
        _warn(f"skipped {len(skipped)} of the files: {shown}{rest}")


def _summarize(result: "Result", out: Path) -> None:
    from deepff.foreground import separation_warning

    errors = ", ".join(
        f"k={k}: {found.relative_error:.3f}" for k, found in result.factorizations.items()
    )
    n = len(result.images)
    typer.echo(f"{n} image{'s' if n > 1 else ''}, {result.model} {result.layer}")
    for k, found in result.factorizations.items():
        empty = [str(j) for j, share in enumerate(found.energy_shares.tolist()) if share == 0]
        if empty:
            _warn(f"at k = {k} nothing is left for factor {', '.join(empty)}; a smaller k will do")
    typer.echo(f"relative error {errors}")
    if result.separation is not None:
        warning = separation_warning(result.separation)
        if warning:
            _warn(warning)
    typer.echo(out / "report.html")


@app.command()
def apply(
    bank: Annotated[
        Path, typer.Argument(help="A result's concepts.safetensors.", show_default=False)
    ],
    images: Annotated[
        list[Path], typer.Argument(help="Folders, files or globs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the result.")] = Path("result"),
    weights: Weights = None,
    num_classes: NumClasses = None,
    cache: Cache = None,
    batch_size: BatchSize = 8,
    device: DeviceChoice = Device.auto,
) -> None:
    """Find a result's factors in new images, for segment, localize and export."""
    from deepff.application import apply
    from deepff.concepts import load_concepts
    from deepff.result import check_output_folder

    concepts = load_concepts(bank)
    check_output_folder(out)
    result = apply(
        concepts,
        images,
        weights=weights,
        num_classes=num_classes,
        batch_size=batch_size,
        cache=cache,
        device=device,
        progress=True,
    )
    result.command = shlex.join(["deepff", *sys.argv[1:]])
    result.save(out, progress=True)
    _report_skipped(result.skipped, out)
    _summarize(result, out)


@app.command()
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
    from deepff.result import load

    result, where, k = _opened(folder, k, object, recipe, weights, num_classes, device)
    options = _region_options(result, k, recipe, threshold, value, refine, crf, parts)
    typer.echo(segment(result, where, k, options, progress=True))
    if where != folder:
        whole = load(folder)
        if 1 in whole.factorizations:
            compare_recipes(whole, folder, progress=True)
            typer.echo(folder / "report.html")


@app.command()
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
    min_area: Annotated[int, typer.Option(min=1, help="Leave out components of fewer pixels.")] = 1,
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
    from deepff.result import OBJECT, load

    result = load(folder)
    if not object or result.recipe == "contrast":
        return result, folder, k
    if k not in (None, 1):
        raise InputError(f"--object is one factor; leave out -k {k}")
    if recipe is Recipe.paper:
        return result, folder, 1
    if result.object is None:
        from deepff.discovery import find_object

        result.object = find_object(
            result, weights=weights, num_classes=num_classes, device=device, progress=True
        )
        result.object.save(folder / OBJECT, progress=True)
        _summarize(result.object, folder / OBJECT)
    return result.object, folder / OBJECT, 1


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
    from deepff.parts import read_parts
    from deepff.regions import RECIPE_OPTIONS, RegionOptions, factorization_for

    if crf and refine not in (None, Refine.guided_crf):
        raise InputError(f"--crf means --refine guided-crf; leave it out for {refine.value}")
    refine = Refine.guided_crf if crf else refine
    defaults = RECIPE_OPTIONS[recipe or result.recipe]
    method = defaults.threshold if threshold is None else threshold.value
    if value is None:
        value = 0.5 if method == "max-fraction" else 75.0
    n_factors = factorization_for(result, k).heatmaps.n_factors
    names = None if parts is None else read_parts(parts, n_factors)
    return RegionOptions(method, value, refine.value if refine else defaults.refine, names)


@app.command()
def models() -> None:
    """List networks, with their default layers and what must be downloaded."""
    from deepff.backbones import available_models

    rows = [(info.name, info.default_layer, info.download) for info in available_models()]
    _print_table(("model", "default layer", "to download"), rows)


@app.command()
def layers(
    model: Annotated[str, typer.Argument(help="Network, as `deepff models` lists it.")],
    size: Size = 448,
    weights: Weights = None,
    num_classes: NumClasses = None,
) -> None:
    """List a network's layers; signed ones are not for NMF."""
    from deepff.backbones import load_backbone
    from deepff.layers import list_layers

    # Without a file the layers are those of random weights: nothing need be downloaded to see them.
    backbone = load_backbone(
        model, weights=weights, num_classes=num_classes, pretrained=weights is not None
    )
    rows = [
        (
            layer.name if layer.name == layer.path else f"{layer.name} ({layer.path})",
            str(layer.channels),
            str(layer.stride),
            f"{layer.grid[0]} × {layer.grid[1]}",
            "never" if layer.non_negative else f"down to {layer.minimum:.2g}",
        )
        for layer in list_layers(backbone, size)
    ]
    _print_table(("layer", "channels", "stride", "grid", "negative"), rows)


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


@app.command()
def show(folder: Annotated[Path, typer.Argument(help="Folder of a result.")]) -> None:
    """Open the report of a result in the browser."""
    import webbrowser

    from deepff.result import load

    load(folder)
    report = (folder / "report.html").resolve()
    if not report.is_file():
        raise InputError(f"{folder} has no report.html; run its command again")
    typer.echo(report)
    webbrowser.open(report.as_uri())


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


@app.command()
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
    min_area: Annotated[int, typer.Option(min=1, help="Leave out instances of fewer pixels.")] = 1,
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
        from deepff.result import load

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


@app.command()
def label(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Folder of a result; or folders, files or globs of images, which are factorised "
            "first.",
            show_default=False,
        ),
    ],
    k: Annotated[
        str | None,
        typer.Option("-k", help="Numbers of factors of a new result; by default 1-6."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a new result; by default result.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default for this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="By default the first free one from 7860."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Name factors in the browser, look the images over, and export what they mark."""
    import webbrowser

    from deepff.app.server import is_loopback, serve
    from deepff.app.workspace import open_workspace

    workspace = open_workspace(sources, out, None if k is None else numbers(k))
    if not is_loopback(host):
        _warn(f"whoever reaches {host} can see the images of {workspace.folder} and change labels")

    def announce(url: str) -> None:
        typer.echo(url)
        if browser:
            webbrowser.open(url)

    try:
        serve(workspace, host, port, announce)
    except KeyboardInterrupt:
        typer.echo(f"saved in {workspace.folder / 'labels.json'}")
