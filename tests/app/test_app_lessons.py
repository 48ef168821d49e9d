"""What masks teach the set: which images it changes, and which never."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import result_of
from workspaces import opened_workspace

from deepff.app.actions import act
from deepff.app.label_file import FILE, LabelStore, load_labels
from deepff.app.labels import OBJECT, Labels, Settings
from deepff.app.lessons import (
    Teaching,
    agreements,
    pupils,
    teacher_masks,
    teachers,
    write_lesson,
)
from deepff.app.masks import Masks
from deepff.app.page import View
from deepff.app.pictures import Pictures
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.layers.layer import Extent
from deepff.options import Recipe
from deepff.result import Result
from deepff.results.classifier import PixelClassifier
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps

NAMES = ["a.png", "b.png", "c.png"]
SIZE, GRID = (60, 80), (6, 8)
LEFT = torch.zeros(GRID)
LEFT[:, :3] = 1
RIGHT = LEFT.flip(1)


def likely(where: torch.Tensor) -> torch.Tensor:
    return 0.05 + 0.9 * where


def flags(
    folder: Path, maps: torch.Tensor, where: torch.Tensor = LEFT, extent: Extent | None = None
) -> Result:
    """Three flags of three stripes, of which the left one is the object to its classifier.

    The factors have maps (k, H, W); only the classifier's grid may have an extent.
    """
    pixels = np.full((*SIZE, 3), 128, np.uint8)
    pixels[:, :30], pixels[:, 50:] = 255, 0
    for name in NAMES:
        Image.fromarray(pixels).save(folder / name)
    result = result_of(maps.repeat(3, 1, 1, 1), NAMES, folder)
    cells = where.flatten().repeat(3)[:, None]
    grids, sizes = [GRID] * 3, [SIZE] * 3
    factor = Factorization(
        torch.ones(1, 1),
        HeatMaps(cells, grids, sizes),
        0.0,
        1,
        PixelClassifier(torch.zeros(1, 1), torch.zeros(1), result.sources),
        HeatMaps(likely(cells), grids, sizes, torch.ones(1), [extent] * 3),
    )
    images = [replace(image, grid=GRID) for image in result.images]
    result.object = Result(
        images, [], {1: factor}, "nmf", result.sources, {}, "", {}, recipe=Recipe.CONTRAST
    )
    return result


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return opened_workspace(flags(tmp_path, torch.ones(1, *SIZE)), tmp_path / "result")


def marked(workspace: Workspace, name: str) -> np.ndarray:
    """The share of each stripe that is marked."""
    values = workspace.masks.current(workspace.store.labels, name).values > 0
    return np.array([values[:, :30].mean(), values[:, 30:50].mean(), values[:, 50:].mean()])


LEFT_STRIPE, RIGHT_STRIPE = pytest.approx([1, 0, 0], abs=0.1), pytest.approx([0, 0, 1], abs=0.1)


def test_a_lesson_changes_what_nobody_has_looked_at(workspace: Workspace, view: View) -> None:
    names = workspace.result.names
    labels = workspace.store.labels
    assert teachers(labels, names) == [] and pupils(labels, names) == [0, 1, 2]
    act(workspace, view, {"act": "accept", "image": "0"})
    labels = workspace.store.labels
    assert teachers(labels, names) == ["a.png"] and pupils(labels, names) == [1, 2]
    mask = teacher_masks(labels, names)["a.png"]
    assert mask.dtype == bool and mask[:, :28].all() and not mask[:, 32:].any()

    # It says of a and b that the object is on the right, and nothing of c.
    taught = {name: likely(RIGHT) for name in NAMES[:2]}
    lesson = write_lesson(taught, workspace.folder)
    ious = agreements(workspace.result, labels.settings, lesson, workspace.folder)
    assert ious.tolist() == [0, 0, 1]
    workspace.teaching = Teaching(3, 1, 3, lesson)
    html = act(workspace, view, {"act": "look", "look": "masks"})["lesson"]
    assert "of the other 2 images <strong>1</strong> changes" in html
    assert "b.png" in html and "IoU 0 %" in html and "c.png" not in html
    act(workspace, view, {"act": "use-lesson"})
    assert workspace.teaching is None
    assert workspace.store.labels.settings.lesson == lesson
    assert marked(workspace, "a.png") == LEFT_STRIPE
    assert marked(workspace, "b.png") == RIGHT_STRIPE
    assert marked(workspace, "c.png") == LEFT_STRIPE
    shown = workspace.pictures.made(workspace.store.labels, 1).values > 0
    columns = np.arange(shown.shape[1]) / shown.shape[1] * SIZE[1]
    assert shown[:, columns > 52].all() and not shown[:, columns < 48].any()
    assert workspace.store.labels.differs("a.png")

    # It is there after a restart, and `undo` takes it back.
    assert load_labels(workspace.folder, workspace.result).settings.lesson == lesson
    act(workspace, view, {"act": "undo"})
    assert marked(workspace, "b.png") == LEFT_STRIPE


def test_a_lesson_is_dropped_or_gone(workspace: Workspace, view: View) -> None:
    act(workspace, view, {"act": "accept", "image": "0"})
    lesson = write_lesson({"b.png": likely(RIGHT)}, workspace.folder)
    workspace.teaching = Teaching(3, 1, 3, lesson)
    html = act(workspace, view, {"act": "drop-lesson"})["lesson"]
    assert workspace.teaching is None and "let 1 mask teach the other 2 images" in html
    head = act(workspace, view, {"act": "use-lesson"})["head"]
    assert "no lesson to take any more" in head
    workspace.teaching = Teaching(3, 1, 3, lesson)
    act(workspace, view, {"act": "use-lesson"})
    (workspace.folder / "labels" / lesson).unlink()
    with pytest.raises(InputError, match=r"what mended masks taught, .* is gone"):
        LabelStore(workspace.folder, workspace.result)
    text = (workspace.folder / FILE).read_text("utf-8")
    (workspace.folder / FILE).write_text(text.replace(lesson, "../x.safetensors"), "utf-8")
    with pytest.raises(InputError, match="is damaged"):
        LabelStore(workspace.folder, workspace.result)


@pytest.mark.parametrize("cut", [0.5, 0.8])
def test_cells_are_where_their_extent_says_whatever_the_cut(tmp_path: Path, cut: float) -> None:
    """The object's cells are in the right half of the image, where factor 1 is."""
    left_half = (torch.arange(SIZE[1]) < SIZE[1] // 2).expand(SIZE)
    halves = torch.stack([left_half, ~left_half]).float()
    second_and_third = torch.zeros(GRID)
    second_and_third[:, 1:3] = 1
    result = flags(tmp_path, halves, second_and_third, ((0.0, 1.0), (0.5, 1.5)))
    labels = Labels("run", Settings(2, masks=OBJECT, cut=cut), Path())
    pictures = Pictures(result)
    assert pictures.overview(labels).present.tolist() == [[False, True]] * 3
    for mask in (Masks(result).made(labels, "a.png"), pictures.made(labels, 0)):
        assert set(np.unique(mask.values)) == {0, 2}
        columns = np.flatnonzero((mask.values == 2).mean(0) > 0.5) / mask.values.shape[1]
        # The cells are from 5/8 to 7/8, and the flag's third stripe from there to the end.
        assert columns[0] == pytest.approx(5 / 8, abs=0.02) and columns[-1] > 0.85


def test_a_mask_is_refined_along_its_photograph_where_the_object_lacks_an_image(
    tmp_path: Path,
) -> None:
    result = flags(tmp_path, torch.ones(1, *SIZE))
    assert result.object is not None
    factor = result.object.factorization(1)
    maps = HeatMaps(likely(LEFT.flatten().repeat(2)[:, None]), [GRID] * 2, [SIZE] * 2)
    result.object.images = result.object.images[1:]
    result.object.factorizations = {1: replace(factor, heatmaps=maps, probabilities=maps)}
    labels, pictures = Labels("run", Settings(1, masks=OBJECT), Path()), Pictures(result)
    photo, read = pictures.photo, set()
    pictures.photo = lambda index: read.add(index) or photo(index)
    assert pictures.made(labels, 1).values.any() and read == {1}
    assert not pictures.made(labels, 0).values.any()
