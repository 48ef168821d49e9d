"""What masks teach the set: which images it changes, and which never."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import result_of
from pycocotools.coco import COCO
from safetensors.torch import save_file
from typer.testing import CliRunner
from workspaces import opened_workspace

import deepff
from deepff.app import page
from deepff.app.actions import UNTAUGHT, act, choose
from deepff.app.actions import lesson as lesson_view
from deepff.app.edits import set_masks, set_settings
from deepff.app.kept_masks import FOLDER, NamedMask, keep
from deepff.app.label_content import content_of
from deepff.app.label_file import FILE, LabelStore, carry_over, load_labels, relearn, run_digest
from deepff.app.labels import OBJECT, Labels, Settings
from deepff.app.lessons import (
    TAUGHT,
    Lesson,
    Teaching,
    classes_to_teach,
    pupils,
    save_bank,
    teacher_masks,
    teachers,
    write_lesson,
)
from deepff.app.masks import Masks
from deepff.app.page import View
from deepff.app.pictures import Pictures
from deepff.app.workspace import Workspace
from deepff.cli.main import app
from deepff.discovery.teaching import classified, teach
from deepff.errors import InputError
from deepff.evaluation.datasets.coco_parts import CAR_PARTS, load_coco
from deepff.layers.layer import Extent
from deepff.options import Recipe
from deepff.result import Result
from deepff.results.classifier import PixelClassifier
from deepff.results.concept_bank import load_concepts
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
    assert classes_to_teach(workspace.result, labels) == ()
    mask = teacher_masks(labels, names, ())["a.png"]
    assert (mask[:, :28] == 1).all() and not mask[:, 32:].any()
    # A mask whose file is gone teaches nothing; the others still do.
    lost = replace(labels, folder=workspace.folder / "elsewhere")
    assert teacher_masks(lost, names, ()) == {}

    # It says of a and b that the object is on the right, and nothing of c.
    lesson = write_lesson(Lesson(dict.fromkeys(NAMES[:2], likely(RIGHT)), None), workspace.folder)
    teaching = Teaching(3, 1, (), 3, lesson)
    teaching.agreements = workspace.pictures.changes(labels, teaching.taught(labels))
    assert teaching.agreements.tolist() == [0, 0, 1]
    workspace.teaching = teaching
    html = act(workspace, view, {"act": "look", "look": "masks"})["lesson"]
    assert "of the other 2 images <strong>1</strong> changes" in html
    assert "b.png" in html and "IoU 0 %" in html and "c.png" not in html
    act(workspace, view, {"act": "use-lesson"})
    assert workspace.teaching is None
    assert workspace.store.labels.settings.lesson == lesson
    assert "Apply to all again" in page.lesson(workspace.pictures, workspace.store.labels, None)
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
    lesson = write_lesson(Lesson({"b.png": likely(RIGHT)}, None), workspace.folder)
    workspace.teaching = Teaching(3, 1, (), 3, lesson)
    html = act(workspace, view, {"act": "drop-lesson"})["lesson"]
    assert workspace.teaching is None and "let 1 mask teach the other 2 images" in " ".join(
        html.split()
    )
    head = act(workspace, view, {"act": "use-lesson"})["head"]
    assert "no longer exists" in head
    workspace.teaching = Teaching(3, 1, (), 3, lesson)
    act(workspace, view, {"act": "use-lesson"})
    (workspace.folder / "labels" / lesson).unlink()
    with pytest.raises(InputError, match=r"the lesson .* is missing"):
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


def test_a_lesson_of_classes_stands_for_factors(workspace: Workspace, view: View) -> None:
    mask = NamedMask(
        np.repeat([[1] * 30 + [0] * 20 + [2] * 30], 60, 0).astype(np.uint8), ("x", "y")
    )
    store = workspace.store
    store.edit(0, lambda labels: set_masks(labels, {"a.png": keep(labels, "a.png", mask, True)}))
    assert classes_to_teach(workspace.result, store.labels) == ("x", "y")
    # What no checked mask shows is named before the lesson removes it.
    others = ", ".join(sorted(store.labels.parts.values()))
    assert f"No mask that you checked shows {others}, so" in lesson_view(workspace)
    taught = teacher_masks(store.labels, NAMES, ("y", "x"))["a.png"]
    assert taught[0, [0, 40, 79]].tolist() == [2, 0, 1]

    # In b the two are the other way round; of c nothing is known.
    maps = {"b.png": likely(torch.stack([RIGHT, LEFT])) * 0.95}
    lesson = write_lesson(Lesson(maps, None), workspace.folder)
    workspace.teaching = Teaching(3, 1, ("x", "y"), 3, lesson, np.zeros(3))
    act(workspace, view, {"act": "look", "look": "masks"})
    act(workspace, view, {"act": "use-lesson"})
    for of_image, columns in (("a.png", "x-y"), ("b.png", "y-x"), ("c.png", "---")):
        shown = workspace.masks.current(store.labels, of_image)
        names = ["-", *shown.names]
        assert "".join(names[i] for i in shown.values[30, [10, 40, 70]]) == columns
    present = workspace.pictures.overview(store.labels).present[1:]
    assert present.tolist() == [[True, True], [False, False]]
    assert workspace.pictures.classes_present(store.labels, 1) == ["x", "y"]

    # An export has them without being asked to.
    command = ["export", str(workspace.folder), "--format", "coco"]
    assert CliRunner().invoke(app, command).exit_code == 0
    coco = COCO(workspace.folder / "export/coco/annotations/instances_default.json")
    columns = {
        (coco.imgs[each["image_id"]]["file_name"], coco.cats[each["category_id"]]["name"]): np.ptp(
            np.flatnonzero(coco.annToMask(each).any(0))
        )
        + 1
        for each in coco.anns.values()
    }
    assert columns == {("a.png", "x"): 30, ("a.png", "y"): 30} | dict.fromkeys(
        [("b.png", "x"), ("b.png", "y")], pytest.approx(30, abs=2)
    )

    # They are renamed, kept without one, and go when masks are made in another way.
    act(workspace, view, {"act": "class", "name": "x", "text": "wheel"})
    assert load_labels(workspace.folder, workspace.result).settings.taught == ("wheel", "y")
    act(workspace, view, {"act": "drop", "image": "1", "name": "y", "factor": "0", "drop": "1"})
    kept = store.labels.image("b.png").mask
    assert kept is not None and kept.names == ("wheel",)
    again = act(
        workspace, view, {"act": "drop", "image": "1", "name": "y", "factor": "0", "drop": "1"}
    )
    assert "is not in this mask; click Undo to get it back" in str(again)
    assert store.labels.image("b.png").mask == kept
    assert UNTAUGHT in choose(workspace, view, "cut", 0.4)["head"]
    assert store.labels.settings.taught == () and store.labels.settings.lesson == ""
    assert UNTAUGHT not in act(workspace, view, {"act": "undo"})["head"]
    assert store.labels.settings.taught == ("wheel", "y")


def test_the_bank_is_of_the_lesson_that_counts(workspace: Workspace, view: View) -> None:
    """Of none before the first, the object's after it, then one of classes, by the present names;
    undo and redo go back and forth between them."""
    path, states = workspace.folder / FOLDER / TAUGHT, []
    sources = workspace.result.sources

    def bank() -> tuple[float, tuple[str | None, ...]] | None:
        if not path.exists():
            return None
        concepts = load_concepts(path)
        (k,) = concepts.classifiers
        classes = concepts.classes.get(k)
        return concepts.classifiers[k].bias[-1].item(), () if classes is None else classes.names

    def use(bias: float, classes: tuple[str, ...]) -> None:
        n = len(classes) or 1
        classifier = PixelClassifier(torch.zeros(n, 1), torch.full((n,), bias), sources)
        lesson = write_lesson(Lesson({}, classifier), workspace.folder)
        workspace.teaching = Teaching(3, 1, classes, 3, lesson)
        act(workspace, view, {"act": "use-lesson"})
        states.append(bank())

    states.append(bank())
    use(0.25, ())
    use(0.5, ("door", "wheel"))
    act(workspace, view, {"act": "class", "name": "wheel", "text": "tire"})
    states.append(bank())
    choose(workspace, view, "cut", 0.4)  # the masks of the object again
    states.append(bank())
    assert states == [None, (0.25, ()), (0.5, ("door", "wheel")), (0.5, ("door", "tire")), None]
    for kind, then in (("undo", states[-2::-1]), ("redo", states[1:])):
        for state in then:
            act(workspace, view, {"act": kind})
            assert bank() == state


def test_a_lesson_of_an_older_version_is_of_the_object(workspace: Workspace) -> None:
    file = f"{'0' * 32}.safetensors"
    (workspace.folder / "labels").mkdir(exist_ok=True)
    save_file({"b.png": likely(RIGHT).half()}, workspace.folder / "labels" / file)
    workspace.store.edit(0, lambda labels: set_settings(labels, lesson=file))
    assert marked(workspace, "b.png") == RIGHT_STRIPE
    assert marked(workspace, "c.png") == LEFT_STRIPE


def test_masks_of_some_cars_teach_their_parts_to_others(data_root: Path, tmp_path: Path) -> None:
    cars = load_coco(data_root / "car_parts", merge=CAR_PARTS)
    classes = ("bumper", "glass", "light", "wheel")
    numbers = np.zeros(256, np.uint8)
    numbers[[cars.part_names.index(name) + 1 for name in classes]] = range(1, 5)
    truths = {each.image.name: numbers[each.labels() & 255] for each in cars.images[:12]}
    files = [each.image.path for each in cars.images[:12]]
    teachers, others = list(truths)[:6], list(truths)[6:]
    shown = [truths[name] for name in others]
    result = deepff.discover(files, 6)

    def best(masks: list[np.ndarray], number: int) -> float:
        """The largest IoU of a value of label maps with a class."""
        where, truth = (np.concatenate([x.ravel() for x in each]) for each in (masks, shown))
        values = [(where == value, truth == number) for value in range(1, 7)]
        return max(np.count_nonzero(a & b) / np.count_nonzero(a | b) for a, b in values)

    by_factors = [regions.labels.numpy() for regions in result.regions(6, threshold="max-fraction")]
    before = [best(by_factors[6:], number) for number in range(1, 5)]
    classifier = teach(result, {name: truths[name] for name in teachers}, 4)
    maps = classified(classifier, [image.item for image in result.images])
    lesson = write_lesson(Lesson(maps, classifier), tmp_path)
    settings = Settings(6, lesson=lesson, taught=classes)
    labels = Labels(run_digest(result), settings, tmp_path)
    made = [Masks(result).made(labels, name) for name in others]
    after = [best([mask.values for mask in made], number) for number in range(1, 5)]
    # Measured: from 0.25, 0.08, 0.03 and 0.00 to 0.57, 0.25, 0.52 and 0.72.
    assert np.all(np.array(after) > [0.5, 0.2, 0.45, 0.65]) and np.all(np.array(before) < 0.3)

    # The lesson alone is a bank, with names.
    save_bank(result, settings, tmp_path)
    new = deepff.apply((tmp_path / FOLDER / TAUGHT).rename(tmp_path / "bank"), files[10:])
    assert tuple(new.factor_names) == classes and new.factorization().energy_shares.min() > 0
    for regions, mask in zip(new.regions(), made[4:], strict=True):
        assert (regions.labels.numpy() != mask.values).mean() < 0.01

    # The same masks have images of another set, and images that are added later.
    applied = deepff.apply(result.bank, files[10:])
    carry_over(labels, tmp_path / "applied", applied)
    few = {name: maps[name] for name in list(maps)[:10]}
    lesson = write_lesson(Lesson(few, classifier), tmp_path)
    fewer = replace(labels, settings=replace(settings, lesson=lesson))
    assert not Masks(result).made(fewer, others[-1]).values.any()
    (tmp_path / FILE).write_text(json.dumps(content_of(fewer)), "utf-8")
    relearn(tmp_path, result, [image.item for image in result.images[10:]])
    for run, folder in ((applied, tmp_path / "applied"), (result, tmp_path)):
        carried = load_labels(folder, run)
        for name, mask in zip(others[4:], made[4:], strict=True):
            again = Masks(run).made(carried, name)
            assert again.names == classes and (again.values != mask.values).mean() < 1e-3
