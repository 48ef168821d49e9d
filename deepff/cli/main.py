"""The command ``deepff``."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from deepff import __version__
from deepff.cli.benchmark import app as benchmark_app
from deepff.cli.messages import (
    report_replaced,
    report_skipped,
    summarize,
    user_warnings_as_lines,
    warn,
)
from deepff.cli.network_commands import explain, layers, models
from deepff.cli.parameters import (
    FACTORIZATION,
    IMAGES,
    OUTPUT,
    BatchSize,
    Cache,
    DeviceChoice,
    EngineChoice,
    ImagePaths,
    InterpolationChoice,
    LabelsFile,
    Layers,
    Mean,
    Memory,
    MixedPrecision,
    Model,
    NumClasses,
    Overlays,
    Photos,
    Size,
    Std,
    Stretch,
    Weights,
    byte_count,
    factor_counts,
    three_numbers,
)
from deepff.cli.region_commands import export, localize, segment
from deepff.errors import InputError
from deepff.options import (
    BATCH_SIZE,
    MODEL,
    N_PARTS,
    SIZE,
    ChannelWeights,
    Device,
    Engine,
    Method,
    Recipe,
    Solver,
)


class _Group(TyperGroup):
    """Turns what a user can mend into one sentence and an exit status, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with user_warnings_as_lines():
                return super().invoke(ctx)
        except InputError as error:
            warn(f"error: {error}")
            raise typer.Exit(2) from None
        except BrokenPipeError:  # `deepff layers vgg19 | head`: the reader has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            warn(f"error: {error.strerror or error}{where}")
            raise typer.Exit(2) from None
        except RuntimeError as error:
            # One of the processes of a shared run is gone, and its connections with it.
            if "torch" not in sys.modules or not _is_shared():
                raise
            warn(f"error: another process of this run has stopped ({str(error).splitlines()[0]})")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            warn(f"interrupted; {_going_on(ctx)}")
            raise typer.Exit(130) from None


def _going_on(ctx: Any) -> str:
    """What the same command would do if it were given again."""
    command = ctx.command.commands.get(ctx.invoked_subcommand)
    commands = [command, *getattr(command, "commands", {}).values()]
    parameters = [given for each in commands for given in getattr(each, "params", ())]
    if any("--cache" in given.opts for given in parameters):
        return "with --cache the same command goes on where it stopped"
    return "what was there before has stayed, and the same command begins anew"


def _is_shared() -> bool:
    from deepff.runtime.distributed import n_ranks

    return n_ranks() > 1


app = typer.Typer(
    name="deepff",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(benchmark_app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepff {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Deep Feature Factorization: what a deep CNN sees as alike in a set of images."""


EXAMPLES = """Examples:

deepff discover photos/ -k 4 --out result

deepff discover "photos/**/*.jpg" -k 1-4 --model vgg19 --layer conv5_4
"""


@app.command(epilog=EXAMPLES)
def discover(
    images: ImagePaths = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample", help="Use sample photographs, in several framings.", rich_help_panel=IMAGES
        ),
    ] = False,
    size: Size = SIZE,
    mean: Mean = None,
    std: Std = None,
    interpolation: InterpolationChoice = None,
    model: Model = MODEL,
    layer: Layers = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    labels: LabelsFile = None,
    k: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--n-components",
            help="Number of factors: 4, 1-4, 2,3,6 or auto; by default 4, or 1 for the object.",
            show_default=False,
            rich_help_panel=FACTORIZATION,
        ),
    ] = None,
    recipe: Annotated[
        Recipe | None,
        typer.Option(
            help="contrast: one map of the object, from weighted, fused layers; by default paper.",
            show_default=False,
            rich_help_panel=FACTORIZATION,
        ),
    ] = None,
    inside_object: Annotated[
        bool,
        typer.Option(
            "--inside-object",
            help="The factors are parts of the object, found first.",
            rich_help_panel=FACTORIZATION,
        ),
    ] = False,
    method: Annotated[
        Method | None,
        typer.Option(
            help="By default auto: nmf, or semi-nmf where the layer goes negative.",
            show_default=False,
            rich_help_panel=FACTORIZATION,
        ),
    ] = None,
    solver: Annotated[
        Solver | None,
        typer.Option(
            help="NMF: HALS (the default), or the paper's multiplicative updates.",
            show_default=False,
            rich_help_panel=FACTORIZATION,
        ),
    ] = None,
    channel_weights: Annotated[
        ChannelWeights | None,
        typer.Option(
            help="border: channels weigh more the less they fire on the images' border.",
            show_default=False,
            rich_help_panel=FACTORIZATION,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of the factorization.", rich_help_panel=FACTORIZATION),
    ] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for the result.", rich_help_panel=OUTPUT)
    ] = Path("result"),
    overlays: Overlays = False,
    cache: Cache = None,
    memory: Memory = None,
    batch_size: BatchSize = BATCH_SIZE,
    device: DeviceChoice = Device.AUTO,
    engine: EngineChoice = Engine.AUTO,
    amp: MixedPrecision = False,
    stretch: Stretch = False,
) -> None:
    """Find what a network sees as alike in a set of images; write maps, pictures and a report."""
    if sample and images:
        raise InputError("--sample brings its own images; leave it or the others out")
    if not sample and not images:
        raise InputError("name folders, files or globs of images, or try --sample")
    if inside_object and (recipe or channel_weights or solver or method or len(layer or ()) > 1):
        raise InputError(
            "--inside-object has its own way to factorise one layer; leave out --recipe, --method, "
            "--solver, --channel-weights and a second --layer"
        )
    if solver and method not in (None, Method.AUTO, Method.NMF):
        raise InputError(f"--solver is for the method nmf; leave it out for {method}")
    counts: list[int] | Literal["auto"] | None = (
        "auto" if k == "auto" else None if k is None else factor_counts(k)
    )
    bound = byte_count(memory)
    means, stds = three_numbers(mean, "--mean"), three_numbers(std, "--std")

    from deepff.discovery.discover import discover
    from deepff.discovery.discover_parts import discover_parts
    from deepff.factorization import NMF
    from deepff.images.image_files import find_images, natural_key
    from deepff.images.samples import sample_images
    from deepff.networks.class_labels import read_labels
    from deepff.networks.loading import load_backbone
    from deepff.report.save import check_output_folder
    from deepff.runtime import distributed

    distributed.join()
    if distributed.rank() == 0:
        check_output_folder(out)
        report_replaced(out)
    # In natural order over all that was named: a shell puts img10 before img2.
    named = sorted(images or [], key=lambda path: natural_key(path.as_posix()))
    files = sample_images() if sample else find_images(named)
    backbone = load_backbone(
        model,
        weights=weights,
        num_classes=num_classes,
        mean=means,
        std=stds,
        interpolation=interpolation,
        labels=None if labels is None else read_labels(labels),
        device=device,
        engine=engine,
    )
    common: dict[str, Any] = {
        "model": backbone,
        "layer": layer[0] if layer and len(layer) == 1 else layer or None,
        "size": size,
        "random_state": seed,
        "batch_size": batch_size,
        "cache": cache,
        "memory": bound,
        "amp": amp,
        "stretch": stretch,
        "progress": True,
    }
    if inside_object:
        result = discover_parts(files, counts or N_PARTS, **common)
    else:
        result = discover(
            files,
            counts,
            recipe=recipe or Recipe.PAPER,
            channel_weights=channel_weights,
            method=NMF(1, solver=solver) if solver else method or Method.AUTO,
            **common,
        )
    is_first = distributed.rank() == 0
    distributed.leave()
    if not is_first:
        return
    result.command = shlex.join(["deepff", *sys.argv[1:]])
    result.save(out, progress=True, overlays=overlays)
    report_skipped(result.skipped, out)
    summarize(result, out)


@app.command()
def apply(
    bank: Annotated[
        Path, typer.Argument(help="A result's concepts.safetensors.", show_default=False)
    ],
    images: Annotated[
        list[Path], typer.Argument(help="Folders, files or globs.", show_default=False)
    ],
    weights: Weights = None,
    num_classes: NumClasses = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the result.", rich_help_panel=OUTPUT)
    ] = Path("result"),
    overlays: Overlays = False,
    cache: Cache = None,
    batch_size: BatchSize = BATCH_SIZE,
    device: DeviceChoice = Device.AUTO,
    engine: EngineChoice = Engine.AUTO,
) -> None:
    """Find a result's factors in new images, for segment, localize and export."""
    from deepff.app.label_file import FILE, carry_over, load_labels
    from deepff.discovery.apply import apply
    from deepff.report.load import load
    from deepff.report.save import check_output_folder
    from deepff.results.concept_bank import load_concepts

    concepts = load_concepts(bank)
    check_output_folder(out)
    report_replaced(out)
    backbone = None
    if weights is not None or engine != Engine.AUTO:
        backbone = concepts.sources[0].backbone(
            weights=weights, num_classes=num_classes, device=device, engine=engine
        )
    result = apply(
        concepts,
        images,
        model=backbone,
        batch_size=batch_size,
        cache=cache,
        device=device,
        progress=True,
    )
    result.command = shlex.join(["deepff", *sys.argv[1:]])
    result.save(out, progress=True, overlays=overlays)
    if (bank.parent / FILE).is_file():
        carry_over(load_labels(bank.parent, load(bank.parent)), out, result)
    report_skipped(result.skipped, out)
    summarize(result, out)


for command in (explain, segment, localize, export, models, layers):
    app.command()(command)


@app.command()
def show(folder: Annotated[Path, typer.Argument(help="Folder of a result.")]) -> None:
    """Open the report of a result in the browser."""
    import webbrowser

    from deepff.report.manifest import complete_manifest

    complete_manifest(folder)
    report = (folder / "report.html").resolve()
    if not report.is_file():
        raise InputError(f"{folder} has no report.html; run its command again")
    typer.echo(report)
    webbrowser.open(report.as_uri())


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
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that the page may be asked for by, such as a proxy's; may be repeated.",
            show_default=False,
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="The path that a proxy serves the page under, such as /label.")
    ] = "",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    photos: Photos = None,
    device: DeviceChoice = Device.AUTO,
) -> None:
    """Name factors in the browser, look the images over, and export what they mark."""
    import webbrowser
    from threading import Thread

    from deepff.app.label_file import FILE
    from deepff.app.server import is_loopback, serve
    from deepff.app.workspace import open_workspace

    workspace = open_workspace(
        sources, out, None if k is None else factor_counts(k), device, photos
    )
    if not is_loopback(host):
        warn(f"whoever reaches {host} can see the images of {workspace.folder} and change labels")

    def announce(url: str) -> None:
        typer.echo(url)
        if browser:  # beside, as some browsers keep the one who opens them waiting
            Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    try:
        serve(workspace, host, port, announce, allow_host or [], root_path)
    except KeyboardInterrupt:
        if (saved := workspace.folder / FILE).exists():
            typer.echo(f"saved in {saved}")
