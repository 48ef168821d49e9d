"""Accepted and mended masks: what is kept, what follows the settings, and what is exported."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import NAMES, planted, result_of
from workspaces import names_listed, opened_workspace

from deepff.app.actions import act, choose, opened
from deepff.app.edits import agree, name_factor, undo
from deepff.app.exports import Asked, measure
from deepff.app.kept_masks import FOLDER, kept_mask
from deepff.app.label_file import FILE, LabelStore, chosen_images, export_labelled, load_labels
from deepff.app.labels import Factor
from deepff.app.masks import refinements
from deepff.app.page import CHANGED, DOUBT, GONE, NAME, NOTHING, View
from deepff.app.workspace import Workspace
from deepff.errors import InputError, InputWarning
from deepff.images.reading import SkippedFile


def index_of(name: str) -> str:
    return str(NAMES.index(name))


def areas(workspace: Workspace, image: str) -> dict[str, int]:
    """The pixels of each class of what an image has now."""
    mask = workspace.masks.current(workspace.store.labels, image)
    counts = np.bincount(mask.values.ravel(), minlength=256)[1:]
    return {name: int(counts[i]) for i, name in enumerate(mask.names) if counts[i]}


def test_no_setting_touches_what_was_accepted(
    workspace: Workspace, view: View, tmp_path: Path
) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "name", "factor": "0", "text": "head"})
    for name in ("a.png", "c.png"):
        act(workspace, view, {"act": "accept", "image": index_of(name)})
    before = {"head": 18, "factor 1": 9, "factor 2": 9}
    assert areas(workspace, "a.png") == before
    act(workspace, view, {"act": "keep", "factor": "0", "keep": "0"})
    choose(workspace, view, "refine", "guided-crf")
    choose(workspace, view, "value", 0.9)
    labels = workspace.store.labels
    assert areas(workspace, "a.png") == areas(workspace, "c.png") == before
    assert labels.differs("a.png") and labels.differs("c.png")
    assert "head" not in areas(workspace, NAMES[1])

    # What is there after a restart is the same, and so is an export.
    again = load_labels(workspace.folder, workspace.result)
    mask = kept_mask(again, "a.png")
    assert mask is not None and np.count_nonzero(mask.values) == 36
    export_labelled(workspace.result, again, "png", tmp_path / "png")
    assert sorted(p.name for p in (tmp_path / "png").glob("*.png")) == ["a.png", "c.png"]
    written = np.asarray(Image.open(tmp_path / "png" / "a.png"))
    assert np.count_nonzero(written) == 36

    # One action takes the new one for one image, another for all; each is taken back at once.
    act(workspace, view, {"act": "take", "image": index_of("a.png")})
    assert "head" not in areas(workspace, "a.png") and areas(workspace, "c.png") == before
    assert not workspace.store.labels.differs("a.png")
    act(workspace, view, {"act": "undo"})
    assert areas(workspace, "a.png") == before
    act(workspace, view, {"act": "take-all"})
    assert "head" not in {**areas(workspace, "a.png"), **areas(workspace, "c.png")}
    act(workspace, view, {"act": "undo"})
    assert areas(workspace, "a.png") == areas(workspace, "c.png") == before
    # No longer accepted, an image follows the settings again.
    act(workspace, view, {"act": "accept", "image": index_of("a.png"), "on": "0"})
    assert "head" not in areas(workspace, "a.png")


def test_a_mended_mask_is_never_said_to_differ(workspace: Workspace, view: View) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "mend", "image": index_of("a.png")})
    act(workspace, view, {"act": "change", "tool": "delete", "points": "0.1,0.5"})
    act(workspace, view, {"act": "leave"})
    act(workspace, view, {"act": "accept", "image": index_of("a.png")})
    act(workspace, view, {"act": "accept", "image": index_of("c.png")})
    choose(workspace, view, "value", 0.9)
    assert names_listed(workspace, view, filter="changed") == ["c.png"]
    assert "dff-differs" not in act(workspace, view, {"act": "search", "text": "a.png"})["cards"]


def test_names_that_are_given_later_reach_accepted_masks(workspace: Workspace, view: View) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "accept", "image": "0"})
    for factor in ("1", "2"):
        act(workspace, view, {"act": "name", "factor": factor, "text": "legs"})
    assert areas(workspace, "a.png") == {"factor 0": 18, "legs": 18}
    assert not workspace.store.labels.differs("a.png")
    # One of two factors that share a name leaves it: which pixels it had is not known.
    act(workspace, view, {"act": "name", "factor": "2", "text": "tail"})
    names = workspace.masks.current(workspace.store.labels, "a.png").names
    assert "tail" not in names and "legs" in names
    for _ in range(3):
        act(workspace, view, {"act": "undo"})
    names = workspace.masks.current(workspace.store.labels, "a.png").names
    assert set(names) == {"factor 0", "factor 1", "factor 2"}


def test_a_mask_that_is_gone_is_said_and_the_new_one_can_be_taken(
    workspace: Workspace, view: View, tmp_path: Path
) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "accept", "image": "0"})
    shutil.copytree(workspace.folder, tmp_path / "copy", ignore=shutil.ignore_patterns(FOLDER))
    copy = Workspace(tmp_path / "copy")
    copy.open()
    with pytest.raises(InputError, match=r"the kept mask of a\.png cannot be read"):
        copy.masks.current(copy.store.labels, "a.png")
    shown = opened(copy, view)
    assert "is missing" in shown["cards"]
    assert names_listed(copy, view, filter=GONE) == ["a.png"]
    # The others are exported.
    act(copy, view, {"act": "nothing", "image": "1"})
    with pytest.warns(InputWarning, match=r"a\.png \(its mask file is missing\): left out"):
        summary = export_labelled(copy.result, copy.store.labels, "png", tmp_path / "out")
    assert [path.stem for path in summary.folders[0].rglob("*.png")] == [Path(NAMES[1]).stem]
    with pytest.warns(InputWarning):
        *_, (count, _) = measure(copy, Asked("png", "", "components", 1))
    assert "(Show: file gone): a.png<" in count and "in 1 image" in count
    # A damaged one is as good as none.
    (copy.folder / FOLDER).mkdir(exist_ok=True)
    (copy.folder / FOLDER / copy.store.labels.image("a.png").mask.file).write_bytes(b"nonsense")
    assert names_listed(copy, view, filter=GONE) == ["a.png"]
    act(copy, view, {"act": "take", "image": "0"})
    assert areas(copy, "a.png") == {"factor 0": 18, "factor 1": 9, "factor 2": 9}


def test_what_nothing_names_and_a_killed_program_left_goes_after_an_hour(
    workspace: Workspace, view: View
) -> None:
    act(workspace, view, {"act": "accept", "image": "0"})
    folder = workspace.folder / FOLDER
    (named,) = folder.iterdir()
    others = [f"{'0' * 32}.png", f".{'0' * 32}.png", "mine.png", f"{'1' * 32}.png"]
    for name in others:
        (folder / name).touch()
    for name in (named.name, *others[:3]):
        os.utime(folder / name, (0, 0))
    workspace.open()
    assert {path.name for path in folder.iterdir()} == {named.name, *others[2:]}


def test_a_photograph_that_goes_while_the_app_runs_is_marked(
    workspace: Workspace, view: View
) -> None:
    assert "cannot be read any more" not in opened(workspace, view)["cards"]
    workspace.result.paths[1].unlink()
    cards = act(workspace, view, {"act": "look", "look": "masks"})["cards"].split("<article")[1:]
    marked = ["cannot be read any more: the file is missing" in card for card in cards]
    assert [NAMES[view.listing[i]] for i, is_gone in enumerate(marked) if is_gone] == [NAMES[1]]
    assert names_listed(workspace, view, filter=GONE) == [NAMES[1]]

    # Where masks follow photographs, the others are exported; else it is too.
    def exported(refine: str) -> list[str]:
        choose(workspace, view, "refine", refine)
        folder = workspace.folder / refine
        export_labelled(workspace.result, workspace.store.labels, "png", folder)
        return [name for name in NAMES if (folder / name).with_suffix(".png").exists()]

    assert exported("none") == NAMES
    with pytest.warns(InputWarning, match=r"\(its photograph is missing\): left out"):
        assert exported("dense-crf") == [NAMES[0], NAMES[2]]


def test_files_that_could_not_be_read_are_named(tmp_path: Path) -> None:
    result = planted(tmp_path)
    result.skipped = [SkippedFile("x<b>.jpg", "truncated"), SkippedFile("y.jpg", "empty file")]
    with pytest.warns(InputWarning, match=r"^x<b>\.jpg \(truncated\), and 1 more: left out"):
        workspace = opened_workspace(result, tmp_path / "result")
    head = opened(workspace, View())["head"]
    assert "2 files could not be read" in head
    assert "x&lt;b&gt;.jpg</bdi>: truncated" in head and "y.jpg</bdi>: empty file" in head


def test_a_class_dropped_in_an_accepted_image_leaves_its_pixels_to_nobody(
    workspace: Workspace,
    view: View,
) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "accept", "image": "0"})
    act(
        workspace,
        view,
        {"act": "drop", "image": "0", "factor": "1", "name": "factor 1", "drop": "1"},
    )
    assert areas(workspace, "a.png") == {"factor 0": 18, "factor 2": 9}
    assert workspace.store.labels.image("a.png").mask.mended
    # A mended one stays when new masks are taken for all others.
    act(workspace, view, {"act": "keep", "factor": "0", "keep": "0"})
    act(workspace, view, {"act": "take-all"})
    assert areas(workspace, "a.png") == {"factor 0": 18, "factor 2": 9}


def test_an_image_has_its_own_threshold(tmp_path: Path) -> None:
    maps = torch.full((2, 1, 4, 8), 0.4)
    maps[:, 0, :, :2] = 1
    workspace = opened_workspace(result_of(maps, NAMES[:2], tmp_path), tmp_path / "result")
    view = View()
    for name in NAMES[:2]:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        Image.new("RGB", (8, 4)).save(tmp_path / name)
    opened(workspace, view)
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "level", "image": "0", "text": "0.3"})
    assert areas(workspace, "a.png") == {"object": 32}
    assert areas(workspace, NAMES[1]) == {"object": 8}
    choose(workspace, view, "value", 0.6)
    assert areas(workspace, "a.png") == {"object": 32}
    # It is of this threshold: under another one the image is like all.
    choose(workspace, view, "threshold", "percentile")
    choose(workspace, view, "value", 90)
    assert areas(workspace, "a.png") == areas(workspace, NAMES[1]) == {"object": 8}
    choose(workspace, view, "threshold", "max-fraction")
    assert areas(workspace, "a.png") == {"object": 32}
    act(workspace, view, {"act": "level", "image": "0", "text": ""})
    assert areas(workspace, "a.png") == {"object": 8}


@pytest.mark.parametrize(
    ("made", "offered"),
    [
        ("factors", ["none", "guided-crf", "dense-crf"]),
        ("factors with a classifier", ["none", "guided-crf", "dense-crf", "classifier"]),
        ("parts", ["none", "dense-crf"]),
        ("parts with a classifier", ["none", "dense-crf", "classifier"]),
    ],
)
def test_only_refinements_that_a_run_has_are_offered(
    tmp_path: Path, made: str, offered: list[str]
) -> None:
    result = planted(tmp_path)
    if made.endswith("classifier"):
        factors = result.factorization()
        result.factorizations[3] = replace(factors, probabilities=factors.heatmaps)
    if made.startswith("parts"):
        result.parts_of = "object"
    assert refinements(result, 3) == offered


def test_which_images_an_export_is_of(workspace: Workspace, view: View) -> None:
    labels = workspace.store.labels
    assert chosen_images(labels, workspace.result)[0] == [0, 1, 2]
    with pytest.raises(InputError, match="no image is accepted;"):
        chosen_images(labels, workspace.result, "accepted")
    act(workspace, view, {"act": "accept", "image": "1"})
    act(workspace, view, {"act": "skip", "image": "2"})
    labels = workspace.store.labels
    for which in (None, "accepted"):
        assert chosen_images(labels, workspace.result, which)[0] == [1]
    assert chosen_images(labels, workspace.result, "not-skipped")[0] == [0, 1]
    assert chosen_images(labels, workspace.result, "all")[0] == [0, 1, 2]
    with pytest.raises(InputError, match="no choice of images 'some'"):
        chosen_images(labels, workspace.result, "some")


def test_suggested_names_are_there_at_the_start_and_agreed_with_at_once(tmp_path: Path) -> None:
    result = planted(tmp_path)
    suggestions = {
        (3, number): Factor(name, bool(name), suggested=True)
        for number, name in enumerate(["bear", "", "bear"])
    }
    store = LabelStore(tmp_path, result, suggestions)
    assert store.labels.parts == {0: "bear", 2: "bear"}
    assert all(store.labels.factor(j).suggested for j in range(3))
    store.edit(0, lambda labels: name_factor(labels, 2, "paw"))
    store.edit(1, lambda labels: agree(labels, store.suggestions))
    assert store.labels.parts == {0: "bear", 2: "paw"}
    assert not any(store.labels.factor(j).suggested for j in range(3))
    assert undo(store.labels).factor(0).suggested
    # A file of before is read as it was: suggestions wait until somebody agrees.
    (tmp_path / FILE).unlink()
    old = LabelStore(tmp_path, result)
    old.edit(0, lambda labels: name_factor(labels, 0, "head"))
    again = LabelStore(tmp_path, result, suggestions)
    assert again.labels.parts == {0: "head", 1: "factor 1", 2: "factor 2"}
    agreed = again.edit(1, lambda labels: agree(labels, again.suggestions))
    assert agreed.parts == {0: "head", 2: "bear"}


def test_a_file_of_another_format_is_refused_and_kept(tmp_path: Path) -> None:
    result = planted(tmp_path)
    text = json.dumps({"deepff labels": 1, "revision": 2})
    (tmp_path / FILE).write_text(text, "utf-8")
    with pytest.raises(InputError, match="was not written by this version of deepff; move it away"):
        load_labels(tmp_path, result)
    assert (tmp_path / FILE).read_text("utf-8") == text


def test_filters_orders_and_search(tmp_path: Path) -> None:
    """b is empty; of a half of the cells are clear, of c all hang in the balance."""
    maps = torch.zeros(3, 2, 4, 8)
    maps[0, 0, :, :4] = 1.0
    maps[2, 1] = 0.5
    maps[2, 1, 0, 0] = 1.0
    workspace = opened_workspace(
        result_of(maps, ["a.png", "b.png", "c.png"], tmp_path), tmp_path / "r"
    )
    for name in "abc":
        Image.new("RGB", (8, 4)).save(tmp_path / f"{name}.png")
    view = View()
    opened(workspace, view)
    choose(workspace, view, "threshold", "max-fraction")
    assert names_listed(workspace, view, order=NAME) == ["a.png", "b.png", "c.png"]
    assert names_listed(workspace, view, order=DOUBT) == ["b.png", "c.png", "a.png"]
    assert names_listed(workspace, view, filter=NOTHING) == ["b.png"]
    assert names_listed(workspace, view, filter="class factor 1") == ["c.png"]
    assert names_listed(workspace, view, filter="all", search="A.P") == ["a.png"]
    act(workspace, view, {"act": "accept", "image": "0"})
    assert names_listed(workspace, view, search="", filter="accepted") == ["a.png"]
    assert names_listed(workspace, view, filter="to do", order=NAME) == ["b.png", "c.png"]
    # While images are decided about, none moves.
    act(workspace, view, {"act": "skip", "image": "1", "at": "0"})
    assert view.listing == [1, 2]
    assert names_listed(workspace, view, filter="to do") == ["c.png"]
    assert names_listed(workspace, view, filter=CHANGED) == []
    choose(workspace, view, "value", 0.9)
    assert names_listed(workspace, view, filter=CHANGED) == ["a.png"]
    # A reload keeps the view; one that makes no sense is left out.
    again = View()
    opened(workspace, again, view.kept())
    assert (again.filter, again.listing) == (CHANGED, [0])
    odd = View()
    opened(workspace, odd, {"filter": 3, "order": "sideways", "in_view": 7, "image": 99})
    assert (odd.order, odd.in_view, odd.image) == (View().order, 5, 2)  # the first to do


def test_a_reload_comes_back_to_the_image_that_is_next_to_decide(tmp_path: Path) -> None:
    """Those that were accepted are not to do any more, so that the others move up."""
    names = [f"{letter}.png" for letter in "abcde"]
    workspace = opened_workspace(result_of(torch.ones(5, 1, 4, 8), names, tmp_path), tmp_path / "r")
    view, again = View(), View()
    opened(workspace, view)
    names_listed(workspace, view, order=NAME, filter="to do")
    for index in range(3):
        act(workspace, view, {"act": "accept", "image": index})
    opened(workspace, again, view.kept())
    assert (view.position, view.image) == (3, 3)
    assert (again.listing, again.image) == ([3, 4], 3)
