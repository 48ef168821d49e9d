"""The command ``deepff explain``."""

from typing import Annotated

import typer

from deepff.cli.messages import explained, print_table
from deepff.cli.options import (
    NETWORK,
    DeviceChoice,
    FactorCount,
    LabelsFile,
    NumClasses,
    Overlays,
    Photos,
    ResultFolder,
    Weights,
)
from deepff.options import Device


def explain(
    folder: ResultFolder,
    k: FactorCount = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="Importance for this class, by label; may be repeated. By default the three that "
            "the network takes most of the images for.",
            show_default=False,
        ),
    ] = None,
    photos: Photos = None,
    weights: Weights = None,
    num_classes: NumClasses = None,
    labels: LabelsFile = None,
    words: Annotated[
        str | None,
        typer.Option(
            help="Words in place of the network's classes, where it is open_clip's: with commas "
            "between, as cat,dog, or a file with one a line.",
            show_default=False,
            rich_help_panel=NETWORK,
        ),
    ] = None,
    overlays: Overlays = False,
    device: DeviceChoice = Device.AUTO,
) -> None:
    """Say what the network takes a result's factors for, and what they matter for; write its report
    anew."""
    from deepff.naming.classes import factor_classes
    from deepff.naming.importance import importance
    from deepff.naming.labels import read_labels, read_words
    from deepff.naming.network import opened_layers
    from deepff.report.load import load
    from deepff.report.save import check_output_folder, rewrite

    result = load(folder, photos)
    check_output_folder(folder)
    found = result.factorization(k)
    backbone = result.sources[0].backbone(
        weights=weights,
        num_classes=num_classes,
        labels=None if labels is None else read_labels(labels),
        words=None if words is None else read_words(words),
        device=device,
    )
    opened_layers(result, backbone)
    for each in result.factorizations:
        factor_classes(result, each, anew=True)
    measured = importance(result, len(found.components), classes, progress=True)
    rewrite(result, folder, progress=True, overlays=overlays)
    print_table(*explained(result.factorization(k), measured))
    typer.echo(folder / "report.html")
