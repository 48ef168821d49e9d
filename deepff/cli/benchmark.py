"""``deepff benchmark``: the paper's tables and figures, one command each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepff.cli.parameters import (
    Cache,
    DeviceChoice,
    Model,
    NumClasses,
    Size,
    Weights,
    factor_counts,
    with_panels,
)
from deepff.errors import InputError
from deepff.options import SIZE, Device, VocFilter

if TYPE_CHECKING:
    from deepff.evaluation.predictions import Network
    from deepff.evaluation.tables import Table

app = typer.Typer(
    name="benchmark",
    help="Reproduce the paper's tables and figures on your copy of the data sets.",
    no_args_is_help=True,
)

LITE_MODELS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")


Data = Annotated[Path, typer.Option(help="Root of the data set.", show_default=False)]
LayerName = Annotated[
    str | None, typer.Option("--layer", help="Layer, as `deepff layers` lists it.")
]
Crf = Annotated[bool, typer.Option("--crf/--no-crf", help="With a row for DFF-CRF.")]
Contrast = Annotated[
    bool, typer.Option("--contrast/--no-contrast", help="With rows for the recipe contrast.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Take means over this many seeds.")]
Out = Annotated[Path, typer.Option(help="Folder for Markdown, CSV and JSON.")]
Counts = Annotated[str, typer.Option("-k", help="Numbers of factors: 4, 1-4 or 2,3,6.")]
PartClasses = Annotated[
    str, typer.Option("--classes", help="PASCAL-Part's classes, separated by commas.")
]
# The files that are written into the folders of --out, after the command's name, and into those of
# --write-overlays.
_PUBLISHED = r"(-top|-bottom|-factors|-quality)*(-\d+)?\.(md|csv|json|jpg|png)"
_OVERLAYS = r"[^/]+/\d+\.jpg"
PAPER_GROUPS = "021,017,018,020,036,042"
PART_CLASSES = "aeroplane,bird,car,motorbike,cat"


@dataclass
class SetupPanel:
    """How a network is prepared, and where it runs."""

    size: Size = SIZE
    weights: Weights = None
    num_classes: NumClasses = None
    cache: Cache = None
    device: DeviceChoice = Device.AUTO


@dataclass
class CurvePanel:
    """The options that both plots of Figure 5 share."""

    k: Counts = "1-6"
    classes: PartClasses = PART_CLASSES
    crf: Annotated[bool, typer.Option("--crf/--no-crf", help="Refine masks (DFF-CRF).")] = False
    seeds: Seeds = 3


@app.command()
@with_panels
def table1(
    data: Data,
    *,
    groups: Annotated[
        str,
        typer.Option(
            help="Groups by number or name, separated by commas, or all; the default is the "
            "paper's five sets."
        ),
    ] = PAPER_GROUPS,
    parts: Annotated[
        Path | None,
        typer.Option(help="Part masks: a folder with one folder of label PNGs a group."),
    ] = None,
    model: Model = LITE_MODELS[0],
    layer: LayerName = None,
    setup: SetupPanel,
    crf: Crf = True,
    contrast: Contrast = True,
    seeds: Seeds = 1,
    out: Out = Path("benchmark/table1"),
) -> None:
    """Co-segmentation on iCoseg: IoU of objects with k = 1, and of parts with k = 2, 3, 4."""
    _check_files(out, "table1" + _PUBLISHED)
    network = _network(model, layer, setup, contrast)

    from deepff.evaluation.objects import table1

    tables = table1(network, data, groups=_names(groups), parts=parts, crf=crf, seeds=seeds)
    _publish(tables, out)


@app.command()
@with_panels
def table2(
    data: Data,
    *,
    classes: Annotated[
        str | None, typer.Option(help="Classes, separated by commas; all if not given.")
    ] = None,
    filter: Annotated[
        VocFilter, typer.Option(help="Leave out images whose instances are all this.")
    ] = VocFilter.DIFFICULT_OR_TRUNCATED,
    model: Model = LITE_MODELS[0],
    layer: LayerName = None,
    setup: SetupPanel,
    crf: Crf = True,
    contrast: Contrast = True,
    seeds: Seeds = 1,
    out: Out = Path("benchmark/table2"),
) -> None:
    """Co-localization on Pascal VOC 2007: CorLoc of each class with k = 1."""
    _check_files(out, "table2" + _PUBLISHED)
    network = _network(model, layer, setup, contrast)

    from deepff.evaluation.datasets.pascal_voc import VOC_CLASSES
    from deepff.evaluation.objects import table2

    wanted = VOC_CLASSES if classes is None else _names(classes)
    table = table2(network, data, classes=wanted, filter=filter, crf=crf, seeds=seeds)
    _publish({"table2": table}, out)


@app.command()
@with_panels
def table3(
    data: Data,
    *,
    mapping: Annotated[
        list[Path] | None,
        typer.Option(
            help="Which factor is which part: cow.yaml and horse.yaml, with lines like 0: head.",
            show_default=False,
        ),
    ] = None,
    write_overlays: Annotated[
        Path | None, typer.Option(help="Write the pictures that those files are made from here.")
    ] = None,
    model: Model = LITE_MODELS[0],
    layer: LayerName = None,
    setup: SetupPanel,
    crf: Crf = True,
    out: Out = Path("benchmark/table3"),
) -> None:
    """Parts of PASCAL-Part's cows and horses with k = 3, from factors that a person names."""
    _check_files(out, "table3" + _PUBLISHED)
    if write_overlays is not None:
        _check_files(write_overlays, _OVERLAYS)
    network = _network(model, layer, setup)

    from deepff.evaluation.named_parts import table3

    table = table3(network, data, mappings=mapping or (), overlays=write_overlays, crf=crf)
    _publish({"table3": table}, out)
    if write_overlays is not None:
        typer.echo(write_overlays)


@app.command()
@with_panels
def table4(
    data: Data,
    *,
    k: Counts = "1-4",
    classes: PartClasses = PART_CLASSES,
    model: Model = LITE_MODELS[0],
    layer: LayerName = None,
    setup: SetupPanel,
    crf: Crf = True,
    seeds: Seeds = 1,
    out: Out = Path("benchmark/table4"),
) -> None:
    """Parts labeled automatically, on PASCAL-Part or on a COCO file of parts."""
    counts = factor_counts(k)
    _check_files(out, "table4" + _PUBLISHED)
    network = _network(model, layer, setup)

    from deepff.evaluation.discovered_parts import table4

    tables = table4(network, data, counts, classes=_names(classes), crf=crf, seeds=seeds)
    _publish(tables, out)


@app.command()
@with_panels
def figure5a(
    data: Data,
    *,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="A layer, again for more; the default is the last of each stride."),
    ] = None,
    curves: CurvePanel,
    model: Model = LITE_MODELS[0],
    setup: SetupPanel,
    out: Out = Path("benchmark/figure5a"),
) -> None:
    """Factor quality over k for several layers: a plot and its table."""
    names = layer or _layer_names(_network(model, None, setup))
    networks = {name: partial(_network, model, name, setup) for name in names}
    _figure5("figure5a", networks, data, curves, out)


@app.command()
@with_panels
def figure5b(
    data: Data,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A network, again for more; default: the three EfficientNet-Lites."),
    ] = None,
    curves: CurvePanel,
    size: Size = SIZE,
    cache: Cache = None,
    out: Out = Path("benchmark/figure5b"),
    device: DeviceChoice = Device.AUTO,
) -> None:
    """Factor quality over k for several networks at their default layers: a plot and its table."""
    setup = SetupPanel(size, cache=cache, device=device)
    networks = {name: partial(_network, name, None, setup) for name in model or LITE_MODELS}
    _figure5("figure5b", networks, data, curves, out)


def _figure5(
    name: str,
    networks: "Mapping[str, Callable[[], Network]]",
    data: Path,
    panel: CurvePanel,
    out: Path,
) -> None:
    counts = factor_counts(panel.k)

    from deepff.evaluation.curves import figure5, require_matplotlib, write_plot

    require_matplotlib()
    _check_files(out, name + _PUBLISHED)
    classes = _names(panel.classes)
    table, curves = figure5(
        name, networks, data, counts, classes=classes, crf=panel.crf, seeds=panel.seeds
    )

    def plot(folder: Path) -> Path:
        return write_plot(curves, counts, table.title, folder / f"{name}.png")

    _publish({name: table}, out, plot)


def _network(model: str, layer: str | None, setup: SetupPanel, contrast: bool = False) -> "Network":
    from deepff.evaluation.predictions import Network
    from deepff.networks.loading import load_backbone

    backbone = load_backbone(
        model, weights=setup.weights, num_classes=setup.num_classes, device=setup.device
    )
    return Network.of(backbone, layer, setup.size, setup.cache, contrast)


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

    paths = [*folder.glob("*"), *folder.glob("*/*")]
    names = [path.relative_to(folder).as_posix() for path in paths]
    names = [name for name in names if re.fullmatch(pattern, name)]
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
