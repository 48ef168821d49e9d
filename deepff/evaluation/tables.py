"""Tables of results and how they are written: Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from deepff.runtime.files import atomic_path

MAX_COLUMNS = 12

Value = float | int | str | None
Origin = Literal["this run", "paper"]


@dataclass(frozen=True)
class Row:
    """One method's line of a table.

    Attributes
    ----------
    label : str
        The method, and k where a table has several.
    values : sequence of float, int, str or None
        One a column. None is missing: not computed in this run, or not printed in the paper.
    origin : "this run" or "paper"
        Whose numbers these are.
    """

    label: str
    values: Sequence[Value]
    origin: Origin = "this run"


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes
    ----------
    title : str
    columns : sequence of str
    rows : sequence of Row
        Each with one value a column.
    source : str
        Network, layer, weights and number of images behind the rows of this run.
    notes : sequence of str
        What a reader has to know: definitions, failures, where published numbers come from.
    pictures : mapping of str to ndarray, uint8 (H, W, 3)
        By a caption.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    source: str
    notes: Sequence[str] = field(default=())
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.values) != len(self.columns):
                raise ValueError(
                    f"row {row.label!r} has {len(row.values)} values for {len(self.columns)} "
                    "columns"
                )

    def markdown(self) -> str:
        """A heading, the table, and the source and notes as a list.

        A table of many columns is turned over, with a line a column. Pictures are in files
        (:func:`write_tables`).
        """
        cells = [[_cell(value) for value in row.values] for row in self.rows]
        if len(self.columns) <= MAX_COLUMNS:
            alignment = ["---", "---", *self._alignment()]
            lines = [_line(["", "from", *self.columns]), _line(alignment)]
            lines += [
                _line([row.label, row.origin, *own])
                for row, own in zip(self.rows, cells, strict=True)
            ]
        else:
            header = ["", *(f"{row.label} ({row.origin})" for row in self.rows)]
            lines = [_line(header), _line(["---", *["--:"] * len(self.rows)])]
            lines += [
                _line([column, *own])
                for column, own in zip(self.columns, zip(*cells, strict=True), strict=True)
            ]
        remarks = [f"This run: {self.source}", *self.notes]
        remarks = [f"- {remark.rstrip('.')}." for remark in remarks]
        return "\n".join([f"### {self.title}", "", *lines, "", *remarks]) + "\n"

    def csv(self) -> str:
        """A header line and one line a row; missing values are empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["method", "from", *self.columns])
        for row in self.rows:
            values = ("" if value is None else value for value in row.values)
            writer.writerow([row.label, row.origin, *values])
        return text.getvalue()

    def json(self) -> str:
        """All fields but the pictures, as JSON; missing values are null."""
        fields = {name: value for name, value in asdict(self).items() if name != "pictures"}
        return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"

    def _alignment(self) -> list[str]:
        columns = zip(*(row.values for row in self.rows), strict=True)
        return ["---" if any(isinstance(v, str) for v in values) else "--:" for values in columns]


def write_tables(tables: Mapping[str, Table], folder: Path) -> list[Path]:
    """Write each table as ``<name>.md``, ``<name>.csv`` and ``<name>.json``; returns the paths.

    Its pictures are ``<name>-01.jpg`` and so on, which the Markdown shows.
    """
    paths = []
    for name, table in tables.items():
        links = []
        for number, (caption, picture) in enumerate(table.pictures.items(), 1):
            path = folder / f"{name}-{number:02d}.jpg"
            with atomic_path(path) as temporary:
                Image.fromarray(picture).save(temporary, "JPEG", quality=85)
            paths.append(path)
            links.append(f"\n{caption}\n\n![{caption}]({path.name})\n")
        texts = {
            "md": table.markdown() + "".join(links),
            "csv": table.csv(),
            "json": table.json(),
        }
        for suffix, text in texts.items():
            path = folder / f"{name}.{suffix}"
            with atomic_path(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
            paths.append(path)
    return paths


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean without the missing values; None if all are missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _cell(value: Value) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


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
