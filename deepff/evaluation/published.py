"""The numbers that the paper publishes, from ``published.json`` beside this file.

The paper's tables could not be read when the file was made, so most of its values are null, which
tables print as "n/a". Somebody who has the paper can fill them in: a row's values are keyed by the
names of our columns, and are shares of 1 as all our metrics are.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from deepff.evaluation.tables import Row

NOT_AVAILABLE = (
    "n/a: not available to us. The paper's tables could not be read; its values can be filled in "
    "in deepff/benchmark/published.json."
)

NOT_IN_PAPER: tuple[list[Row], list[str]] = ([], ["The paper has no numbers for this data set"])
"""In place of :func:`published_rows`, for data that the paper did not use."""


def published_rows(table: str, columns: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Published rows that belong beside a table of ours.

    Parameters
    ----------
    table : str
        A key of ``published.json``, such as ``"table1-top"``.
    columns : sequence of str
        Our columns. A published value is looked up by the column's name, or by what stands before
        its bracket: both "Taj Mahal (017)" and "Taj Mahal (018)" are the paper's "Taj Mahal". The
        published mean is shown only beside a mean over the same columns.

    Returns
    -------
    rows : list of Row
        Without second-hand rows that have nothing for these columns.
    notes : list of str
        Where second-hand rows come from, and what n/a means.
    """
    entries = published()["tables"][table]["rows"]
    names = [column.split(" (")[0] for column in columns]
    known = {name for entry in entries for name in entry["values"]}
    if known != set(names):
        names = ["" if name == "mean" else name for name in names]
    rows, notes = [], []
    for entry in entries:
        found = [entry["values"].get(name) for name in names]
        if not entry["second_hand"]:
            rows.append(Row(entry["method"], found, "paper"))
        elif any(value is not None for value in found):
            rows.append(Row(entry["method"], found, "second-hand"))
            notes.append(f"{entry['method']}, second-hand: {entry['source']}. {entry['note']}")
    if any(value is None for row in rows for value in row.values):
        notes.append(NOT_AVAILABLE)
    return rows, notes


@cache
def published() -> dict[str, Any]:
    """The content of ``published.json``."""
    return json.loads((files(__package__) / "published.json").read_text(encoding="utf-8"))
