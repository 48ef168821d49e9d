"""Drawings over k as inline SVG: agreement between halves of the set, and the tree of factors."""

from collections.abc import Mapping, Sequence

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from deepff.images.painting import factor_colors, hex_colors
from deepff.results.factorization import Factorization, Link, color_slots

_MARGIN, _NODE_STEP, _LEVEL_STEP = 34, 86, 112
_LUMA = np.array([0.299, 0.587, 0.114])
DRAWINGS = Environment(
    loader=PackageLoader("deepff.pictures"), autoescape=True, undefined=StrictUndefined
)


def agreement_svg(agreements: Mapping[int, float], chosen: int, threshold: float) -> str:
    """Agreement by k, in [0, 1], as a plot with the threshold and the chosen k: an ``<svg>``. It
    has the color of the text around it. A chosen k without agreement fills no point."""
    drawing = DRAWINGS.get_template("agreement.svg")
    return drawing.render(
        agreements=sorted(agreements.items()), chosen=chosen, threshold=threshold
    ).strip()


def colors_over_k(factorizations: Mapping[int, Factorization]) -> dict[int, np.ndarray]:
    """Each factor's color, uint8 (k, 3) by k: by `results.factorization.color_slots`."""
    return {k: factor_colors(k)[own] for k, own in color_slots(factorizations).items()}


def tree_svg(
    links: Sequence[Link], ks: Sequence[int], colors: Mapping[int, np.ndarray] | None = None
) -> str:
    """The tree over k as an ``<svg>``: a row of factors per k, each linked to its parent above.
    Links are as thick as their share, which is written on them, above the chance; others are left
    out."""
    ks = sorted(ks)
    links = [link for link in links if round(link.share, 2) >= round(link.chance, 2)]
    width = _NODE_STEP * (ks[-1] + 1)
    shades = {k: factor_colors(k) if colors is None else colors[k] for k in ks}
    hexes = {k: hex_colors(of_k) for k, of_k in shades.items()}
    inks = {k: np.where(of_k @ _LUMA < 128, "#fff", "#000") for k, of_k in shades.items()}
    centers = _centers(links, ks, width)
    return (
        DRAWINGS.get_template("tree.svg")
        .render(
            width=width,
            height=_LEVEL_STEP * (len(ks) - 1) + 2 * _MARGIN,
            links=[
                (link, hexes[link.k][link.child], centers[link.parent_k, link.parent], end)
                for link in links
                for end in [centers[link.k, link.child]]
            ],
            nodes=[(k, j, center, hexes[k][j], inks[k][j]) for (k, j), center in centers.items()],
            levels=[(k, _MARGIN + row * _LEVEL_STEP) for row, k in enumerate(ks)],
        )
        .strip()
    )


def _centers(
    links: Sequence[Link], ks: Sequence[int], width: int
) -> dict[tuple[int, int], tuple[float, float]]:
    """Where each (k, factor) is drawn: children in the order of their parents, so none cross."""
    parents = {(link.k, link.child): (link.parent_k, link.parent) for link in links}
    centers: dict[tuple[int, int], tuple[float, float]] = {}
    for row, k in enumerate(ks):

        def parent_x(factor: int, k: int = k) -> float:
            parent = parents.get((k, factor))
            return centers[parent][0] if parent else float(width)

        order = sorted(range(k), key=parent_x)
        step = (width - _NODE_STEP) / k
        for i, factor in enumerate(order):
            centers[k, factor] = (_NODE_STEP + (i + 0.5) * step, _MARGIN + row * _LEVEL_STEP)
    return centers
