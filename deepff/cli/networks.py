"""The commands that say what networks and layers there are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from deepff.cli.options import NumClasses, Size, Weights
from deepff.features.available import available_models
from deepff.options import SIZE

if TYPE_CHECKING:
    from deepff.features.layers import Layer


def models() -> None:
    """List networks, with their default layers and what must be downloaded."""
    rows = [(info.name, info.default_layer, info.download) for info in available_models()]
    _print_table(("model", "default layer", "to download"), rows)


def layers(
    model: Annotated[str, typer.Argument(help="Network, as `deepff models` lists it.")],
    layer: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this layer, and where its cells look with the network's weights.",
            show_default=False,
        ),
    ] = None,
    size: Size = SIZE,
    weights: Weights = None,
    num_classes: NumClasses = None,
) -> None:
    """List a network's layers; where they go negative, semi-NMF is used."""
    from deepff.features.layers import map_layers
    from deepff.features.loading import load_backbone
    from deepff.features.placing import place

    # Without a file the layers are those of random weights: nothing need be downloaded to see them.
    backbone = load_backbone(
        model, weights=weights, num_classes=num_classes, pretrained=bool(weights or layer)
    )
    layer_map = map_layers(backbone, size)
    header = ("layer", "channels", "stride", "grid", "layout", "negative")
    if layer:
        placed = place(backbone, [layer_map.resolve(name) for name in layer])
        columns = ("spacing", "first cell looks at (down, across)", "is drawn at")
        rows = [(*_described(found), *_looks(found)) for found in placed]
        _print_table((*header, *columns), rows)
    else:
        _print_table(header, [_described(found) for found in layer_map.layers])


def _described(layer: "Layer") -> tuple[str, ...]:
    return (
        layer.name if layer.name == layer.path else f"{layer.name} ({layer.path})",
        str(layer.channels),
        str(layer.stride),
        f"{layer.grid[0]} × {layer.grid[1]}",
        str(layer.layout),
        "never" if layer.non_negative else f"down to {layer.minimum:.2g}",
    )


def _looks(layer: "Layer") -> tuple[str, ...]:
    """Spacing, and the offset that was measured and that is used, in pixels of the input."""
    if layer.places is None:
        return (
            str(layer.stride),
            "what it covers",
            f"{layer.stride / 2:.1f}, {layer.stride / 2:.1f}",
        )
    places = layer.places
    measured = (
        f"{value:.1f} ± {error:.1f}"
        for value, error in zip(places.offset, places.offset_error, strict=True)
    )
    drawn = (f"{value:.1f}" for value in places.drawn_offset)
    return f"{places.spacing:g}", ", ".join(measured), ", ".join(drawn)


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
