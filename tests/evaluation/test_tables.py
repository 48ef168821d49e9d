"""Writing tables, and the published numbers beside them."""

import csv
import json
from pathlib import Path

import pytest

from deepff.evaluation import published
from deepff.evaluation.published import NOT_AVAILABLE, published_rows
from deepff.evaluation.tables import MAX_COLUMNS, Row, Table, mean_of_known, write_tables

TABLE = Table(
    "Made up",
    ["cow", "parts", "mean"],
    [
        Row("DFF, k = 1", [0.12345, "head, leg", 0.1]),
        Row("PCA", [7, None, None]),
        Row("DFF", [None, "a|b", 0.62], "paper"),
    ],
    "a network, 3 images",
    ["A note", "A sentence."],
)


def test_csv_and_json_hold_every_value(tmp_path: Path) -> None:
    paths = write_tables({"made-up": TABLE}, tmp_path / "new")

    assert [path.name for path in paths] == ["made-up.md", "made-up.csv", "made-up.json"]
    header, *lines = csv.reader(paths[1].open(encoding="utf-8", newline=""))
    assert header == ["method", "from", "cow", "parts", "mean"]
    assert lines == [
        ["DFF, k = 1", "this run", "0.12345", "head, leg", "0.1"],
        ["PCA", "this run", "7", "", ""],
        ["DFF", "paper", "", "a|b", "0.62"],
    ]
    fields = json.loads(paths[2].read_text(encoding="utf-8"))
    assert Table(**{**fields, "rows": [Row(**row) for row in fields["rows"]]}) == TABLE


def test_markdown_tells_not_computed_from_not_available() -> None:
    lines = TABLE.markdown().splitlines()

    assert lines == [
        "### Made up",
        "",
        "|  | from | cow | parts | mean |",
        "| --- | --- | --: | --- | --: |",
        "| DFF, k = 1 | this run | 0.123 | head, leg | 0.100 |",
        "| PCA | this run | 7 | – | – |",
        r"| DFF | paper | n/a | a\|b | 0.620 |",
        "",
        "- This run: a network, 3 images.",
        "- A note.",
        "- A sentence.",
    ]


def test_markdown_of_many_columns_has_a_line_a_column() -> None:
    names = [f"class {i}" for i in range(MAX_COLUMNS + 1)]
    rows = [Row("DFF", list(range(len(names)))), Row("DFF", [None] * len(names), "paper")]

    lines = Table("Wide", names, rows, "a network").markdown().splitlines()

    assert lines[2:6] == [
        "|  | DFF (this run) | DFF (paper) |",
        "| --- | --: | --: |",
        "| class 0 | 0 | n/a |",
        "| class 1 | 1 | n/a |",
    ]
    assert lines[-2:] == ["", "- This run: a network."]


def test_a_row_has_one_value_a_column() -> None:
    with pytest.raises(ValueError, match=r"'PCA' has 1 values for 2 columns"):
        Table("", ["a", "b"], [Row("PCA", [1])], "")


def test_mean_of_known_leaves_missing_values_out() -> None:
    assert mean_of_known([0.25, None, 0.75]) == 0.5
    assert mean_of_known([None]) is None


def test_published_numbers_name_their_table_row_and_source() -> None:
    tables = published.published()["tables"]

    assert list(tables) == [
        "table1-top", "table1-bottom", "table2", "table3", "table4", "figure5a", "figure5b",
    ]  # fmt: skip
    for table in tables.values():
        assert table["paper"].split()[0] in ("Table", "Figure")
        assert table["rows"][0]["method"].startswith("DFF")
        for row in table["rows"]:
            assert row["method"]
            assert row["source"]
            values = row["values"].values()
            assert all(value is None or 0 <= value <= 1 for value in values)
            # nothing was read in the paper itself
            assert row["second_hand"] or not any(values)


FIVE_SETS = [
    "Elephants (021)", "Taj Mahal (017)", "Taj Mahal (018)", "Pyramids (020)", "Gymnastics (036)",
    "Statue of Liberty (042)", "mean",
]  # fmt: skip


def test_second_hand_numbers_are_labelled_and_traced() -> None:
    rows, notes = published_rows("table1-top", FIVE_SETS)

    found = {(row.label, row.origin): row.values for row in rows}
    assert found["DFF", "paper"] == [None] * 7
    assert found["DFF-CRF", "paper"] == [None] * 7
    second_hand = [0.76, 0.72, 0.72, 0.56, 0.52, 0.44, None]
    assert found["DFF or DFF-CRF", "second-hand"] == second_hand
    assert found["DFF-CRF, about", "second-hand"] == [None] * 6 + [0.62]
    assert any("wizwand.com" in note for note in notes)
    assert notes[-1] == NOT_AVAILABLE


@pytest.mark.parametrize("columns", [["Elephants (021)", "mean"], [*FIVE_SETS, "Kite (033)"]])
def test_a_published_mean_stands_only_beside_a_mean_over_the_same(columns: list[str]) -> None:
    rows, notes = published_rows("table1-top", columns)

    assert {row.label for row in rows} == {"DFF", "DFF-CRF", "DFF or DFF-CRF"}
    assert all(row.values[columns.index("mean")] is None for row in rows)
    assert not any("0.62" in note or "about" in note for note in notes)


def test_numbers_that_somebody_fills_in_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "method": "DFF",
        "values": {"cow": 0.5, "mean": 0.4},
        "second_hand": False,
        "source": "Table 4, row 1",
        "note": "",
    }
    monkeypatch.setattr(published, "published", lambda: {"tables": {"table4": {"rows": [row]}}})

    assert published_rows("table4", ["cow", "mean"]) == ([Row("DFF", [0.5, 0.4], "paper")], [])
