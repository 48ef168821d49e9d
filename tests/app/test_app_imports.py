"""Labels that exist come in as accepted masks: our own exports, and other people's files."""

import io
import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from export_readers import NAMES as CLASSES
from export_readers import annotate, difficult_labels, write
from PIL import Image
from planted import NAMES, planted
from typer.testing import CliRunner
from workspaces import opened_workspace

from deepff.app.actions import act, opened, select
from deepff.app.imports import _ends, _images_by_end, import_labels, read_labels
from deepff.app.label_file import export_labelled
from deepff.app.page import View
from deepff.app.workspace import Workspace
from deepff.cli.main import app
from deepff.errors import InputError, InputWarning
from deepff.options import ExportOptions

MASKS = {NAMES[0]: np.zeros((6, 8), np.uint8), NAMES[1]: np.zeros((6, 8), np.uint8)}
MASKS[NAMES[0]][1:4, 2:7] = 1
MASKS[NAMES[0]][2, 3] = 2


def values_of(workspace: Workspace, image: str, *names: str) -> np.ndarray:
    """The mask that an image keeps, with 1 where it is the first of the classes, and so on."""
    mask = workspace.masks.current(workspace.store.labels, image)
    assert {*mask.names} <= {*names}
    return mask.renumbered([names.index(name) + 1 for name in mask.names])


@pytest.mark.parametrize("format", ["coco", "coco-polygons", "yolo-seg", "labelme", "png"])
@pytest.mark.parametrize("kind", ["components", "parts"])
def test_what_was_exported_comes_in_as_the_same_masks(
    tmp_path: Path, format: str, kind: str
) -> None:
    labels = difficult_labels()
    write(format, annotate(labels, kind), tmp_path)
    masks = {}
    for file, pieces in read_labels(tmp_path):
        name = next(name for name in labels if Path(file).stem == Path(name).stem)
        masks[name] = np.zeros(labels[name].shape, np.uint8)
        for of, mask in pieces(labels[name].shape):
            assert not masks[name][mask].any()
            masks[name][mask] = CLASSES.index(of) + 1
    assert {*masks} == {*labels}
    for name, values in labels.items():
        assert (masks[name] == values).all(), name


@pytest.mark.parametrize("format", ["coco", "coco-polygons", "yolo-seg", "labelme", "png"])
def test_masks_are_accepted_exported_and_read_again(
    workspace: Workspace, tmp_path: Path, format: str
) -> None:
    write(format, annotate(MASKS, "components"), tmp_path / "before", min_area=1)
    said = import_labels(workspace.store, workspace.result, tmp_path / "before")
    assert said == f"2 of 3 images have masks from {tmp_path / 'before'}"
    labels = workspace.store.labels
    assert labels.count("accepted", NAMES) == 2 and labels.image(NAMES[1]).shows_nothing
    assert (values_of(workspace, NAMES[0], *CLASSES) == MASKS[NAMES[0]]).all()
    # In the app they are classes of their own, and nothing that teaching or a setting changes.
    assert {*CLASSES[:2]} < {*labels.all_classes} and labels.image(NAMES[0]).mask.mended
    settings = ExportOptions(min_area=1, simplify=0, images="copy", split=(50, 50, 0))
    export_labelled(workspace.result, labels, format, tmp_path / "after", settings)
    other = opened_workspace(planted(tmp_path), tmp_path / "other")
    import_labels(other.store, other.result, tmp_path / "after")
    for name in NAMES[:2]:
        assert (values_of(other, name, *CLASSES) == MASKS[name]).all()


def test_hand_work_stays_and_what_is_left_out_is_named(
    workspace: Workspace, view: View, tmp_path: Path
) -> None:
    act(workspace, view, {"act": "skip", "image": "0"})
    annotation = {
        "id": 1,
        "image_id": 2,
        "category_id": 7,
        "segmentation": [[0, 0, 4, 0, 4, 6, 0, 6]],
    }
    named = [*NAMES, "elsewhere.jpg"]
    content = {
        "images": [
            {"id": i, "file_name": name, "height": 6, "width": 8} for i, name in enumerate(named, 1)
        ],
        "annotations": [annotation, {**annotation, "id": 2, "image_id": 3, "segmentation": []}],
        "categories": [{"id": 7, "name": "FACTOR 1"}, {"id": 8, "name": "leg"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(content), "utf-8")
    with pytest.warns(InputWarning, match="boxes but no masks.*, and 1 more: left out of"):
        said = import_labels(workspace.store, workspace.result, tmp_path / "coco.json")
    assert said.startswith("1 of 3 images") and "1 had decisions before" in said
    assert "elsewhere.jpg (no photograph has this name)" in said
    labels = workspace.store.labels
    assert labels.image(NAMES[0]).status == "skipped"
    assert labels.image(NAMES[2]).status == ""
    half = np.repeat([[1, 1, 1, 1, 0, 0, 0, 0]], 6, 0)
    assert (values_of(workspace, NAMES[1], "factor 1") == half).all()
    # One step takes all of it back.
    opened(workspace, view)
    act(workspace, view, {"act": "undo"})
    assert workspace.store.labels.count("accepted", NAMES) == 0


def coco(annotations: list[tuple[int, int, object]], **more: object) -> str:
    """Annotations of image, category and segmentation, on three images of 8 × 6 pixels."""
    files = ["a.png", unicodedata.normalize("NFD", NAMES[1]), "c.png"]
    content = {
        "images": [
            {"id": i, "file_name": name, "height": 6, "width": 8} for i, name in enumerate(files, 1)
        ],
        "categories": [{"id": 1, "name": "Background"}, {"id": 2, "name": "Tür"}],
        "annotations": [
            {"id": i, "image_id": image, "category_id": category, "segmentation": where, **more}
            for i, (image, category, where) in enumerate(annotations, 1)
        ],
    }
    return json.dumps(content)


def test_pieces_that_cannot_be_used_are_named_and_the_others_come_in(
    workspace: Workspace, tmp_path: Path
) -> None:
    """Outlines beyond the image, a class called background, an unknown one; a name as Macs spell
    it; a crowd, which is a piece as others."""
    beyond, across = [[20, 1, 30, 1, 30, 5]], [[-9, -9, 4, -9, 4, 9, -9, 9]]
    crowd = {"size": [6, 8], "counts": [24, 24]}
    annotations = [(1, 1, across), (1, 2, beyond), (1, 2, across), (2, 2, crowd), (3, 2, beyond)]
    (tmp_path / "x.json").write_text(coco(annotations, iscrowd=0), "utf-8")
    with pytest.warns(InputWarning, match="left out of"):
        said = import_labels(workspace.store, workspace.result, tmp_path / "x.json")
    assert said.startswith("2 of 3 images have masks")
    for left_out in (
        "Background in a.png (no class can have this name)",
        "Tür in a.png and 1 more (an outline has no pixel inside of the image)",
    ):
        assert left_out in said
    half = np.repeat([[1, 1, 1, 1, 0, 0, 0, 0]], 6, 0)
    assert (values_of(workspace, NAMES[0], "Tür") == half).all()
    assert (values_of(workspace, NAMES[1], "Tür") == 1 - half).all()
    assert workspace.store.labels.image("c.png").status == ""

    (tmp_path / "x.json").write_text(coco([(3, 9, across)], iscrowd=1), "utf-8")
    with pytest.warns(InputWarning) as warned:
        said = import_labels(workspace.store, workspace.result, tmp_path / "x.json")
    assert "crowds (1) are pieces of their class" in str(warned[0].message)
    assert "c.png (its labels are damaged: KeyError(9))" in said


def labelme(shapes: list[dict], **more: object) -> str:
    content = {"imageHeight": 6, "imageWidth": 8, "imagePath": "..\\x\\a.png", "shapes": shapes}
    return json.dumps({**content, **more})


SQUARE = {"label": "x", "points": [[1, 1], [3, 1], [3, 3], [1, 3]]}


def png(values: np.ndarray, mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).convert(mode).save(file, "PNG")
    return file.getvalue()


def test_other_peoples_files(workspace: Workspace, tmp_path: Path) -> None:
    """Shapes of LabelMe, where the smaller is on top; a mask of 0 and 255; uncompressed runs."""
    shapes = [
        {"label": "eye", "points": [[1, 1], [3, 1], [3, 3], [1, 3]]},
        {"label": "face", "points": [[6, 5], [0, 0]], "shape_type": "rectangle"},
        {"label": "Background", "points": [[7, 0], [8, 0], [8, 6]], "shape_type": "polygon"},
    ]
    expected = np.zeros((6, 8), int)
    expected[:5, :6] = 1
    expected[1:3, 1:3] = 2
    cases = {
        "labelme/a.json": labelme(shapes).encode(),
        "masks/a.png": png(np.where(expected, 255, 0).astype(np.uint8)),
        "coco.json": json.dumps(
            {
                "images": [{"id": 1, "file_name": "b\\a.png", "height": 6, "width": 8}],
                "categories": [{"id": 1, "name": "face"}],
                "annotations": [
                    {
                        "id": 1,
                        "image_id": 1,
                        "category_id": 1,
                        "segmentation": {"size": [6, 8], "counts": [6, 12, 30]},
                    }
                ],
            }
        ).encode(),
    }
    masks = {
        "labelme/a.json": (expected, ("face", "eye")),
        "masks/a.png": (expected > 0, ("object",)),
        "coco.json": (np.repeat([[0, 1, 1, 0, 0, 0, 0, 0]], 6, 0), ("face",)),
    }
    for number, (name, content) in enumerate(cases.items()):
        path = tmp_path / "labels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        other = opened_workspace(planted(tmp_path), tmp_path / str(number))
        import_labels(other.store, other.result, path if name == "coco.json" else path.parent)
        values, names = masks[name]
        assert (values_of(other, NAMES[0], *names) == values).all()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.json": labelme([SQUARE], imageHeight=7)}, "labels are for 8 × 7 pixels"),
        ({"a.json": labelme([{**SQUARE, "shape_type": "line"}])}, "a line is not an outline"),
        ({"a.txt": "0 .5 .5 .1 .1", "data.yaml": "names: [x]"}, "boxes but no outlines"),
        ({"a.png": png(np.zeros((6, 8, 3), np.uint8), "RGB")}, "colors instead of class numbers"),
        ({"a.png": png(np.ones((8, 6), np.uint8))}, "labels are for 6 × 8 pixels"),
    ],
)
def test_labels_that_do_not_fit_are_left_out_with_a_reason(
    workspace: Workspace, tmp_path: Path, files: dict[str, str | bytes], reason: str
) -> None:
    (tmp_path / "labels").mkdir()
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "labels" / name).write_bytes(data)
    with pytest.warns(InputWarning, match=reason):
        said = import_labels(workspace.store, workspace.result, tmp_path / "labels")
    assert said.startswith("0 of 3 images") and reason in said
    assert workspace.store.labels.count("accepted", NAMES) == 0


def test_the_command_says_at_once_that_it_knows_no_such_labels(tmp_path: Path) -> None:
    planted(tmp_path / "photos")
    (tmp_path / "x.json").write_text("[1]")
    command = ["label", str(tmp_path / "photos"), "--labels", str(tmp_path / "x.json")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2 and "has no labels that deepff can read" in done.output
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        read_labels(tmp_path / "y.json")


def test_damaged_labels_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"annotations": [], "images": [{"id": 1}]}')
    with pytest.raises(InputError, match=r"x\.json is damaged .*file_name"):
        import_labels(workspace.store, workspace.result, tmp_path / "x.json")


def test_images_are_found_by_the_end_of_their_path() -> None:
    images = _images_by_end(["a/1.jpg", "b/1.jpg", "2.jpg", "c/2.jpg", "d/3.png", "d/3.jpg"])

    def found(path: str) -> str | None:
        return next((images[end] for end in _ends(path) if end in images), None)

    paths = ["images/train/a/1", "x\\b\\1.jpg", "labels/2", "1", "y/c/2.jpg", "d/3", "3.png", "4"]
    expected = ["a/1.jpg", "b/1.jpg", "2.jpg", None, "c/2.jpg", None, "d/3.png", None]
    assert [*map(found, paths)] == expected


def test_a_page_says_what_came_of_labels(tmp_path: Path) -> None:
    planted(tmp_path).save(tmp_path / "result")
    write("png", annotate(MASKS, "components"), tmp_path / "masks", min_area=1)
    for _ in range(2):
        workspace, view = Workspace(tmp_path / "result", tmp_path / "masks"), View()
        workspace.open()
        opened(workspace, view)
        head = select(workspace, view, "images")["head"]  # as the browser does at once
        assert workspace.store.labels.count("accepted", NAMES) == 2
    assert "0 of 3 images have masks from" in head and "2 had decisions before" in head
