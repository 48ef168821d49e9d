"""What masks teach the set: which images it changes, and which never."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import result_of
from workspaces import opened_workspace

from deepff.app.actions import act, opened
from deepff.app.label_file import FILE, LabelStore, load_labels
from deepff.app.lessons import agreements, write_lesson
from deepff.app.teachers import Teaching, pupils, teacher_masks, teachers
from deepff.app.view import View
from deepff.app.workspace import Workspace
from deepff.errors import InputError
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


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Three flags of three stripes, of which the left one is the object to its classifier."""
    pixels = np.full((*SIZE, 3), 128, np.uint8)
    pixels[:, :30], pixels[:, 50:] = 255, 0
    for name in NAMES:
        Image.fromarray(pixels).save(tmp_path / name)
    result = result_of(torch.ones(3, 1, *SIZE), NAMES, tmp_path)
    maps = LEFT.flatten().repeat(3)[:, None]
    grids, sizes = [GRID] * 3, [SIZE] * 3
    found = Factorization(
        torch.ones(1, 1),
        HeatMaps(maps, grids, sizes),
        0.0,
        1,
        PixelClassifier(torch.zeros(1, 1), torch.zeros(1), result.sources),
        HeatMaps(likely(maps), grids, sizes, torch.ones(1)),
    )
    images = [replace(image, grid=GRID) for image in result.images]
    result.object = Result(
        images, [], {1: found}, "nmf", result.sources, {}, "", {}, recipe=Recipe.CONTRAST
    )
    return opened_workspace(result, tmp_path / "result")


def marked(workspace: Workspace, name: str) -> np.ndarray:
    """The share of each stripe that is marked."""
    values = workspace.masks.current(workspace.store.labels, name).values > 0
    return np.array([values[:, :30].mean(), values[:, 30:50].mean(), values[:, 50:].mean()])


LEFT_STRIPE, RIGHT_STRIPE = pytest.approx([1, 0, 0], abs=0.1), pytest.approx([0, 0, 1], abs=0.1)


def test_a_lesson_changes_what_nobody_has_looked_at(workspace: Workspace) -> None:
    view = View()
    opened(workspace, view)
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
    found = agreements(workspace.result, labels.settings, lesson, workspace.folder)
    assert found.tolist() == [0, 0, 1]
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


def test_a_lesson_is_dropped_or_gone(workspace: Workspace) -> None:
    view = View()
    opened(workspace, view)
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
