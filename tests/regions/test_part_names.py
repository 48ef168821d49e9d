from pathlib import Path

import pytest
import torch

from deepff.errors import InputError
from deepff.regions.part_names import check_parts, part_map, part_masks, read_parts


@pytest.mark.parametrize(
    "text",
    [
        "0: head\n2: torso\n",
        "{0: head, 2: torso}",
        '{"0": "head", "2": "torso"}',
        "\ufeff# the five images\n0: 'head'\n2: torso",
    ],
)
def test_names_are_read_from_yaml_and_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "parts.yaml"
    path.write_text(text, encoding="utf-8")
    assert read_parts(path, 3) == {0: "head", 2: "torso"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0: head\n3: torso", "no factor 3; the 3 factors are numbered 0 to 2"),
        ("0: head\n0: torso", "names a factor twice"),
        ('{"0": "head", 0: "torso"}', "names a factor twice"),
        ("-1: head", "no factor -1"),
        ("head: 0", "no factor 'head'"),
        ("0.0: head", "no factor 0.0"),
        ("true: head", "no factor True"),
        ("[1, 2]: head", "neither YAML nor JSON"),
        ("0: 7", "name of factor 0 is 7; it should be a non-empty string"),
        ("0: no", "name of factor 0 is False; it should be a non-empty string"),
        ("0:", "name of factor 0 is None; it should be a non-empty string"),
        (
            "0: [head, ear]",
            "name of factor 0 is \\['head', 'ear'\\]; it should be a non-empty string",
        ),
        ("0: ' '", "non-empty string"),
        ("0: background", "is reserved for pixels without a class"),
        ("0: __Ignore__", "is reserved for pixels without a class"),
        ('0: "a\\nb"', "has a line break or another control character"),
        ('0: "a\\u2028b"', "has a line break or another control character"),
        ("0: ' a'", "a space at an end"),
        ("", "holds no names"),
        ("- head\n- torso", "holds no names"),
        ("{0: head", "neither YAML nor JSON"),
        ("0: a\n---\n0: b", "neither YAML nor JSON"),
        ("0: \x00", "neither YAML nor JSON"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "parts.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read_parts(path, 3)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read: No such file"):
        read_parts(tmp_path / "missing.yaml", 3)
    binary = tmp_path / "parts.yaml"
    binary.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match="neither YAML nor JSON"):
        read_parts(binary, 3)


def test_names_given_in_code_are_held_to_the_same() -> None:
    check_parts({0: "head", 2: "torso"}, 3)
    for wrong in ({3: "head"}, {-1: "head"}, {"0": "head"}, {True: "head"}, {0: ""}, {0: None}):
        with pytest.raises(InputError, match="factor"):
            check_parts(wrong, 3)  # type: ignore[arg-type]


def test_factors_of_one_name_merge_and_the_unnamed_are_background() -> None:
    labels = torch.tensor([[0, 1, 2], [3, 4, 1]], dtype=torch.uint8)
    parts = {3: "head", 0: "torso", 2: "torso"}
    merged = part_map(labels, parts, ["torso", "head"])
    # factor 0 (label 1) and factor 2 (label 3): torso; factor 3 (label 4): head; factor 1: none
    assert merged.tolist() == [[0, 1, 0], [1, 2, 1]]
    assert merged.dtype == torch.uint8
    assert part_map(torch.tensor([[1, 9]]), {}, []).tolist() == [[0, 0]]
    masks = torch.tensor([[[1, 0, 0, 0]], [[0, 1, 0, 0]], [[0, 0, 1, 0]]]).bool()
    of_parts = part_masks(masks, {0: "leg", 2: "leg"}, ["head", "leg"])
    assert of_parts.int().tolist() == [[[0, 0, 0, 0]], [[1, 0, 1, 0]]]
