"""Options that commands share, and what is read from their text.

A panel is a dataclass of options that several commands have, or that belong together. A command
takes it as one parameter, and `with_panels` makes options of its fields.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from deepff.errors import InputError
from deepff.options import LEAST_SHARE, Device, Engine, Recipe, Refinement, Threshold

IMAGES, NETWORK = "Images", "Network"
FACTORIZATION, OUTPUT, RUNNING = "Factorization", "Output", "Running"
REGIONS = "Regions"

SOURCES = "Folders, files, globs, archives (.zip, .tar), videos or addresses (s3://, …)."


def listed(choices: Iterable[str]) -> str:
    """An option's choices for the end of its help, which rich breaks between words alone."""
    return f" One of {', '.join(choices)}."


def option(panel: str, help: str, *names: str, **settings: Any) -> Any:
    """An option in a panel of `--help`, named as its parameter unless names are passed."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


class Command(TyperCommand):
    """A command that refuses an option that is given twice but takes one value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left; raises InputError."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in order:
            if order.count(param) > 1 and not param.multiple:
                one = "; write several numbers as -k 2,3" if "-k" in param.opts else ""
                raise InputError(f"{param.opts[0]} is given twice, but takes one value{one}")
        return super().parse_args(ctx, args)


def with_panels(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option per field in place of each parameter that is a dataclass, and
    with --quiet, which leaves nothing of what it says but warnings, errors and --json."""
    signature = inspect.signature(command)
    panels = {
        name: inspect.signature(parameter.annotation).parameters
        for name, parameter in signature.parameters.items()
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation)
    }
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        for each in (panels[name].values() if name in panels else [parameter])
    ]

    @functools.wraps(command)
    def run(quiet: bool, **values: Any) -> None:
        for name, fields in panels.items():
            panel = signature.parameters[name].annotation
            values[name] = panel(**{field: values.pop(field) for field in fields})
        from deepff.runtime.progress import SHOWN

        SHOWN.set(not quiet)
        with redirect_stdout(StringIO()) if quiet and not values.get("as_json") else nullcontext():
            command(**values)

    run.__signature__ = signature.replace(parameters=[*parameters, _QUIET])  # type: ignore[attr-defined]
    return run


_QUIET = inspect.Parameter(
    "quiet",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, option(RUNNING, "Show only warnings.", "--quiet", "-q")],
)
Json = Annotated[bool, option(OUTPUT, "Print one JSON document instead of text.", "--json")]
Size = Annotated[int, option(IMAGES, "Longer side of the resized images, in pixels.", min=1)]
Every = Annotated[int, option(IMAGES, "Of a video, take the first of so many frames.", min=1)]
FramesPerSecond = Annotated[
    float | None, option(IMAGES, "Of a video, take so many frames per second.")
]
Photos = Annotated[
    str | None,
    option(
        IMAGES,
        "Where the photographs are now, if they were moved: a folder, glob, archive or address.",
    ),
]

Model = Annotated[str, option(NETWORK, "Network: a name from `deepff models`, or timm/NAME.")]
Weights = Annotated[
    Path | None, option(NETWORK, "File with weights to load: a state dict, .pth or .safetensors.")
]
NumClasses = Annotated[
    int | None, option(NETWORK, "How many classes the network in --weights has.", min=1)
]
LabelsFile = Annotated[
    Path | None,
    option(NETWORK, "File of the network's class names, one per line. Not needed for ImageNet."),
]

DeviceChoice = Annotated[Device, option(RUNNING, "Device to compute on.")]
EngineChoice = Annotated[
    Engine,
    option(
        RUNNING,
        "What runs the network. auto: OpenVINO on a CPU if it is installed and faster, else torch.",
    ),
]
Cache = Annotated[
    Path | None,
    option(RUNNING, "Folder for activations. Later runs are faster, and stopped ones resume."),
]
BatchSize = Annotated[int, option(RUNNING, "Images per forward pass.", min=1)]

ResultFolder = Annotated[Path, typer.Argument(help="Folder of a result.", show_default=False)]
FactorCount = Annotated[
    int | None, option(REGIONS, "Number of factors to use. By default the largest.", "-k")
]
NewFolder = Annotated[Path, option(OUTPUT, "Folder for the result.")]
Overwrite = Annotated[
    bool,
    option(
        OUTPUT,
        "Replace an earlier result even if it has masks or exports. These are deleted.",
        "--overwrite",
    ),
]
Overlays = Annotated[
    bool,
    option(
        OUTPUT,
        "Also write pictures of the heat maps over the photographs: a strip per image and k.",
        "--overlays",
    ),
]
MinArea = Annotated[
    int | None,
    option(
        OUTPUT,
        f"Leave out pieces with fewer pixels. By default {LEAST_SHARE:.2%} of the image, or four "
        "cells of an object's heat map.",
        min=1,
    ),
]


@dataclass
class RegionPanel:
    """Which regions of a result are meant."""

    k: FactorCount = None
    object: Annotated[
        bool,
        option(
            REGIONS,
            "Use the object in place of the factors. The recipe contrast finds it; with --recipe "
            "paper it is the factor of k = 1.",
            "--object",
        ),
    ] = False
    recipe: Annotated[
        Recipe | None,
        option(
            REGIONS,
            "Sets the defaults of --threshold and --refine. paper: percentile, none. contrast: the "
            "pixel classifier; for boxes otsu-image, dense-crf. By default the result's recipe.",
        ),
    ] = None
    threshold: Annotated[
        Threshold | None,
        option(REGIONS, "How to turn heat maps into masks." + listed(Threshold), metavar="RULE"),
    ] = None
    value: Annotated[
        float | None,
        option(REGIONS, "Value of --threshold: percentile (75) or fraction of the maximum (0.5)."),
    ] = None
    refine: Annotated[
        Refinement | None,
        option(
            REGIONS,
            "How to make masks follow the image's edges. dff-crf works before the threshold, the "
            "others after it." + listed(Refinement),
            metavar="WAY",
        ),
    ] = None
    crf: Annotated[bool, option(REGIONS, "Short for --refine dff-crf.", "--crf")] = False
    parts: Annotated[Path | None, option(REGIONS, "File that names factors, as 0: head.")] = None
    min_score: Annotated[
        float | None,
        option(
            REGIONS,
            "Leave out objects with a lower score; 0 keeps all. By default 0.5 after `deepff "
            "apply`; else only outliers are left out.",
            min=0,
            max=1,
        ),
    ] = None


@dataclass
class ResultPanel:
    """How a saved result is opened, worked on and written to."""

    overwrite: Annotated[
        bool,
        option(
            OUTPUT,
            "Also replace files that you changed or that deepff did not write. Photographs are "
            "never replaced.",
            "--overwrite",
        ),
    ] = False
    photos: Photos = None
    memory: Annotated[
        str | None,
        option(
            RUNNING,
            "Memory limit for the images in work, such as 2GiB. By default 1.5GiB, and at most "
            "half of what is free.",
        ),
    ] = None
    weights: Weights = None
    num_classes: NumClasses = None
    device: DeviceChoice = Device.AUTO


def byte_count(text: str | None) -> int | None:
    """Bytes from text such as "2GiB", "500MB" or "1000000"."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise InputError(f"--memory takes a size such as 2GiB or 500MB, not {text!r}")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** " KMGT".index(prefix.upper() or " "))


def factor_counts(text: str) -> list[int]:
    """Factor counts from text such as "4", "1-4" or "2,3,6"."""
    try:
        spans = [part.split("-") for part in text.split(",")]
        counts = [n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or any(len(span) > 2 for span in spans):
        raise InputError(
            f"-k takes a number of 1 or more, or several such as 1-4 or 2,3,6, not {text!r}"
        )
    return counts


def three_numbers(text: str | None, option: str) -> list[float] | None:
    """Three numbers from text such as "0.5,0.5,0.5"."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 3:
        raise InputError(f"{option} takes three numbers such as 0.5,0.5,0.5, not {text!r}")
    return values
