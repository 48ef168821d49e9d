"""The numbers that the paper prints, from ``published.json`` beside this file."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from deepff.evaluation.tables import Row, mean_of_known

SETTING = (
    "Rows from the paper are its printed numbers, of VGG-19 on the whole data sets; the rows of "
    "this run are of the network and the images named above"
)

NOT_IN_PAPER: tuple[list[Row], list[str]] = ([], ["The paper has no numbers for this data set"])
"""In place of :func:`published_rows`, for data that the paper did not use."""


def published_rows(table: str, columns: Sequence[str]) -> tuple[list[Row], list[str]]:
    """The paper's rows that belong beside a table of ours.

    Parameters
    ----------
    table : str
        A key of ``published.json``, such as ``"table1-top"``.
    columns : sequence of str
        Our columns. A published value is looked up by the column's name, or by what stands before
        its bracket: both "Taj Mahal (017)" and "Taj Mahal (018)" are the paper's "Taj Mahal". A
        published mean is shown only beside a mean over the same columns.

    Returns
    -------
    rows : list of Row
        Values are shares of 1. Where the paper prints factors and not methods, a row a k: the
        means over the factors with parts. Rows that have nothing for these columns are left out.
    notes : list of str
        How the paper's setting differs.
    """
    entry = published()["tables"][table]
    methods = {row["method"]: row["values"] for row in entry["rows"]}
    methods |= {f"DFF, k = {k}": _means(entry, sets) for k, sets in _factors(entry).items()}
    names = [column.split(" (")[0] for column in columns]
    known = {name for values in methods.values() for name in values}
    if known != set(names):
        names = ["" if name == "mean" else name for name in names]
    rows = []
    for method, values in methods.items():
        found = [_share(values.get(name)) for name in names]
        if any(value is not None for value in found):
            rows.append(Row(method, found, "paper"))
    return rows, [*([SETTING] if rows else []), *entry["notes"]]


def published_factors(table: str, columns: Sequence[str]) -> list[Row]:
    """Every factor that the paper prints for the sets that are our columns: its parts, its IoU.

    Parameters
    ----------
    table, columns
        As for :func:`published_rows`.

    Returns
    -------
    list of Row
        Parts joined by commas and the IoU as a share of 1, of each set's factors in the paper's
        order.
    """
    names = dict.fromkeys(column.split(" (")[0] for column in columns)
    factors = _factors(published()["tables"][table])
    return [
        Row(
            f"{name}, DFF, k = {k}, factor {number}",
            [", ".join(factor["parts"]), _share(factor["iou"])],
            "paper",
        )
        for name in names
        for k, sets in factors.items()
        for number, factor in enumerate(sets.get(name, ()))
    ]


@cache
def published() -> dict[str, Any]:
    """The content of ``published.json``."""
    return json.loads((files(__package__) / "published.json").read_text(encoding="utf-8"))


def _factors(entry: dict[str, Any]) -> dict[str, Any]:
    return entry.get("factors", {})


def _means(entry: dict[str, Any], sets: dict[str, Any]) -> dict[str, float | None]:
    """For each set the mean IoU of its factors that have parts, in percent."""
    return {
        name: mean_of_known(
            factor["iou"]
            for factor in factors
            if not set(factor["parts"]) <= set(entry["not_parts"])
        )
        for name, factors in sets.items()
    }


def _share(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)
