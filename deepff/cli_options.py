"""Options that commands share."""

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


Model = Annotated[
    str, typer.Option("--model", help="Network, as `deepff models` lists it, or timm/NAME.")
]
Weights = Annotated[
    Path | None, typer.Option(help="State dict (.pth, .safetensors) to use for the network.")
]
NumClasses = Annotated[
    int | None, typer.Option(min=1, help="Outputs of the classifier in --weights.")
]
Size = Annotated[int, typer.Option(min=1, help="Longer side of the resized images, in pixels.")]


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
