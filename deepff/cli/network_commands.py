"""The commands that say what networks and layers there are, and what they see."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepff.cli.messages import explained, print_json, print_table
from deepff.cli.parameters import (
    NETWORK,
    OUTPUT,
    DeviceChoice,
    FactorCount,
    Json,
    LabelsFile,
    NumClasses,
    Overlays,
    Photos,
    ResultFolder,
    Size,
    Weights,
    option,
)
from deepff.networks.available import available_models
from deepff.options import SIZE, Device

if TYPE_CHECKING:
    from deepff.layers.layer import Layer


def models(as_json: Json = False) -> None:
    """List the networks, their default layers, and what each one still needs."""
    if as_json:
        return print_json([info._asdict() for info in available_models()])
    print_table(("model", "default layer", "still needed"), available_models())


def layers(
    model: Annotated[str, typer.Argument(help="Network: a name from `deepff models`.")],
    layer: Annotated[
        list[str] | None,
        typer.Option(help="Only this layer, with its receptive-field centers. Repeatable."),
    ] = None,
    size: Size = SIZE,
    weights: Weights = None,
    num_classes: NumClasses = None,
    as_json: Json = False,
) -> None:
    """List a network's layers and mark the default one."""
    from deepff.layers.centers import with_centers
    from deepff.layers.layer_map import list_layers, map_layers
    from deepff.networks.loading import load_backbone

    # Without a file the layers are those of random weights: nothing need be downloaded to see them.
    backbone = load_backbone(
        model, weights=weights, num_classes=num_classes, pretrained=bool(weights or layer)
    )
    header: tuple[str, ...] = ("layer", "channels", "stride", "grid", "layout", "negative")
    if layer:
        layer_map = map_layers(backbone, size)
        listed = with_centers(backbone, [layer_map.resolve(name) for name in layer])
        header += ("spacing", "first cell looks at (down, across)", "is drawn at")
        rows = [(*_described(each), *_centers(each)) for each in listed]
    else:
        listed = list_layers(backbone, size)
        header += ("",)
        rows = [(*_described(each), "default" if each.is_default else "") for each in listed]
    if not as_json:
        return print_table(header, rows)
    # A file may lack weights of a layer, whose smallest value is NaN then.
    least = [None if math.isnan(each.minimum) else each.minimum for each in listed]
    documents = zip(map(asdict, listed), listed, least, strict=True)
    print_json([{**d, "layout": str(x.layout), "minimum": low} for d, x, low in documents])


def _described(layer: "Layer") -> tuple[str, ...]:
    return (
        layer.name if layer.name == layer.path else f"{layer.name} ({layer.path})",
        str(layer.channels),
        str(layer.stride),
        f"{layer.grid[0]} × {layer.grid[1]}",
        str(layer.layout),
        "never" if layer.non_negative else f"down to {layer.minimum:.2g}",
    )


def _centers(layer: "Layer") -> tuple[str, ...]:
    """Spacing, and the offset that was measured and that is used, in pixels of the input."""
    if layer.centers is None:
        middle = f"{layer.stride / 2:.1f}"
        return str(layer.stride), "what it covers", f"{middle}, {middle}"
    centers = layer.centers
    pairs = zip(centers.offset, centers.offset_error, strict=True)
    measured = (f"{value:.1f} ± {error:.1f}" for value, error in pairs)
    drawn = (f"{value:.1f}" for value in centers.drawn_offset)
    return f"{centers.spacing:g}", ", ".join(measured), ", ".join(drawn)


def explain(
    folder: ResultFolder,
    k: FactorCount = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="Measure the importance for this class, by name. Repeatable. By default the three "
            "classes that the network predicts most often.",
        ),
    ] = None,
    photos: Photos = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    labels: LabelsFile = None,
    words: Annotated[
        str | None,
        option(
            NETWORK,
            "Words to name factors with, such as cat,dog, or a file with one per line. For "
            "open_clip networks.",
        ),
    ] = None,
    overlays: Overlays = False,
    device: DeviceChoice = Device.AUTO,
) -> None:
    """Add class names and importance of the factors to a result's report."""
    from deepff.meaning.class_names import factor_classes
    from deepff.meaning.open_network import opened_layers
    from deepff.networks.class_labels import read_labels, read_words
    from deepff.report.load import load
    from deepff.report.save import CLASSES, check_output_folder, class_folders
    from deepff.result import Result

    loaded = load(folder, photos)
    results = (
        {folder: loaded}
        if isinstance(loaded, Result)
        else {path: loaded[label] for label, path in class_folders(folder, loaded).items()}
    )
    for each, result in results.items():
        check_output_folder(each, overwrite=True)  # nothing that was made of the result goes
        result.factorization(k)  # there is one
    backbone = result.sources[0].backbone(
        weights=weights,
        num_classes=num_classes,
        labels=None if labels is None else read_labels(labels),
        words=None if words is None else read_words(words),
        device=device,
    )
    for path, result in results.items():
        result.opened = opened_layers(result, backbone)
        result.factorizations = {
            each: replace(found, classes=factor_classes(result, each))
            for each, found in result.factorizations.items()
        }
        result.unnamed = None
        measured = result.importance(k, classes, progress=True)
        if path != folder:
            typer.echo(path)
        print_table(*explained(result.factorization(k), measured))
    loaded.save(folder, progress=True, overlays=overlays)
    typer.echo(folder / ("report.html" if folder in results else CLASSES))


def compare(
    first: ResultFolder,
    second: ResultFolder,
    out: Annotated[Path, option(OUTPUT, "Folder for the page of pairs.")] = Path("compared"),
    k: FactorCount = None,
) -> None:
    """Match the factors of two results on the same images by their heat maps."""
    from deepff.meaning.similarity import compare
    from deepff.report.load import load_result
    from deepff.report.report import comparison_page
    from deepff.runtime.outputs import NO_OVERWRITE_OPTION, output_folder

    found = compare(load_result(first), load_result(second), k)
    with output_folder(out, NO_OVERWRITE_OPTION) as folder:
        found.plot().save(folder / "pairs.png")
        (folder / "pairs.json").write_text(json.dumps(found.rows(), indent=1), "utf-8")
        (folder / "pairs.html").write_text(comparison_page(found, "pairs.png"), "utf-8")
    rows = [(*names, f"{similarity:.2f}") for *names, similarity in found.rows()]
    print_table((str(first), str(second), "similarity"), rows)
    typer.echo(out / "pairs.html")
