"""Options that commands share."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deepff.errors import InputError


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class Threshold(StrEnum):
    """How a heat map becomes a mask."""

    percentile = "percentile"
    otsu = "otsu"
    otsu_image = "otsu-image"
    max_fraction = "max-fraction"


class Refine(StrEnum):
    """How masks are refined along the edges of the image."""

    none = "none"
    guided_crf = "guided-crf"
    dense_crf = "dense-crf"


class Recipe(StrEnum):
    """How the object is found."""

    paper = "paper"
    contrast = "contrast"


Model = Annotated[
    str, typer.Option("--model", help="Network, as `deepff models` lists it, or timm/NAME.")
]
Weights = Annotated[
    Path | None, typer.Option(help="State dict (.pth, .safetensors) to use for the network.")
]
NumClasses = Annotated[
    int | None, typer.Option(min=1, help="Outputs of the classifier in --weights.")
]
DeviceChoice = Annotated[Device, typer.Option("--device", help="Where to compute.")]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="Keep activations here, for other runs and to resume."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="What activations and coefficients may take in memory, such as 2GiB or 500MB; the "
        "rest is on disk. By default what is free.",
        show_default=False,
    ),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Images a forward pass.")]
Size = Annotated[int, typer.Option(min=1, help="Longer side of the resized images, in pixels.")]

ResultFolder = Annotated[Path, typer.Argument(help="Folder of a result.", show_default=False)]
FactorCount = Annotated[
    int | None, typer.Option("-k", help="Which factorization; by default the largest.")
]
Object = Annotated[
    bool,
    typer.Option(
        "--object",
        help="The object, not the factors: found by the recipe contrast, or with --recipe paper "
        "the factor of k = 1.",
    ),
]
RecipeChoice = Annotated[
    Recipe | None,
    typer.Option(
        "--recipe",
        help="What threshold and refinement are by default: percentile and none (paper), or "
        "otsu-image and dense-crf (contrast). Without it, as the result was made.",
    ),
]
ThresholdMethod = Annotated[
    Threshold | None,
    typer.Option("--threshold", help="How a heat map becomes a mask.", show_default=False),
]
ThresholdValue = Annotated[
    float | None,
    typer.Option(
        "--value", help="The percentile (by default 75) or fraction of the maximum (0.5)."
    ),
]
RefineMethod = Annotated[
    Refine | None,
    typer.Option("--refine", help="Refine along the image's edges.", show_default=False),
]
Crf = Annotated[bool, typer.Option("--crf", help="The paper's DFF-CRF: --refine guided-crf.")]
Parts = Annotated[
    Path | None, typer.Option("--parts", help="File of names, with lines such as 0: head.")
]


MinArea = Annotated[
    int | None,
    typer.Option(
        "--min-area",
        min=1,
        help="Leave out components of fewer pixels; by default of less than 0.01 % of the image.",
        show_default=False,
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


def numbers(text: str) -> list[int]:
    """Factor counts from text such as "4", "1-4" or "2,3,6"."""
    try:
        spans = [part.split("-") for part in text.split(",")]
        counts = [n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or any(len(span) > 2 for span in spans):
        raise InputError(f"-k takes a number or a range such as 4, 1-4 or 2,3,6, not {text!r}")
    return counts
