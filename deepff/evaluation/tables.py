"""Scores of sets of images, made into tables next to the paper's, and written to files."""

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from PIL import Image

from deepff.errors import InputError
from deepff.pictures.crops import save_jpeg
from deepff.runtime.files import atomic_path

MAX_COLUMNS = 12

T = TypeVar("T")
Value = float | int | str | None
Origin = Literal["this run", "paper"]


@dataclass(frozen=True)
class Scores:
    """What one set of images gives: a class, or a group. ``values[row][metric]`` has one value per
    seed. None stands for a missing value."""

    n_images: int
    values: Mapping[str, Mapping[str, Sequence[float | None]]]
    counts: Mapping[str, int] = field(default_factory=dict)  # rows above the methods', as "images"
    factors: Sequence["Row"] = ()  # every factor of the first seed, for the tables of parts
    remarks: Sequence[str] = ()
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)

    def mean(self, row: str, metric: str) -> float | None:
        """The mean over the seeds that have a value; None if none has."""
        known = [x for x in self.values.get(row, {}).get(metric, ()) if x is not None]
        return float(np.mean(known)) if known else None


class Attempts:
    """Evaluates sets one after another. One that fails, for any reason, is noted, and the rest go
    on: hours of other sets should not be lost to it."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def run(self, label: str, job: Callable[..., T], *arguments: Any) -> T | None:
        """What the job returns, or None where it fails; says so on standard error."""
        started = time.perf_counter()
        try:
            outcome = job(*arguments)
        except Exception as error:
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            reason = f"{kind}{error}"
            known = reason in self.failures.values()
            self.failures[label] = reason
            to_stderr(f"{label} failed{' for the same reason' if known else f': {reason}'}")
            return None
        to_stderr(f"{label}: {time.perf_counter() - started:.0f} s")
        return outcome

    def succeeded(self, outcomes: Mapping[str, T | None]) -> dict[str, T]:
        """The outcomes that there are. Raises InputError with the first failure if none is."""
        successes = {label: x for label, x in outcomes.items() if x is not None}
        if not successes:
            label, reason = next(iter(self.failures.items()))
            same = len(self.failures) > 1 == len(set(self.failures.values()))
            which = "" if same else f"; the first, {label}, failed"
            raise InputError(f"nothing could be evaluated{which}: {reason}")
        return successes

    def notes(self) -> list[str]:
        """A note for each set that failed."""
        return [f"**{label} failed**: {reason}" for label, reason in self.failures.items()]


def to_stderr(message: str) -> None:
    """Print a message as the command line does."""
    print(f"deepff: {message}", file=sys.stderr)


@dataclass(frozen=True)
class Row:
    """A method's line of a table; None is a value that was not computed, or is not printed."""

    label: str
    values: Sequence[Value]
    origin: Origin = "this run"


@dataclass(frozen=True)
class Table:
    """A table of results."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    source: str  # network, layer, weights and number of images behind the rows of this run
    # What a reader has to know: definitions, failures, where published numbers come from.
    notes: Sequence[str] = ()
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)  # by caption; uint8 (H, W, 3)

    def markdown(self) -> str:
        """A heading, the table, transposed where it is wide, and the source and notes as a list."""
        cells = [[_cell(value) for value in row.values] for row in self.rows]
        if len(self.columns) <= MAX_COLUMNS:
            columns = zip(*(row.values for row in self.rows), strict=True)
            texts = [any(isinstance(value, str) for value in values) for values in columns]
            alignment = ["---" if is_text else "--:" for is_text in texts]
            lines = [_line(["", "from", *self.columns]), _line(["---", "---", *alignment])]
            lines += [
                _line([row.label, row.origin, *values])
                for row, values in zip(self.rows, cells, strict=True)
            ]
        else:
            header = ["", *(f"{row.label} ({row.origin})" for row in self.rows)]
            lines = [_line(header), _line(["---", *["--:"] * len(self.rows)])]
            lines += [
                _line([column, *values])
                for column, values in zip(self.columns, zip(*cells, strict=True), strict=True)
            ]
        remarks = [f"This run: {self.source}", *self.notes]
        remarks = [f"- {remark.rstrip('.')}." for remark in remarks]
        return "\n".join([f"### {self.title}", "", *lines, "", *remarks]) + "\n"

    def csv(self) -> str:
        """A header line and one line per row; missing values are empty."""
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


def write_tables(tables: Mapping[str, Table], folder: Path) -> list[Path]:
    """Write each table as ``<name>.md``, ``<name>.csv`` and ``<name>.json``; returns the paths. Its
    pictures are ``<name>-01.jpg`` and so on, which the Markdown shows."""
    paths = []
    for name, table in tables.items():
        links = []
        for number, (caption, picture) in enumerate(table.pictures.items(), 1):
            path = folder / f"{name}-{number:02d}.jpg"
            save_jpeg(Image.fromarray(picture), path)
            paths.append(path)
            links.append(f"\n{caption}\n\n![{caption}]({path.name})\n")
        markdown = table.markdown() + "".join(links)
        texts = {"md": markdown, "csv": table.csv(), "json": table.json()}
        for suffix, text in texts.items():
            path = folder / f"{name}.{suffix}"
            with atomic_path(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
            paths.append(path)
    return paths


def score_table(
    name: str,
    title: str,
    scores: Mapping[str, Scores | None],
    columns: Mapping[str, tuple[str, str]],
    attempts: Attempts,
    describe: Callable[[int], str],
    notes: Sequence[str],
    in_paper: bool = True,
) -> Table:
    """A row per method and the mean over the columns, then the paper's rows. ``columns`` has the
    set and the metric behind each column; ``name`` is the table's in ``published.json``."""
    evaluated = attempts.succeeded(scores)
    rows = []
    for label in dict.fromkeys(row for score in evaluated.values() for row in score.counts):
        counts = [
            evaluated[of].counts[label] if of in evaluated else None for of, _ in columns.values()
        ]
        rows.append(Row(label, [*counts, None]))
    for label in dict.fromkeys(row for score in evaluated.values() for row in score.values):
        means = [
            evaluated[of].mean(label, metric) if of in evaluated else None
            for of, metric in columns.values()
        ]
        rows.append(Row(label, [*means, mean_of_known(means)]))
    headers = [*columns, "mean"]
    published, published_notes = published_rows(name, headers) if in_paper else NOT_IN_PAPER
    return Table(
        title,
        headers,
        [*rows, *published],
        describe(sum(score.n_images for score in evaluated.values())),
        [*notes, *attempts.notes(), *published_notes, *labeled_remarks(evaluated)],
        {
            f"{label}, {caption}": picture
            for label, score in evaluated.items()
            for caption, picture in score.pictures.items()
        },
    )


def labeled_remarks(scores: Mapping[str, Scores]) -> list[str]:
    """The remarks on each set, after its label."""
    return [f"{label}: {text}" for label, score in scores.items() for text in score.remarks]


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
    "Rows from the paper are its printed numbers, for VGG-19 on the whole data sets. Rows of this "
    "run are for the network and the images named above"
)

NOT_IN_PAPER: tuple[list[Row], list[str]] = ([], ["The paper has no numbers for this data set"])
"""What `published_rows` would give for data that the paper did not use."""


def published_rows(table: str, columns: Sequence[str]) -> tuple[list[Row], list[str]]:
    """The paper's rows for a table of ours, as shares of 1, and notes on the paper's setting.
    Values are looked up by the column's name without its bracket; a published mean is shown only if
    ours is over the same columns. Where the paper prints factors, there is a row of means per k."""
    entry = published()["tables"][table]
    methods = {row["method"]: row["values"] for row in entry["rows"]}
    methods |= {
        f"DFF, k = {k}": _means(entry, sets) for k, sets in entry.get("factors", {}).items()
    }
    names = [column.split(" (")[0] for column in columns]
    known = {name for values in methods.values() for name in values}
    if known != set(names):
        names = ["" if name == "mean" else name for name in names]
    shares = {m: [_share(values.get(name)) for name in names] for m, values in methods.items()}
    rows = [Row(m, of, "paper") for m, of in shares.items() if mean_of_known(of) is not None]
    return rows, [*([SETTING] if rows else []), *entry["notes"]]


def published_factors(table: str, columns: Sequence[str]) -> list[Row]:
    """Every factor that the paper prints for our columns: its parts, and its IoU (0 to 1)."""
    names = dict.fromkeys(column.split(" (")[0] for column in columns)
    factors = published()["tables"][table].get("factors", {})
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
    """The content of ``published.json``: percentages as the paper prints them."""
    return json.loads((files(__package__) / "published.json").read_text(encoding="utf-8"))


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
