"""What is decided about a result: edits, undo, two who edit at once, and the file it is kept in."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from planted import NAMES, planted
from typer.testing import CliRunner

from deepff.app.edits import (
    HISTORY_LENGTH,
    agree,
    drop_factors,
    keep_factor,
    name_factor,
    redo,
    set_class,
    set_masks,
    set_settings,
    set_status,
    steps,
    undo,
)
from deepff.app.label_content import content_of, parsed
from deepff.app.label_file import FILE, LabelStore, StaleLabelsError, export_labelled
from deepff.app.labels import Factor, KeptMask, Labels, Settings
from deepff.app.workspace import Workspace, suggestions
from deepff.cli.main import app
from deepff.errors import InputError
from deepff.results.factorization import FactorClasses, Factorization

Edit = Callable[[Labels], Labels]
EMPTY = Labels("run", Settings(3), Path())

texts = st.text(
    st.characters(blacklist_categories=("Cc", "Cs"), blacklist_characters="\ufffe\uffff"),
    max_size=8,
)
factors, images = st.integers(0, 2), st.sampled_from(NAMES)
edits = st.one_of(
    st.builds(lambda j, name: lambda of: name_factor(of, j, name), factors, texts),
    st.builds(lambda j, keep: lambda of: keep_factor(of, j, keep), factors, st.booleans()),
    st.builds(
        lambda i, status: lambda of: set_status(of, i, status),
        images,
        st.sampled_from(["", "accepted", "skipped"]),
    ),
    st.builds(
        lambda i, j, drop: lambda of: drop_factors(of, i, [j], drop), images, factors, st.booleans()
    ),
    st.builds(
        lambda name: lambda of: set_class(of, "", f"{name} #{len(of.settings.classes)}"), texts
    ),
    st.builds(
        lambda name: lambda of: set_settings(of, threshold=name),
        st.sampled_from(["percentile", "otsu", "max-fraction"]),
    ),
    st.builds(
        lambda name: lambda of: set_settings(of, refine=name),
        st.sampled_from(["none", "guided-crf"]),
    ),
)


def said(labels: Labels) -> Labels:
    """The labels without how they came about."""
    return replace(labels, history=(), future=(), revision=0)


@settings(deadline=None)
@given(st.lists(edits, max_size=12))
def test_undo_takes_back_one_edit_after_the_other_and_redo_makes_them_again(
    steps: list[Edit],
) -> None:
    labels, before = EMPTY, []
    for step in steps:
        changed = step(labels)
        assert (changed is labels) == (said(changed) == said(labels))
        if changed is not labels:
            before.append(labels)
        labels = changed
    last, revision = labels, labels.revision
    assert revision == len(before) == len(labels.history)
    for earlier in reversed(before):
        labels = undo(labels)
        assert said(labels) == said(earlier)
    assert labels.revision == revision + len(before)
    assert undo(labels) is labels
    for later in [*before, last][1:]:
        labels = redo(labels)
        assert said(labels) == said(later)
    assert redo(labels) is labels and len(labels.history) == len(before)


def test_moves_of_the_value_are_taken_back_together() -> None:
    labels = name_factor(EMPTY, 0, "head")
    for value in (76, 80, 85):
        labels = set_settings(labels, value=value)
    assert labels.revision == 4 and labels.settings.value == 85
    labels = undo(labels)
    assert labels.settings.value == 75 and labels.factor(0).name == "head"
    labels = set_settings(set_settings(EMPTY, threshold="max-fraction"), value=0.3)
    assert undo(labels).settings == Settings(3, "max-fraction", 0.5)


def test_the_history_is_bounded() -> None:
    labels = EMPTY
    for number in range(HISTORY_LENGTH + 10):
        labels = name_factor(labels, 0, f"name {number}")
    assert len(labels.history) == HISTORY_LENGTH


def test_names_and_background_belong_to_their_k() -> None:
    labels = name_factor(name_factor(EMPTY, 0, "  head \t of it "), 1, "head of it")
    labels = keep_factor(labels, 2, False)
    assert labels.parts == {0: "head of it", 1: "head of it"}
    labels = set_settings(labels, k=2)
    assert labels.parts == {0: "factor 0", 1: "factor 1"}
    labels = name_factor(name_factor(labels, 1, "zebra"), 1, "Affe")
    assert labels.name_suggestions() == ["Affe", "head of it", "zebra"]
    assert set_settings(labels, k=3).parts == {0: "head of it", 1: "head of it"}


def test_a_name_keeps_a_factor_that_was_only_suggested_as_background() -> None:
    suggested = replace(EMPTY, factors={(3, 0): Factor("", False, suggested=True)})
    assert name_factor(suggested, 0, "flower").parts[0] == "flower"
    decided = keep_factor(EMPTY, 1, False)
    assert 1 not in name_factor(decided, 1, "sky").parts


def test_a_class_needs_no_factor_and_has_one_spelling() -> None:
    labels = set_class(EMPTY, "", " headlight , Big  wheel,Headlight,")
    own = ["headlight", "Big wheel"]
    assert labels.all_classes == ["factor 0", "factor 1", "factor 2", *own]
    assert labels.class_names_in(NAMES) == labels.all_classes
    # Factors join it, in whatever capitals, and it stays when they leave.
    labels = name_factor(name_factor(labels, 0, "HEADLIGHT"), 2, "big wheel")
    assert labels.all_classes == ["headlight", "factor 1", "Big wheel"]
    assert name_factor(name_factor(labels, 0, ""), 2, "").all_classes[3:] == own
    # A class that is one factor's alone can be written otherwise; one that others have cannot.
    labels = name_factor(name_factor(EMPTY, 0, "panda"), 0, "Panda")
    assert labels.parts[0] == "Panda"
    labels = name_factor(labels, 1, "PANDA")
    assert labels.parts == {0: "Panda", 1: "Panda", 2: "factor 2"}
    # Masks follow a new name, and one that masks hold is not taken away.
    labels = set_class(EMPTY, "", "headlight, wheel")
    mask = KeptMask("0" * 32 + ".png", ("wheel", "factor 0"), 3, "")
    labels = set_class(set_masks(labels, {"a.png": mask}), "wheel", "tyre")
    assert labels.image("a.png").mask.names == ("tyre", "factor 0")
    assert labels.settings.classes == ("headlight", "tyre")
    with pytest.raises(InputError, match="1 masks hold tyre"):
        set_class(labels, "tyre", " ")
    labels = set_class(labels, "headlight", "")
    assert labels.settings.classes == ("tyre",) and steps(labels)["undo"] == "classes"


@settings(deadline=None, max_examples=30)
@given(st.lists(edits, max_size=8))
def test_what_is_saved_is_read_back(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    folder = tmp_path_factory.mktemp("run")
    result = planted(folder)
    store = LabelStore(folder, result)
    for step in steps:
        store.edit(store.labels.revision, step)
    again = LabelStore(folder, result)
    assert again.labels == store.labels
    assert [path.name for path in folder.glob(".*")] == []
    assert (folder / FILE).exists() == (store.labels.revision > 0)


def test_of_two_who_edit_neither_overwrites_the_other(tmp_path: Path) -> None:
    result = planted(tmp_path)
    one, other = LabelStore(tmp_path, result), LabelStore(tmp_path, result)
    one.edit(0, lambda labels: name_factor(labels, 0, "head"))
    with pytest.raises(StaleLabelsError):
        other.edit(0, lambda labels: name_factor(labels, 0, "tail"))
    assert other.labels.factor(0).name == "head"
    other.edit(1, lambda labels: name_factor(labels, 1, "tail"))
    assert one.refresh().parts == {0: "head", 1: "tail", 2: "factor 2"}


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda of: name_factor(of, 0, "a\x00b"), "or another control character"),
        (lambda of: name_factor(of, 0, " Background"), "is reserved for pixels without a class"),
        (
            lambda of: set_class(of, "", "wheel, BACKGROUND"),
            "is reserved for pixels without a class",
        ),
        (lambda of: set_class(of, "", "a" * 81), "up to 80 characters, not 81"),
        (lambda of: name_factor(of, 0, "a" * 81), "up to 80 characters, not 81"),
        (lambda of: name_factor(of, 3, "a"), "no factor 3 of 3"),
        (lambda of: set_settings(of, k=7), "no factorization with 7 factors; choose k = 3"),
        (lambda of: set_settings(of, value=101), "value 101 is not between 0 and 100"),
        (lambda of: set_settings(of, value=None), "value None is not between 0 and 100"),
        (lambda of: set_settings(of, threshold="magic"), "no threshold 'magic'"),
        (lambda of: set_settings(of, refine="magic"), "no refinement 'magic'"),
        (lambda of: set_status(of, "d.png", "accepted"), r"no image 'd\.png'"),
        (lambda of: set_status(of, "a.png", "liked"), "accepted, skipped or neither, not 'liked'"),
    ],
)
def test_an_edit_that_makes_no_sense_changes_nothing(
    tmp_path: Path, edit: Edit, sentence: str
) -> None:
    store = LabelStore(tmp_path, planted(tmp_path))
    with pytest.raises(InputError, match=sentence):
        store.edit(0, edit)
    assert store.labels.revision == 0 and not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda text: text[:-20], "cannot be read as JSON"),
        (lambda text: "[]", "was not written by this version"),
        (lambda text: "\0\0", "cannot be read as JSON"),
        (lambda text: text.replace('"run": "', '"run": "0'), "belongs to another result"),
        (lambda text: text.replace('"factors"', '"vectors"'), "is damaged"),
        (lambda text: text.replace('"keep": true', '"keep": 1'), "is damaged"),
        (lambda text: text.replace('"k": 3', '"k": 4'), "is damaged"),
        (lambda text: text.replace("75.0", '"75"'), "is damaged"),
        (lambda text: text.replace('"a.png"', '"d.png"'), "is damaged"),
        (lambda text: text.replace('"revision": 2', '"revision": -2'), "is damaged"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_in_one_sentence(
    tmp_path: Path, damage: Callable[[str], str], sentence: str
) -> None:
    result = planted(tmp_path)
    store = LabelStore(tmp_path, result)
    store.edit(0, lambda labels: name_factor(labels, 0, "head"))
    store.edit(1, lambda labels: set_status(labels, "a.png", "accepted"))
    path = tmp_path / FILE
    damaged = damage(path.read_text("utf-8"))
    path.write_text(damaged, "utf-8")
    with pytest.raises(InputError, match=sentence):
        LabelStore(tmp_path, result)
    with pytest.raises(InputError, match=sentence):
        store.edit(2, lambda labels: name_factor(labels, 0, "tail"))
    assert path.read_text("utf-8") == damaged


def test_other_factors_of_the_same_images_are_another_result(tmp_path: Path) -> None:
    result = planted(tmp_path)
    LabelStore(tmp_path, result).edit(0, lambda labels: name_factor(labels, 0, "head"))
    factors = result.factorizations[3]
    turned = Factorization(factors.components.flip(0), factors.heatmaps, 0.0, 1)
    with pytest.raises(InputError, match="belongs to another result"):
        LabelStore(tmp_path, replace(result, factorizations={3: turned}))


def annotated(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """For each image of a COCO file the names and areas of its annotations."""
    content = json.loads((folder / "annotations/instances_default.json").read_text("utf-8"))
    classes = {category["id"]: category["name"] for category in content["categories"]}
    annotations: dict[str, list[tuple[str, int]]] = {}
    for image in content["images"]:
        annotations[image["file_name"]] = [
            (classes[annotation["category_id"]], annotation["area"])
            for annotation in content["annotations"]
            if annotation["image_id"] == image["id"]
        ]
    return annotations


def test_names_drops_and_skipped_images_reach_the_export(tmp_path: Path) -> None:
    result = planted(tmp_path)
    result.save(tmp_path / "result")
    store = LabelStore(tmp_path / "result", result)
    for edit in (
        lambda labels: set_settings(labels, threshold="max-fraction"),
        lambda labels: name_factor(labels, 1, "Ohr"),
        lambda labels: name_factor(labels, 2, "Ohr"),
        lambda labels: drop_factors(labels, "a.png", [1], True),
        lambda labels: set_status(labels, "c.png", "skipped"),
        lambda labels: set_status(labels, "a.png", "accepted"),
    ):
        store.edit(store.labels.revision, edit)
    expected = {
        "a.png": [("factor 0", 18), ("Ohr", 9)],
        "ä b/<script>.png": [("factor 0", 18), ("Ohr", 18)],
    }
    which = "not-skipped"
    written = export_labelled(result, store.labels, "coco", tmp_path / "python", which=which)
    assert written.n_instances == 4
    assert annotated(tmp_path / "python") == expected

    def exported(*more: str) -> dict[str, list[tuple[str, int]]]:
        arguments = ["export", str(tmp_path / "result"), "--format", "coco", *more]
        outcome = CliRunner().invoke(app, arguments)
        assert outcome.exit_code == 0, outcome.output
        return annotated(tmp_path / "result" / "export" / "coco")

    # What was decided needs no option; the factors do.
    assert exported("--which", which) == exported("--labels", "--which", which) == expected
    assert exported() == {"a.png": expected["a.png"]}
    for more in (["--no-labels"], ["--threshold", "max-fraction"]):
        of_factors = exported(*more)
        assert {*of_factors} == {*NAMES}
        assert {name for name, _ in of_factors["a.png"]} == {"factor 0", "factor 1", "factor 2"}

    # A dropped factor leaves its pixels to nobody, whichever format writes them.
    export_labelled(result, store.labels, "png", tmp_path / "png", which=which)
    values = np.asarray(Image.open(tmp_path / "png" / "a.png"))
    assert (values[:3, 5:] == 0).all() and (values[3:, 5:] == 2).all()
    assert not (tmp_path / "png" / "c.png").exists()


def test_the_command_refuses_options_that_labels_set_or_where_there_are_none(
    tmp_path: Path,
) -> None:
    planted(tmp_path).save(tmp_path / "result")
    arguments = ["export", str(tmp_path / "result"), "--format", "coco", "--labels"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2 and "has no labels.json" in outcome.stderr
    for more in (["-k", "3"], ["--crf"], ["--threshold", "otsu"], ["--value", "3"], ["--object"]):
        outcome = CliRunner().invoke(app, [*arguments, *more])
        assert outcome.exit_code == 2 and "leave out the options for these" in outcome.stderr


def test_nothing_is_exported_when_all_is_background(tmp_path: Path) -> None:
    result = planted(tmp_path, k=1)
    labels = keep_factor(LabelStore(tmp_path, result).labels, 0, False)
    with pytest.raises(InputError, match="every factor is background"):
        export_labelled(result, labels, "coco", tmp_path / "out")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)


@settings(deadline=None)
@given(st.data())
def test_whatever_stands_in_the_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    result = planted(folder)
    store = LabelStore(folder, result)
    for edit in (
        lambda labels: name_factor(labels, 0, "head"),
        lambda labels: drop_factors(labels, "a.png", [1], True),
        lambda labels: set_settings(labels, threshold="otsu"),
    ):
        store.edit(store.labels.revision, edit)
    content = json.loads((folder / FILE).read_text("utf-8"))
    holder, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        keys = sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
    holder[key] = data.draw(anything)
    (folder / FILE).write_text(json.dumps(content), "utf-8")
    try:
        labels = LabelStore(folder, result).labels
    except InputError:
        return
    while labels.history:
        labels = undo(labels)
    assert labels.settings.refine == "none"


def test_names_that_a_network_suggests_may_be_given(tmp_path: Path) -> None:
    result = planted(tmp_path)
    k = result.n_components
    names = ("background", "great\nwhite, \u202ashark", "x" * 100)[:k]
    classes = FactorClasses(("a",), torch.zeros(k, 1), names)
    result.factorizations[k] = replace(result.factorizations[k], classes=classes)
    suggested = suggestions(result)
    store = LabelStore(tmp_path, result, suggested)
    labels = store.edit(0, lambda labels: agree(labels, suggested))
    assert labels.parts == {1: "great white, shark", 2: "x" * 80}
    # A kind of object is no background because the network has no name for it.
    result.recipe = "contrast"
    assert [*suggestions(result)] == [(k, 1), (k, 2)]


def test_what_was_undone_is_done_again_and_both_are_named(workspace: Workspace) -> None:
    first = workspace.store.labels
    named = name_factor(first, 0, "bear")
    accepted = set_status(named, NAMES[1], "accepted")
    assert steps(accepted) == {"undo": f"accepted: {NAMES[1]}", "redo": ""}
    back = undo(undo(accepted))
    assert steps(back) == {"undo": "", "redo": "name of factor 0"}
    assert back.image(NAMES[1]).status == "" and back.factor(0).name == ""
    again = redo(redo(back))
    assert (again.factors, again.images, again.history) == (
        *(accepted.factors, accepted.images),
        accepted.history,
    )
    # They stay over a restart, and an edit ends them.
    once = undo(accepted)
    kept = parsed(json.loads(json.dumps(content_of(once))), once.folder)
    assert kept.future == once.future and redo(kept).image(NAMES[1]).status == "accepted"
    assert redo(keep_factor(once, 0, False)).image(NAMES[1]).status == ""
