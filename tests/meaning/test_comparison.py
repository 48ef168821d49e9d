"""Factors of two results matched by their maps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import NAMES, planted, result_of
from typer.testing import CliRunner

import deepff
from deepff.cli.main import app
from deepff.images.painting import factor_colors
from deepff.results.heatmaps import HeatMaps


def quarters(rows: int, columns: int, order: list[int]) -> torch.Tensor:
    """Maps (4, rows, columns) of the four quarters of an image, in an order."""
    maps = torch.zeros(4, rows, columns)
    top, left = torch.arange(rows)[:, None] < rows / 2, torch.arange(columns) < columns / 2
    for j, quarter in enumerate([top & left, top & ~left, ~top & left, ~top & ~left]):
        maps[j] = quarter
    return maps[order]


def test_quarters_are_matched_whatever_their_order_and_scale(tmp_path: Path) -> None:
    """Quarters of two images; the second result has them three times as strong, another order, and
    its last factor is half of one quarter's map: the cosine of (1, 1) and (1, 0) is 0.71."""
    one = quarters(4, 4, [0, 1, 2, 3]).repeat(2, 1, 1, 1)
    other = 3 * quarters(4, 4, [2, 0, 3, 1]).repeat(2, 1, 1, 1)
    other[:, 3, 0] = 0
    names = ["a.png", "b.png"]
    compared = deepff.compare(*(result_of(maps, names, tmp_path) for maps in (one, other)))
    assert list(compared.pairs) == [(0, 1), (2, 0), (3, 2), (1, 3)]
    expected = torch.zeros(4, 4)
    expected[0, 1] = expected[2, 0] = expected[3, 2] = 1
    expected[1, 3] = 0.5**0.5
    assert torch.allclose(compared.similarity, expected, atol=1e-6)


def test_the_sum_of_similarities_decides_and_not_the_best_pair(tmp_path: Path) -> None:
    """Unit vectors: first (1, 0), (0.8, 0.6), second (0.8, 0.6) again and (0, 1). The best pair
    alone (1.0) would leave 0; the other matching has 0.8 + 0.6."""
    first = torch.tensor([[1.0, 0.0], [0.8, 0.6]]).reshape(1, 2, 1, 2)
    second = torch.tensor([[0.8, 0.6], [0.0, 1.0]]).reshape(1, 2, 1, 2)
    compared = deepff.compare(*(result_of(maps, ["a"], tmp_path) for maps in (first, second)))
    assert compared.similarity.flatten().tolist() == pytest.approx([0.8, 0, 1, 0.6])
    assert list(compared.pairs) == [(0, 0), (1, 1)]


def test_grids_differ_and_factors_are_left_over(tmp_path: Path) -> None:
    """Halves on 1 × 4 cells, and of the same set on 1 × 2 cells the right half alone, which are
    (0, 0.25, 0.75, 1) on the finer grid: its cosine with (0, 0, 1, 1) is 1.75 / √(2 · 1.625)."""
    halves = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]).reshape(1, 2, 1, 4)
    first = result_of(halves, ["a"], tmp_path)
    second = result_of(torch.zeros(1, 1, 1, 4), ["a"], tmp_path)
    coarse = HeatMaps(torch.tensor([[0.0], [1]]), [(1, 2)], [(1, 4)])
    second.factorizations[1] = replace(second.factorizations[1], heatmaps=coarse)
    compared = deepff.compare(first, second)
    assert compared.rows() == [("factor 1", "object", pytest.approx(1.75 / (2 * 1.625) ** 0.5))]
    assert deepff.compare(second, first).pairs == ((0, 1),)


def test_other_images_are_refused(tmp_path: Path) -> None:
    maps = torch.ones(1, 1, 2, 2)
    with pytest.raises(deepff.InputError, match="have different images"):
        deepff.compare(*(result_of(maps, [name], tmp_path) for name in ("a", "b")))


def test_the_command_writes_a_table_and_a_picture_of_pairs(tmp_path: Path) -> None:
    """Three factors, and the same in another order: each pair is painted in one color."""
    first = planted(tmp_path / "photos")
    maps = torch.stack([first.heatmaps.grid(i)[[2, 0, 1]] for i in range(3)])
    second = result_of(maps, NAMES, tmp_path / "photos")
    first.save(tmp_path / "first")
    second.save(tmp_path / "second")
    out = tmp_path / "compared"
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    ran = CliRunner().invoke(app, ["compare", *folders, "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    lines = [line.split() for line in ran.stdout.splitlines()[1:4]]
    assert lines == [["factor", str(i), "factor", str((i + 1) % 3), "1.00"] for i in range(3)]
    assert [row[-1] for row in json.loads((out / "pairs.json").read_text())] == [
        pytest.approx(1)
    ] * 3
    page = (out / "pairs.html").read_text()
    assert page.count('<td class="number">1.00</td>') == 3 and 'src="pairs.png"' in page
    picture = np.asarray(deepff.compare(first, second).plot(images=0, height=60))
    left = (picture[30] == 0).all(1).argmax()  # photos are black, 80 × 60 pixels
    colors = factor_colors(3)
    for row, (x, y) in enumerate([(5, 30)] * 2 + [(75, 10)] * 2 + [(75, 50)] * 2):
        painted = picture[66 * (row + 1) + y, left + x]
        np.testing.assert_allclose(painted, 0.8 * colors[row // 2], atol=2)
