"""Numbers of factors as bars in a table, for notebooks."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from deepff.report.colors import factor_colors

_WIDTH = 140  # pixels


def importance_html(rows: Sequence[Mapping[str, Any]], places: Sequence[int]) -> str:
    """The rows of :meth:`deepff.results.importance.Importance.rows` as an HTML table with bars.

    Bars are as long as the fall, of the longest; those of negative falls are hollow. Factor j has
    colour ``places[j]``.
    """
    colors = factor_colors(len(places))[[*places]]
    longest = max((abs(row["fall"]) for row in rows), default=0) or 1
    header = "".join(
        f"<th style='text-align: left'>{name}</th>"
        for name in ("class", "factor", "score falls by", "Sobol", "sensitivity", "p")
    )
    lines = []
    for row in rows:
        color = "#" + bytes(colors[row["factor"]]).hex()
        ground = color if row["fall"] >= 0 else "none"
        bar = (
            f"<span style='display: inline-block; height: .8em; box-sizing: border-box; "
            f"border: 1px solid {color}; background: {ground}; "
            f"width: {_WIDTH * abs(row['fall']) / longest:.0f}px'></span>"
        )
        name = f"factor {row['factor']}" + (f", {row['name']}" if row["name"] else "")
        cells = (
            escape(row["class"]),
            escape(name),
            f"{bar} {row['fall']:.2f}",
            f"{row['sobol']:.2f}",
            f"{row['sensitivity']:+.2g}",
            f"{row['p_value']:.3f}",
        )
        lines.append("".join(f"<td style='text-align: left'>{cell}</td>" for cell in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
