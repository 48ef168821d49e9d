"""Options that commands share, and what is read from their text."""

import re
from pathlib import Path
from typing import Annotated

import typer

from deepff.errors import InputError
from deepff.options import (
    LEAST_SHARE,
    Device,
    Engine,
    ExportFormat,
    Instances,
    Interpolation,
    Photographs,
    Recipe,
    Refinement,
    Threshold,
)

IMAGES, NETWORK = "Images", "Network"
FACTORIZATION, OUTPUT, RUNNING = "Factorization", "Output", "Running"
REGIONS = "Regions"

ImagePaths = Annotated[
    list[Path] | None, typer.Argument(help="Folders, files or globs.", show_default=False)
]
Size = Annotated[
    int,
    typer.Option(
        min=1, help="Longer side of the resized images, in pixels.", rich_help_panel=IMAGES
    ),
]
InterpolationChoice = Annotated[
    Interpolation | None,
    typer.Option(
        "--interpolation",
        help="How images are resized; by default as the network was trained.",
        rich_help_panel=IMAGES,
        show_default=False,
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(help="Channel means, as R,G,B in [0, 1].", rich_help_panel=IMAGES),
]
Std = Annotated[
    str | None, typer.Option(help="Channel deviations, as R,G,B.", rich_help_panel=IMAGES)
]

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="Network, as `deepff models` lists it, or timm/NAME.",
        rich_help_panel=NETWORK,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="State dict (.pth, .safetensors) to use for the network.", rich_help_panel=NETWORK
    ),
]
NumClasses = Annotated[
    int | None,
    typer.Option(min=1, help="Outputs of the classifier in --weights.", rich_help_panel=NETWORK),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="The names of the network's classes, one a line; ImageNet's are known.",
        show_default=False,
        rich_help_panel=NETWORK,
    ),
]
Overlays = Annotated[
    bool,
    typer.Option(
        "--overlays",
        help="Write the heat maps over the photographs as pictures too, a strip an image and k.",
        rich_help_panel=OUTPUT,
    ),
]
Layers = Annotated[
    list[str] | None,
    typer.Option(
        "--layer",
        help="Layer, as `deepff layers` lists it; several give one map of the object.",
        show_default=False,
        rich_help_panel=NETWORK,
    ),
]

DeviceChoice = Annotated[
    Device, typer.Option("--device", help="Where to compute.", rich_help_panel=RUNNING)
]
EngineChoice = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="What runs the network; auto: OpenVINO on a CPU where it is installed and pays, else "
        "torch.",
        rich_help_panel=RUNNING,
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Keep activations here, for other runs and to resume.",
        rich_help_panel=RUNNING,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="What activations and coefficients may take in memory, such as 2GiB or 500MB; the "
        "rest is on disk. By default what is free.",
        show_default=False,
        rich_help_panel=RUNNING,
    ),
]
MaskMemory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="What images in work may take together, such as 2GiB; by default 1.5GiB, and half of "
        "what is free at most.",
        show_default=False,
        rich_help_panel=RUNNING,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option("--batch-size", min=1, help="Images per forward pass.", rich_help_panel=RUNNING),
]
Stretch = Annotated[
    bool,
    typer.Option(
        "--stretch",
        help="Make the largest value of images of 10 to 16 bits white.",
        rich_help_panel=IMAGES,
    ),
]
MixedPrecision = Annotated[
    bool, typer.Option("--amp", help="Mixed precision on a CUDA device.", rich_help_panel=RUNNING)
]

ResultFolder = Annotated[Path, typer.Argument(help="Folder of a result.", show_default=False)]
Photos = Annotated[
    Path | None,
    typer.Option(
        "--photos",
        help="Where the result's photographs are now, if they were moved: a folder or a glob.",
        show_default=False,
        rich_help_panel=IMAGES,
    ),
]
FactorCount = Annotated[
    int | None,
    typer.Option(
        "-k",
        help="Which factorization; by default the largest.",
        show_default=False,
        rich_help_panel=REGIONS,
    ),
]
Object = Annotated[
    bool,
    typer.Option(
        "--object",
        help="The object, not the factors: found by the recipe contrast, or with --recipe paper "
        "the factor of k = 1.",
        rich_help_panel=REGIONS,
    ),
]
RecipeChoice = Annotated[
    Recipe | None,
    typer.Option(
        "--recipe",
        help="What threshold and refinement are by default: percentile and none (paper), or the "
        "set's pixel classifier, for boxes otsu-image and dense-crf (contrast). Without it, as "
        "the result was made.",
        show_default=False,
        rich_help_panel=REGIONS,
    ),
]
ThresholdMethod = Annotated[
    Threshold | None,
    typer.Option(
        "--threshold",
        help="How a heat map becomes a mask.",
        show_default=False,
        rich_help_panel=REGIONS,
    ),
]
ThresholdValue = Annotated[
    float | None,
    typer.Option(
        "--value",
        help="The percentile (by default 75) or fraction of the maximum (0.5).",
        show_default=False,
        rich_help_panel=REGIONS,
    ),
]
RefineMethod = Annotated[
    Refinement | None,
    typer.Option(
        "--refine",
        help="Refine along the image's edges.",
        show_default=False,
        rich_help_panel=REGIONS,
    ),
]
Crf = Annotated[
    bool,
    typer.Option(
        "--crf", help="The paper's DFF-CRF: --refine guided-crf.", rich_help_panel=REGIONS
    ),
]
Parts = Annotated[
    Path | None,
    typer.Option(
        "--parts",
        help="File of names, with lines such as 0: head.",
        show_default=False,
        rich_help_panel=REGIONS,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace files that deepff did not write, or that were changed since; never "
        "photographs.",
        rich_help_panel=OUTPUT,
    ),
]
MinArea = Annotated[
    int | None,
    typer.Option(
        "--min-area",
        min=1,
        help=f"Leave out components of fewer pixels; by default of less than {LEAST_SHARE:.2%} of "
        "the image.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Simplify = Annotated[
    float,
    typer.Option(
        "--simplify",
        min=0,
        help="How far polygons may cut corners, in pixels; 0 keeps every pixel.",
        rich_help_panel=OUTPUT,
    ),
]
PhotographsChoice = Annotated[
    Photographs | None,
    typer.Option(
        "--images",
        help="Copies of the photographs or links to them, where the format wants them; by default "
        "links for YOLO.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Split = Annotated[
    str,
    typer.Option(
        "--split",
        help="Shares of training, validation and test, for YOLO and VOC.",
        rich_help_panel=OUTPUT,
    ),
]
SplitSeed = Annotated[
    int,
    typer.Option("--seed", help="By which images are drawn for --split.", rich_help_panel=OUTPUT),
]
FormatChoice = Annotated[
    list[ExportFormat],
    typer.Option(
        "--format",
        help="What the annotations are written for; of several, each has a folder of its own.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
InstancesChoice = Annotated[
    Instances,
    typer.Option(
        "--instances",
        help="One annotation a connected component, or a part and image.",
        rich_help_panel=OUTPUT,
    ),
]


def byte_count(text: str | None) -> int | None:
    """Bytes from text such as "2GiB", "500MB" or "1000000"."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if found is None:
        raise InputError(f"--memory takes a size such as 2GiB or 500MB, not {text!r}")
    number, prefix, binary = found.groups()
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
