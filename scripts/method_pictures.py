"""Make the pictures of docs/method.md: A, H, W, heat maps and masks of four photographs.

usage: python scripts/method_pictures.py      (with the environment of scripts/test)
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gallery import FOUR, ROOT, written
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import deepff
from deepff.result import Result

OUT = ROOT / "docs" / "method"
SHOWN = ("cat", "cat and cup", "rocket", "rocket and cup")
K = 3


def main() -> None:
    OUT.mkdir(exist_ok=True)
    plt.rcParams.update({"font.size": 15, "figure.dpi": 100})
    with TemporaryDirectory() as temporary:
        files = written({name: FOUR[name] for name in SHOWN}, Path(temporary) / "photos")
        result = deepff.discover(files, n_components=K, random_state=0)
        _save(_matrices(result), "matrices")
        _save(_maps(result), "maps")
    print("rows of each image:", [h * w for h, w in result.heatmaps.grids])
    print("A", tuple(_rows(result).shape), "H", tuple(result.coefficients.shape))
    print("W", tuple(result.components.shape), "relative error", f"{result.relative_error:.3f}")
    print("names", result.factor_names)


def _rows(result: Result) -> torch.Tensor:
    assert result.activations is not None
    return torch.cat(result.activations.blocks)


def _matrices(result: Result) -> Figure:
    """A ≈ H W. Channels are sorted by the factor that uses them most."""
    A, H, W = _rows(result), result.coefficients, result.components
    order = torch.argsort(W.argmax(0) * 1e6 - W.amax(0))
    edges = np.cumsum([0] + [h * w for h, w in result.heatmaps.grids])
    figure, axes = plt.subplots(
        1, 3, figsize=(13, 5.2), width_ratios=(5, 1.3, 5), layout="constrained"
    )
    _show(axes[0], A[:, order], f"A: {len(A)} cells × {A.shape[1]} channels")
    _show(axes[1], H / H.amax(0), f"≈  H: {len(A)} × {K}")
    _show(axes[2], W[:, order] / W.amax(), f"W: {K} × {A.shape[1]}")
    for axis in axes[:2]:
        axis.hlines(edges[1:-1] - 0.5, *axis.get_xlim(), color="#d55e00", linewidth=1.5)
    axes[0].set_yticks((edges[:-1] + edges[1:]) / 2, SHOWN)
    axes[1].set_xticks(range(K))
    axes[1].set_xlabel("factor")
    axes[1].set_yticks([])
    axes[2].set_yticks(range(K), [f"factor {number}" for number in range(K)])
    axes[0].set_xlabel("channel")
    axes[2].set_xlabel("channel")
    return figure


def _show(axis: Any, values: torch.Tensor, title: str) -> None:
    # Black from the 99.5th percentile on: a few large values would leave the rest white.
    top = float(np.quantile(values.numpy(), 0.995))
    axis.imshow(values, aspect="auto", cmap="gray_r", vmin=0, vmax=top, interpolation="nearest")
    axis.set_title(title)
    axis.set_xticks([])


def _maps(result: Result) -> Figure:
    """A row per photograph: photograph, a column of H on the grid, its heat map, its mask."""
    factor = _cup(result)
    regions = list(result.regions())
    shapes = [image.size for image in result.images]
    figure, axes = plt.subplots(
        len(SHOWN),
        4,
        figsize=(13, 8.3),
        height_ratios=[height / width for height, width in shapes],
        layout="constrained",
    )
    titles = ("photograph", f"column {factor} of H, on the grid", "heat map", "mask")
    for column, title in enumerate(titles):
        axes[0, column].set_title(title)
    scale = float(result.coefficients[:, factor].max())
    for index, image in enumerate(result.images):
        grid = result.heatmaps.grid(index)[factor]
        mask = regions[index].masks[factor]
        pictures = (image.read(), grid, result.heatmaps[index][factor], mask)
        for axis, picture, top in zip(axes[index], pictures, (None, scale, scale, 1), strict=True):
            axis.imshow(picture, cmap="inferno", vmin=0, vmax=top, aspect="auto")
            axis.set_axis_off()
    return figure


def _cup(result: Result) -> int:
    """The factor that both photographs with a cup share most, and the others least."""
    strength = torch.stack(
        [result.heatmaps.grid(index).amax((1, 2)) for index in range(len(SHOWN))]
    ) / result.coefficients.amax(0)
    return int((strength[[1, 3]].amin(0) - strength[[0, 2]].amax(0)).argmax())


def _save(figure: Figure, name: str) -> None:
    figure.savefig(OUT / f"{name}.jpg", pil_kwargs={"quality": 85, "optimize": True})
    plt.close(figure)


if __name__ == "__main__":
    main()
