"""``deepff benchmark``: the paper's tables and figures, one command each."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from deepff.cli.parameters import (
    IMAGES,
    NETWORK,
    Cache,
    Command,
    DeviceChoice,
    Model,
    NumClasses,
    Size,
    Weights,
    factor_counts,
    listed,
    option,
    with_panels,
)
from deepff.errors import InputError
from deepff.options import MODEL, SIZE, Device, Solver, VocFilter

if TYPE_CHECKING:
    from deepff.evaluation.predictions import Network
    from deepff.evaluation.tables import Table

app = typer.Typer(
    name="benchmark",
    help="Reproduce the paper's tables and figures on your copy of the data sets.",
    no_args_is_help=True,
)

T = TypeVar("T")

PAPER_GROUPS = "021, 017, 018, 020, 036, 042"  # with spaces, so that `--help` can wrap them
PART_CLASSES = "aeroplane, bird, car, motorbike, cat"
EXAMPLE_CLASSES = f"{PART_CLASSES}, cow"

Data = Annotated[Path, typer.Option(help="Folder of the data set.", show_default=False)]
LayerName = Annotated[str | None, option(NETWORK, "Layer: a name from `deepff layers`.", "--layer")]
Crf = Annotated[
    bool, typer.Option("--crf/--no-crf", help="Add rows for DFF-CRF and deepff's refinements.")
]
Contrast = Annotated[
    bool, typer.Option("--contrast/--no-contrast", help="Add rows for the recipe contrast.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Average over this many seeds.")]
Out = Annotated[Path, typer.Option(help="Folder for Markdown, CSV and JSON files.")]
Counts = Annotated[str, typer.Option("-k", help="Numbers of factors: 4, 1-4 or 2,3,6.")]
PartClasses = Annotated[
    str, typer.Option("--classes", help="Classes of PASCAL-Part, separated by commas.")
]
Groups = Annotated[
    str,
    typer.Option(
        help="Groups of iCoseg by number or name, separated by commas, or all. The default is the "
        "paper's."
    ),
]
PartMasks = Annotated[
    Path | None,
    typer.Option(help="Part masks for iCoseg: a folder with a folder of label PNGs per group."),
]
ImageList = Annotated[
    Path | None, typer.Option(help="File with the iCoseg images to use, one per line.")
]
# The files that are written into the folder of --out, after the command's name, and into that of
# --write-overlays.
_PUBLISHED = r"(-top|-bottom|-factors|-quality)*(-\d+)?\.(md|csv|json|jpg|png)"
_OVERLAYS = r"[^/]+\.jpg"


@dataclass
class SetupPanel:
    """How networks are prepared, where they run, and how their activations are factorized."""

    size: Size = SIZE
    num_classes: NumClasses = None
    cache: Cache = None
    device: DeviceChoice = Device.AUTO
    solver: Annotated[
        Solver, typer.Option(help="Solver of NMF. mu: the paper's multiplicative updates.")
    ] = Solver.HALS
    weights: Weights = None


@dataclass
class NetworkPanel(SetupPanel):
    """One network and one layer of it."""

    model: Model = MODEL
    layer: LayerName = None


@app.command(cls=Command)
@with_panels
def table1(
    data: Data,
    *,
    groups: Groups = PAPER_GROUPS,
    parts: PartMasks = None,
    images: ImageList = None,
    setup: NetworkPanel,
    crf: Crf = True,
    contrast: Contrast = True,
    seeds: Seeds = 1,
    out: Out = Path("benchmark/table1"),
) -> None:
    """Co-segmentation on iCoseg: IoU of objects with k = 1, and of parts with k = 2, 3, 4."""
    _check_files(out, "table1" + _PUBLISHED)
    network = _network(setup.model, setup.layer, setup, contrast)

    from deepff.evaluation.objects import table1

    tables = table1(
        network, data, groups=_names(groups), parts=parts, images=images, crf=crf, seeds=seeds
    )
    _publish(tables, out)


@app.command(cls=Command)
@with_panels
def table2(
    data: Data,
    *,
    classes: Annotated[
        str | None, typer.Option(help="Classes of VOC, separated by commas. By default all.")
    ] = None,
    filter: Annotated[
        VocFilter,
        option(
            IMAGES,
            "Leave out images that show only instances of this kind." + listed(VocFilter),
            metavar="KIND",
        ),
    ] = VocFilter.DIFFICULT_OR_TRUNCATED,
    setup: NetworkPanel,
    crf: Crf = True,
    contrast: Contrast = True,
    seeds: Seeds = 1,
    out: Out = Path("benchmark/table2"),
) -> None:
    """Co-localization on Pascal VOC 2007: CorLoc of each class with k = 1."""
    _check_files(out, "table2" + _PUBLISHED)
    network = _network(setup.model, setup.layer, setup, contrast)

    from deepff.evaluation.datasets.pascal import VOC_CLASSES
    from deepff.evaluation.objects import table2

    wanted = VOC_CLASSES if classes is None else _names(classes)
    table = table2(network, data, classes=wanted, filter=filter, crf=crf, seeds=seeds)
    _publish({"table2": table}, out)


@app.command(cls=Command)
@with_panels
def table3(
    data: Data,
    *,
    mapping: Annotated[
        list[Path] | None,
        typer.Option(
            help="Files that name the factors, cow.yaml and horse.yaml, with lines like 0: head.",
            show_default=False,
        ),
    ] = None,
    write_overlays: Annotated[
        Path | None, typer.Option(help="Folder for pictures that help you write these files.")
    ] = None,
    setup: NetworkPanel,
    crf: Crf = True,
    out: Out = Path("benchmark/table3"),
) -> None:
    """Parts of PASCAL-Part's cows and horses with k = 3, from factors that you name."""
    _check_files(out, "table3" + _PUBLISHED)
    if write_overlays is not None:
        _check_files(write_overlays, _OVERLAYS)
    network = _network(setup.model, setup.layer, setup)

    from deepff.evaluation.named_parts import table3

    table = table3(network, data, mappings=mapping or (), overlays=write_overlays, crf=crf)
    _publish({"table3": table}, out)
    if write_overlays is not None:
        typer.echo(write_overlays)


@app.command(cls=Command)
@with_panels
def table4(
    data: Data,
    *,
    k: Counts = "1-4",
    classes: PartClasses = PART_CLASSES,
    setup: NetworkPanel,
    crf: Crf = True,
    seeds: Seeds = 1,
    out: Out = Path("benchmark/table4"),
) -> None:
    """Parts named automatically, on PASCAL-Part or on a COCO file with parts."""
    counts = factor_counts(k)
    _check_files(out, "table4" + _PUBLISHED)
    network = _network(setup.model, setup.layer, setup)

    from deepff.evaluation.discovered_parts import table4

    tables = table4(network, data, counts, classes=_names(classes), crf=crf, seeds=seeds)
    _publish(tables, out)


@app.command(cls=Command)
@with_panels
def figure3(
    data: Data,
    *,
    groups: Groups = "036, 021",
    images: ImageList = None,
    k: Counts = "1-4",
    setup: NetworkPanel,
    out: Out = Path("benchmark/figure3"),
) -> None:
    """Picture of the heat maps for each k on photos of iCoseg's groups."""
    counts = factor_counts(k)
    _check_files(out, "figure3" + _PUBLISHED)
    network = _network(setup.model, setup.layer, setup)

    from deepff.evaluation.paper_figures import figure3
    from deepff.pictures.crops import save_jpeg

    picture = figure3(network, data, counts, _names(groups), images)

    def draw(folder: Path) -> Path:
        save_jpeg(picture, folder / "figure3.jpg")
        return folder / "figure3.jpg"

    _publish({}, out, draw)


@app.command(cls=Command)
@with_panels
def figure5(
    data: Data,
    *,
    classes: PartClasses = EXAMPLE_CLASSES,
    setup: NetworkPanel,
    out: Out = Path("benchmark/figure5"),
) -> None:
    """Heat maps with k = 3 on PASCAL-Part's photos, with IoU: four successes and a failure."""
    _check_files(out, "figure5" + _PUBLISHED)
    network = _network(setup.model, setup.layer, setup)

    from deepff.evaluation.paper_figures import figure5

    _publish({"figure5": figure5(network, data, _names(classes))}, out)


@app.command(cls=Command)
@with_panels
def figure4(
    data: Data,
    *,
    model: Annotated[
        list[str] | None,
        option(NETWORK, "Network: a name from `deepff models`. Repeat it for a curve each."),
    ] = None,
    layer: Annotated[
        list[str] | None,
        option(
            NETWORK,
            "Layer. Repeat it for a curve each. By default the last layer of each stride of one "
            "network, or the default layers of several.",
        ),
    ] = None,
    parts: PartMasks = None,
    groups: Groups = PAPER_GROUPS,
    images: ImageList = None,
    classes: PartClasses = PART_CLASSES,
    k: Counts = "1-6",
    crf: Annotated[bool, typer.Option("--crf/--no-crf", help="Refine masks with DFF-CRF.")] = False,
    seeds: Seeds = 3,
    setup: SetupPanel,
    out: Out = Path("benchmark/figure4"),
) -> None:
    """Plot and table of factor quality over k, for layers of a network or for networks."""
    from deepff.evaluation.discovered_parts import part_sets
    from deepff.evaluation.objects import icoseg_part_sets
    from deepff.evaluation.paper_figures import figure4, require_matplotlib, write_plot

    counts = factor_counts(k)
    require_matplotlib()
    models = model or [MODEL]
    name = "figure4a" if len(models) == 1 else "figure4b"
    _check_files(out, name + _PUBLISHED)
    if parts is None:
        sets = part_sets(data, _names(classes))
    else:
        sets = icoseg_part_sets(data, parts, _names(groups), images)
    if not layer and len(models) == 1:
        layer = _layer_names(_network(models[0], None, setup))
    table, curves = figure4(
        name,
        _curve_networks(models, layer or [], setup),
        sets,
        counts,
        crf=crf,
        seeds=seeds,
        in_paper=parts is not None,
    )

    def plot(folder: Path) -> Path:
        return write_plot(curves, counts, table.title, folder / f"{name}.png")

    _publish({name: table}, out, plot)


def _curve_networks(
    models: Sequence[str], layers: Sequence[str], setup: SetupPanel
) -> "dict[str, Callable[[], Network]]":
    """What loads the network of each curve, by what tells the curves apart."""
    n = max(len(models), len(layers))
    if setup.weights is not None and len(models) > 1:
        raise InputError("--weights is for one network; use it with a single --model")
    networks: dict[str, Callable[[], Network]] = {}
    for model, layer in zip(
        _per_curve("--model", models, n), _per_curve("--layer", layers or [None], n), strict=True
    ):
        apart = [name for name, of in ((model, models), (layer, layers)) if name and len(of) > 1]
        networks[", ".join(apart) or str(layer)] = partial(_network, model, layer, setup)
    return networks


def _per_curve(option: str, values: Sequence[T], n: int) -> Sequence[T]:
    """The option's value for each of n curves, in order, or the one for all of them."""
    if len(values) not in (1, n):
        raise InputError(
            f"{option} is given {len(values)} times for {n} curves; give it once per curve, in "
            "order, or once for all"
        )
    return [*values] * (n // len(values))


def _network(model: str, layer: str | None, setup: SetupPanel, contrast: bool = False) -> "Network":
    from deepff.evaluation.predictions import Network
    from deepff.networks.loading import load_backbone

    backbone = load_backbone(
        model, weights=setup.weights, num_classes=setup.num_classes, device=setup.device
    )
    return Network.of(backbone, layer, setup.size, setup.cache, contrast, setup.solver)


def _layer_names(network: "Network") -> list[str]:
    """The last layer of each of the four largest strides that is never negative."""
    from deepff.layers.layer_map import list_layers

    by_stride = {
        layer.stride: layer.name
        for layer in list_layers(network.backbone, network.size)
        if layer.non_negative and min(layer.grid) > 1
    }
    return [by_stride[stride] for stride in sorted(by_stride)[-4:]]


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("name at least one class or group, separated by commas")
    return names


def _check_files(folder: Path, pattern: str) -> None:
    """Refuse, before hours of work, to replace files of these names that deepff did not write."""
    from deepff.runtime.files import check_writable
    from deepff.runtime.outputs import NO_OVERWRITE_OPTION, check_outputs

    names = [path.name for path in folder.glob("*") if re.fullmatch(pattern, path.name)]
    check_outputs(folder, names, NO_OVERWRITE_OPTION)
    check_writable(folder)


def _publish(
    tables: "dict[str, Table]", out: Path, plot: Callable[[Path], Path] | None = None
) -> None:
    from deepff.evaluation.tables import write_tables
    from deepff.runtime.outputs import NO_OVERWRITE_OPTION, output_folder

    for table in tables.values():
        typer.echo(table.markdown())
    with output_folder(out, NO_OVERWRITE_OPTION) as folder:
        paths = write_tables(tables, folder)
        if plot is not None:
            paths.append(plot(folder))
    for path in paths:
        typer.echo(out / path.name)
