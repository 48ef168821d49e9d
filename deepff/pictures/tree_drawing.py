"""Drawings over k as inline SVG: agreement between halves of the set, and the tree of factors."""

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from deepff.images.painting import factor_colors, hex_colors
from deepff.results.factorization import Factorization
from deepff.results.tree import Link, color_slots

_PLOT_STEP, _PLOT_HEIGHT, _MARGIN = 64, 150, 34
_NODE_STEP, _LEVEL_STEP, _RADIUS = 86, 112, 15
_THICKEST = 14.0
_FAINT = "0.65"
_LUMA = np.array([0.299, 0.587, 0.114])


def agreement_svg(agreements: Mapping[int, float], chosen: int, threshold: float) -> str:
    """Agreement by k, in [0, 1], as a plot with the threshold and the chosen k: an ``<svg>``. It
    has the color of the text around it. A chosen k without agreement fills no point."""
    ks = sorted(agreements)
    width = 2 * _MARGIN + _PLOT_STEP * len(ks)
    description = "Agreement: " + ", ".join(f"k = {k}: {agreements[k]:.2f}" for k in ks)
    svg = _svg(width, _PLOT_HEIGHT + 2 * _MARGIN, description)

    def height(value: float) -> float:
        return _MARGIN + (1 - value) * _PLOT_HEIGHT

    for value in (0.0, 0.5, 1.0):
        _line(svg, (_MARGIN, height(value)), (width, height(value)), 1, opacity="0.2")
        _text(svg, (_MARGIN - 6, height(value) + 4), f"{value:g}", anchor="end", opacity=_FAINT)
    level = _line(svg, (_MARGIN, height(threshold)), (width, height(threshold)), 1)
    level.set("stroke-dasharray", "5 4")
    _text(svg, (width, height(threshold) - 5), f"{threshold:g}", anchor="end", opacity=_FAINT)

    points = [(_MARGIN + (i + 0.5) * _PLOT_STEP, height(agreements[k])) for i, k in enumerate(ks)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    SubElement(
        svg, "polyline", points=path, fill="none", stroke="currentColor", opacity=_FAINT
    ).set("stroke-width", "1.5")
    for k, (x, y) in zip(ks, points, strict=True):
        dot = SubElement(svg, "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="6", stroke="currentColor")
        dot.set("style", f"fill: {'currentColor' if k == chosen else 'var(--ground, #fff)'}")
        _text(svg, (x, y - 12), f"{agreements[k]:.2f}", halo=True)
        _text(svg, (x, _PLOT_HEIGHT + 2 * _MARGIN - 8), f"k = {k}", bold=k == chosen)
    return ElementTree.tostring(svg, encoding="unicode")


def colors_over_k(factorizations: Mapping[int, Factorization]) -> dict[int, np.ndarray]:
    """Each factor's color, uint8 (k, 3) by k: by :func:`deepff.results.tree.color_slots`."""
    return {k: factor_colors(k)[own] for k, own in color_slots(factorizations).items()}


def tree_svg(
    links: Sequence[Link], ks: Sequence[int], colors: Mapping[int, np.ndarray] | None = None
) -> str:
    """The tree over k (:func:`deepff.results.tree.tree`) as an ``<svg>``: a row of factors per k,
    each linked to its parent above. Links are as thick as their share, which is written on them,
    and below it the chance; links below chance are left out."""
    ks = sorted(ks)
    links = [link for link in links if round(link.share, 2) >= round(link.chance, 2)]
    width = _NODE_STEP * (ks[-1] + 1)
    svg = _svg(width, _LEVEL_STEP * (len(ks) - 1) + 2 * _MARGIN, "Factors linked over k")
    shades = {k: factor_colors(k) if colors is None else colors[k] for k in ks}
    hexes = {k: hex_colors(of_k) for k, of_k in shades.items()}
    centers = _centers(links, ks, width)

    # Links first, so that nodes and numbers are drawn over them.
    for link in links:
        start, end = centers[link.parent_k, link.parent], centers[link.k, link.child]
        line = _line(svg, start, end, _THICKEST * link.share, opacity="0.8")
        line.set("stroke", hexes[link.k][link.child])
        line.set("stroke-linecap", "round")
    for link in links:
        start, end = centers[link.parent_k, link.parent], centers[link.k, link.child]
        # Near the child, where links from one parent are well apart.
        x, y = start[0] + 0.6 * (end[0] - start[0]), start[1] + 0.6 * (end[1] - start[1])
        label = _text(svg, (x, y), f"{link.share:.2f}", halo=True, bold=True)
        SubElement(label, "title").text = (
            f"{link.share:.2f} of factor {link.child} of k = {link.k} lies in the cells of factor "
            f"{link.parent} of k = {link.parent_k}, which are {link.chance:.2f} of all cells"
        )
        _text(svg, (x, y + 15), f"({link.chance:.2f})", halo=True, size=11)
    for (k, factor), (x, y) in centers.items():
        node = SubElement(svg, "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{_RADIUS}")
        node.set("fill", hexes[k][factor])
        node.set("stroke", "currentColor")
        SubElement(node, "title").text = f"k = {k}, factor {factor}"
        _text(svg, (x, y + 5), str(factor), bold=True).set(
            "fill", "#fff" if shades[k][factor] @ _LUMA < 128 else "#000"
        )
    for row, k in enumerate(ks):
        _text(svg, (2, _MARGIN + row * _LEVEL_STEP + 5), f"k = {k}", anchor="start")
    return ElementTree.tostring(svg, encoding="unicode")


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


def _svg(width: int, height: int, description: str) -> Element:
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}"}
    attributes |= {"width": str(width), "height": str(height)}
    attributes |= {"role": "img", "aria-label": description}
    return Element("svg", attributes | {"font-size": "13", "font-family": "system-ui, sans-serif"})


def _line(
    parent: Element,
    start: tuple[float, float],
    end: tuple[float, float],
    thickness: float,
    opacity: str = "1",
) -> Element:
    numbers = zip(("x1", "y1", "x2", "y2", "stroke-width"), (*start, *end, thickness), strict=True)
    attributes = {name: f"{value:.1f}" for name, value in numbers}
    return SubElement(parent, "line", attributes, stroke="currentColor", opacity=opacity)


def _text(
    parent: Element,
    point: tuple[float, float],
    content: str,
    *,
    anchor: str = "middle",
    opacity: str = "1",
    size: int = 13,
    bold: bool = False,
    halo: bool = False,
) -> Element:
    attributes = {"x": f"{point[0]:.1f}", "y": f"{point[1]:.1f}", "text-anchor": anchor}
    text = SubElement(parent, "text", attributes, fill="currentColor", opacity=opacity)
    text.set("font-size", str(size))
    if bold:
        text.set("font-weight", "bold")
    if halo:
        # Readable over lines: an outline in the page's ground, behind the letters.
        text.set("style", "paint-order: stroke; stroke: var(--ground, #fff); stroke-width: 4px")
    text.text = content
    return text
