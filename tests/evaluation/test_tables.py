"""Writing tables, and the published numbers beside them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from deepff.evaluation.datasets.pascal import TABLE3_PARTS, VOC_CLASSES
from deepff.evaluation.tables import (
    MAX_COLUMNS,
    SETTING,
    Row,
    Table,
    mean_of_known,
    published,
    published_factors,
    published_rows,
    write_tables,
)

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


def test_markdown_shows_missing_values_as_a_dash() -> None:
    lines = TABLE.markdown().splitlines()

    assert lines == [
        "### Made up",
        "",
        "|  | from | cow | parts | mean |",
        "| --- | --- | --: | --- | --: |",
        "| DFF, k = 1 | this run | 0.123 | head, leg | 0.100 |",
        "| PCA | this run | 7 | – | – |",
        r"| DFF | paper | – | a\|b | 0.620 |",
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
        "| class 0 | 0 | – |",
        "| class 1 | 1 | – |",
    ]
    assert lines[-2:] == ["", "- This run: a network."]


def test_mean_of_known_leaves_missing_values_out() -> None:
    assert mean_of_known([0.25, None, 0.75]) == 0.5
    assert mean_of_known([None]) is None


FIVE_SETS = [
    "Elephants (021)", "Taj Mahal (017)", "Taj Mahal (018)", "Pyramids (020)", "Gymnastics (036)",
    "Statue of Liberty (042)", "mean",
]  # fmt: skip
CLASSES = ["aeroplane", "bird", "car", "motorbike", "cat"]


def published_values(table: str, columns: list[str]) -> dict[str, list]:
    rows, _ = published_rows(table, columns)
    assert all(row.origin == "paper" for row in rows)
    return {row.label: list(row.values) for row in rows}


def test_table_1_is_as_printed() -> None:
    assert published_values("table1-top", FIVE_SETS) == {
        "Vicente et al. 2011 (supervised)": [0.43, 0.91, 0.91, None, None, 0.94, None],
        "Rubio et al. 2012": [0.75, 0.89, 0.89, None, None, 0.92, None],
        "Rubinstein et al. 2013": [0.63, 0.48, 0.48, 0.57, 0.94, 0.70, None],
        "DFF": [0.65, 0.41, 0.41, 0.57, 0.43, 0.49, None],
        "DFF-CRF": [0.76, 0.51, 0.51, 0.70, 0.52, 0.62, None],
    }
    parts = published_values("table1-bottom", FIVE_SETS)
    assert list(parts) == ["DFF, k = 2", "DFF, k = 3", "DFF, k = 4"]
    assert parts["DFF, k = 2"][0] == pytest.approx((0.59 + 0.35) / 2)
    # the background, 27, is no part
    assert parts["DFF, k = 3"][3] == pytest.approx((0.55 + 0.36) / 2)


def test_table_2_is_as_printed() -> None:
    rows = published_values("table2", [*VOC_CLASSES, "mean"])

    assert list(rows) == [
        "Joulin et al. 2014", "Cho et al. 2015", "Li et al. 2016", "Le et al. 2017 (A)",
        "Le et al. 2017 (V)", "DFF", "DFF-CRF",
    ]  # fmt: skip
    assert rows["DFF-CRF"] == pytest.approx(
        np.divide(
            [64, 47, 50, 16, 10, 62, 52, 75, 8, 53, 35, 65, 65, 72, 16, 14, 41, 36, 63, 30, 43.51],
            100,
        )
    )
    assert rows.pop("Joulin et al. 2014")[-1] == 0.256  # though its classes' mean is 0.247
    for values in rows.values():
        # Classes are printed as whole percents.
        assert np.mean(values[:-1]) == pytest.approx(values[-1], abs=0.005)


def test_table_3_is_as_printed() -> None:
    columns = [f"{name} {part}" for name in ("cow", "horse") for part in TABLE3_PARTS[name]]

    rows = published_values("table3", [*columns, "mean"])

    assert len(rows) == 5
    assert rows["DFF-CRF"] == [0.452, 0.5887, 0.246, 0.3105, 0.5318, 0.2881, None]
    supervised = "Compositional model, Wang & Yuille 2015 (supervised)"
    assert rows[supervised] == [0.4155, 0.6098, 0.3098, 0.4721, 0.6674, 0.3818, None]


def test_table_4_is_as_printed() -> None:
    rows = published_values("table4", [*CLASSES, "mean"])

    assert rows["DFF, k = 1"] == pytest.approx([0.42, 0.40, 0.29, 0.30, 0.31, None])
    # the motorbike's second factor is a person, who is no part of it
    assert rows["DFF, k = 2"][3] == pytest.approx(0.38)
    factors = {row.label: list(row.values) for row in published_factors("table4", CLASSES)}
    assert len(factors) == 5 * (1 + 2 + 3 + 4)
    assert factors["cat, DFF, k = 2, factor 1"] == ["eye, head, neck, nose", 0.36]
    assert factors["motorbike, DFF, k = 4, factor 3"] == ["background", 0.13]


def test_factors_of_sets_that_are_no_columns_are_left_out() -> None:
    factors = published_factors("table1-bottom", ["Taj Mahal (017)", "Taj Mahal (018)", "mean"])

    assert [row.label for row in factors][:3] == [
        "Taj Mahal, DFF, k = 2, factor 0",
        "Taj Mahal, DFF, k = 2, factor 1",
        "Taj Mahal, DFF, k = 3, factor 0",
    ]
    assert len(factors) == 2 + 3 + 4


@pytest.mark.parametrize("columns", [["cat", "mean"], [*VOC_CLASSES, "unicorn", "mean"]])
def test_a_published_mean_stands_only_beside_a_mean_over_the_same(columns: list[str]) -> None:
    rows = published_values("table2", columns)

    assert rows["DFF"][columns.index("cat")] == 0.79
    assert all(values[-1] is None for values in rows.values())


def test_methods_with_nothing_for_the_columns_are_left_out() -> None:
    assert list(published_values("table1-top", ["Pyramids (020)", "mean"])) == [
        "Rubinstein et al. 2013", "DFF", "DFF-CRF",
    ]  # fmt: skip
    rows, notes = published_rows("figure4a", ["k", "quality"])
    assert rows == [] and SETTING not in notes
    assert any("without printing values" in note for note in notes)


def test_every_published_number_is_a_percentage() -> None:
    for entry in published()["tables"].values():
        values = [value for row in entry["rows"] for value in row["values"].values()]
        for sets in entry.get("factors", {}).values():
            for k_factors in sets.values():
                assert all(factor["parts"] and all(factor["parts"]) for factor in k_factors)
                values += [factor["iou"] for factor in k_factors]
        assert all(0 < value < 100 for value in values)
        assert all(len(factors) == int(k) for k, sets in entry.get("factors", {}).items()
                   for factors in sets.values())  # fmt: skip
