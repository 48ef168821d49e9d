"""Table 3 on ground truth made by hand."""

from pathlib import Path

import numpy as np
import pytest
from color_squares import HEAD, LEG, TORSO, rows_of
from PIL import Image

from deepff.errors import InputError
from deepff.evaluation.named_parts import table3
from deepff.evaluation.predictions import Network


def test_table_3_names_factors_by_file(pascal_part: Path, colors: Network, tmp_path: Path) -> None:
    mapping = tmp_path / "cow.yaml"
    mapping.write_text("0: head\n1: neck+torso\n2: leg\n")
    pca = tmp_path / "cow-pca.yaml"
    pca.write_text("0: head\n2: head\n")

    table = table3(colors, pascal_part, mappings=[mapping, pca], classes=["cow"], crf=False)

    assert list(table.columns) == ["cow head", "cow neck+torso", "cow leg", "mean"]
    rows = rows_of(table)
    assert rows["DFF"] == pytest.approx([HEAD, TORSO, LEG, (HEAD + TORSO + LEG) / 3])
    # Red and blue squares together are the head: 96 of its pixels and 160 others.
    assert rows["PCA"] == pytest.approx([96 / 256, 0, 0, 96 / 256 / 3])
    assert rows["k-means"] == [None] * 4
    # The paper's mean would be over horses too.
    assert rows_of(table, "paper")["DFF"] == [0.4053, 0.5948, 0.2157, None]
    assert "2 images" in table.source


def test_table_3_goes_on_without_the_horses(
    pascal_part: Path, colors: Network, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    mapping = tmp_path / "cow.json"
    mapping.write_text('{"0": "head"}')

    table = table3(colors, pascal_part, mappings=[mapping], crf=False)

    assert rows_of(table)["DFF"] == pytest.approx([HEAD, 0, 0, None, None, None, HEAD / 3])
    assert "horse failed: no image set of horse" in capsys.readouterr().err
    assert any("horse failed" in note for note in table.notes)


def test_table_3_writes_pictures_to_name_factors_by(
    pascal_part: Path, colors: Network, tmp_path: Path
) -> None:
    table3(colors, pascal_part, overlays=tmp_path / "look", classes=["cow"])

    names = ["cow-kmeans.jpg", "cow-pca.jpg", "cow.jpg"]
    assert sorted(path.name for path in (tmp_path / "look").glob("*.jpg")) == names
    # Rows: photos, all factors, then each alone. Factor 2 is the blue square, below on the left.
    height, left, gap = 180, 96, 6
    pixels = np.asarray(Image.open(tmp_path / "look" / "cow.jpg")).astype(int)
    photo, last = (pixels[row * (height + gap) :, left:][:height, :height] for row in (0, 4))
    changed = np.abs(last - photo).sum(2) > 60
    quarter = height // 4
    assert changed[3 * quarter, quarter]
    assert not changed[3 * quarter, 3 * quarter]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("cow.yaml", "0: wing", r"“wing”; the parts are: head, neck\+torso, leg"),
        ("cow.yaml", "3: head", "no factor 3"),
        ("sheep.yaml", "0: head", "sheep.yaml should be cow.yaml or"),
    ],
)
def test_table_3_refuses_mappings_that_fit_nothing(
    pascal_part: Path, colors: Network, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        table3(colors, pascal_part, mappings=[tmp_path / name], classes=["cow"])


def test_table_3_says_how_to_name_factors(pascal_part: Path, colors: Network) -> None:
    with pytest.raises(InputError, match="--write-overlays FOLDER"):
        table3(colors, pascal_part)
