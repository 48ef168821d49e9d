"""What clicks and keys do to the labels and to what is shown."""

import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from planted import NAMES, planted
from workspaces import names_listed, opened_workspace

from deepff.app import edits
from deepff.app.actions import STALE, act, choose, opened, select
from deepff.app.exports import Asked, measure, write
from deepff.app.label_file import FILE, export_labelled
from deepff.app.labels import ImageLabel
from deepff.app.page import NOTHING, SCORE, View
from deepff.app.workspace import Workspace, open_workspace
from deepff.errors import InputError
from deepff.export.formats import FORMATS
from deepff.options import ExportFormat, ExportOptions


def test_files_of_which_none_is_an_image_begin_no_result(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="none of the 1 files is an image that can be read"):
        open_workspace([tmp_path / "photos"], tmp_path / "result", None)
    assert not (tmp_path / "result").exists()


def test_accepting_goes_on_twice_is_once_and_it_can_be_taken_back(
    workspace: Workspace, view: View
) -> None:
    order = workspace.pictures.order(3)
    for position in range(3):
        assert view.position == position
        moves = view.moves
        image = str(order[position])
        act(workspace, view, {"act": "accept", "image": image, "at": str(position)})
        assert (view.moves > moves) == (position < 2)
    assert workspace.store.labels.count("accepted", NAMES) == 3
    revision = workspace.store.labels.revision
    act(workspace, view, {"act": "accept", "image": str(order[0]), "at": "0", "on": "1"})
    assert workspace.store.labels.revision == revision
    act(workspace, view, {"act": "skip", "image": str(order[2]), "at": "2", "on": "1"})
    act(workspace, view, {"act": "skip", "image": str(order[2]), "at": "2", "on": "1"})
    assert workspace.store.labels.count("skipped", NAMES) == 1
    act(workspace, view, {"act": "skip", "image": str(order[2]), "at": "2", "on": "0"})
    assert workspace.store.labels.count("skipped", NAMES) == 0
    assert workspace.store.labels.count("accepted", NAMES) == 2

    later = View()
    opened(workspace, later)
    assert later.position == 2


def test_undo_goes_back_to_the_image(workspace: Workspace, view: View) -> None:
    order = workspace.pictures.order(3)
    act(workspace, view, {"act": "drop", "image": str(order[0]), "factor": "1", "drop": "1"})
    act(workspace, view, {"act": "show", "position": "2"})
    act(workspace, view, {"act": "undo", "at": "2"})
    assert view.position == 0
    assert workspace.store.labels.dropped(NAMES[order[0]]) == ()


def test_factors_of_one_name_are_one_chip_and_are_dropped_and_taken_back_together(
    workspace: Workspace,
    view: View,
) -> None:
    """Whichever is dropped first, whenever it was, and by the number of either."""
    first = str(workspace.pictures.order(3)[0])
    name = NAMES[int(first)]

    def chips(shown: dict) -> list[tuple[str, str, str]]:
        card = shown["cards"].split("<article")[1]
        pattern = r'data-factors="([^"]*)" data-drop="(.)".*?<span>(.*?)</span>'
        return re.findall(pattern, card, re.DOTALL)

    def drop(factor: int, drop: int) -> dict:
        data = {"act": "drop", "image": first, "factor": str(factor), "drop": str(drop), "at": "0"}
        return act(workspace, view, data)

    choose(workspace, view, "threshold", "max-fraction")
    before = drop(2, 1)
    assert chips(before) == [("0", "1", "factor 0"), ("1", "1", "factor 1"), ("2", "0", "factor 2")]
    act(workspace, view, {"act": "name", "factor": "1", "text": "legs"})
    shown = act(workspace, view, {"act": "name", "factor": "2", "text": "legs"})
    both = ("1 2", "1", "legs")  # of which one still shows
    assert chips(shown) == [("0", "1", "factor 0"), both]
    for factor in (1, 2):
        assert chips(drop(factor, 1)) == [("0", "1", "factor 0"), ("1 2", "0", "legs")]
        assert workspace.store.labels.dropped(name) == (1, 2)
        assert chips(drop(factor, 0)) == [("0", "1", "factor 0"), both]
        assert workspace.store.labels.dropped(name) == ()
    drop(1, 1)
    act(workspace, view, {"act": "undo", "at": "0"})
    assert workspace.store.labels.dropped(name) == ()
    # One that is background has no chip, and no other goes with it.
    act(workspace, view, {"act": "keep", "factor": "2", "keep": "0"})
    assert chips(drop(1, 1)) == [("0", "1", "factor 0"), ("1", "0", "legs")]
    assert workspace.store.labels.dropped(name) == (1,)


def test_one_image_and_one_factor(tmp_path: Path) -> None:
    result = planted(tmp_path, k=1)
    alone = opened_workspace(result, tmp_path / "one")
    view = View()
    opened(alone, view)
    for target in ({"position": "99"}, {"position": "-3"}):
        act(alone, view, {"act": "show", **target})
        assert 0 <= view.position <= 2
    act(alone, view, {"act": "page", "text": ""})
    assert view.position == 0
    shown = act(alone, view, {"act": "keep", "factor": "0", "keep": "0"})
    assert "nothing is marked here" in shown["cards"]
    counts = [text for text, _ in measure(alone, Asked("coco", "all", "components", 1))]
    for said in (counts[-1], write(alone, Asked("coco", "all", "components", 1))):
        assert "every factor is background" in said


def test_pieces_become_classes_of_ones_own_by_key(workspace: Workspace, view: View) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    shown = act(workspace, view, {"act": "class", "name": "", "text": "Factor 1"})
    assert "Factor 1 is already a class" in shown["head"]
    shown = act(workspace, view, {"act": "class", "name": "", "text": "wheel, Factor 1"})
    assert re.findall(r'data-class="(.*?)"', shown["factors"])[3:] == ["wheel"]
    data = {"act": "change", "tool": "class", "image": "0", "class": "wheel"}
    shown = act(workspace, view, {**data, "points": "0.8,0.2"})  # where factor 1 is
    labels = workspace.store.labels
    mask = workspace.masks.current(labels, NAMES[0])
    assert dict(zip(mask.names, np.bincount(mask.values.ravel())[1:], strict=True)) == {
        "factor 0": 18,
        "factor 2": 9,
        "wheel": 9,
    }
    keys = re.findall(r'data-class-key="(.)".*?<span>(.*?)</span>', shown["cards"], re.DOTALL)
    assert ("4", "wheel") in keys
    act(workspace, view, {**data, "points": ""})
    assert workspace.masks.current(workspace.store.labels, NAMES[0]).names == ("wheel",)
    assert names_listed(workspace, view, filter="class wheel") == [NAMES[0]]


def test_nothing_that_has_a_name_becomes_html(workspace: Workspace, view: View) -> None:
    for tab in ("images", "factors"):
        shown = select(workspace, view, tab)
        name = '"><script>x</script>'
        shown = act(workspace, view, {"act": "name", "factor": "0", "text": name})
        assert all("<script" not in part for part in shown.values() if isinstance(part, str))
        assert "&lt;script&gt;" in shown["cards" if tab == "images" else "gallery"]
    asked = Asked("coco", "", "components", 1)
    written = write(workspace, asked)
    previews = [example for _, example in measure(workspace, asked) if example]
    assert "<script" not in written + "".join(previews)


def test_what_is_wrong_is_said_on_the_page(workspace: Workspace) -> None:
    view, other = View(), View()
    opened(workspace, view)
    opened(workspace, other)
    assert "between 0 and 100" in choose(workspace, view, "value", 400)["head"]
    act(workspace, view, {"act": "name", "factor": "0", "text": "head"})
    shown = act(workspace, other, {"act": "name", "factor": "0", "text": "tail"})
    assert STALE in shown["head"] and 'value="head"' in shown["factors"]
    (workspace.folder / FILE).write_text("{")
    shown = act(workspace, view, {"act": "name", "factor": "0", "text": "tail"})
    assert "cannot be read as JSON" in shown["head"]


@pytest.mark.parametrize("format", FORMATS)
def test_the_count_and_the_preview_are_of_what_is_exported(
    workspace: Workspace, view: View, format: str, tmp_path: Path
) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "skip", "image": "2", "at": "0"})
    asked = Asked(format, "", "components", 10)
    *_, (count, preview) = measure(workspace, asked)
    labels = workspace.store.labels
    settings = ExportOptions(min_area=10, images="none")
    written = export_labelled(workspace.result, labels, format, tmp_path / "out", settings)
    n = written.n_instances
    assert n == 2  # factor 0 in two images; the others are 9 pixels large
    assert re.findall(r"<strong>(\d+)</strong> (\w+)", count) == [
        (str(n), what) for what in ExportFormat(format).contents
    ]
    assert preview is not None and "factor 0" in preview
    assert f"download/{format}.zip" in write(workspace, asked)
    # The preview's files are where the export has them.
    out = workspace.folder / "export" / format
    for name in re.findall(r'<div class="dff-quiet">([^<]*)</div><pre>', preview):
        assert (out / name).is_file() or name.startswith("annotations/"), name


def test_what_is_painted_first_is_the_class_that_an_image_has_most_of(
    workspace: Workspace, view: View
) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    html = act(workspace, view, {"act": "mend", "image": "0"})["mend"]
    assert re.findall("selected>([^<]*)<", html) == ["factor 0"]  # 18 pixels, the others have 9
    html = act(workspace, view, {"act": "drop", "image": "0", "factor": "0", "drop": "1"})["mend"]
    assert re.findall("selected>([^<]*)<", html) == ["factor 1"]


def test_an_archive_has_photographs_where_the_folder_has_copies_or_links(
    workspace: Workspace,
    view: View,
) -> None:
    choose(workspace, view, "threshold", "max-fraction")
    out = workspace.folder / "export"
    held = {}
    for images in ("none", "link", "copy", ""):
        write(workspace, Asked("yolo", "", "components", 1, images, "67/33"))
        with ZipFile(out / "yolo.zip") as archive:
            held[images] = [name for name in archive.namelist() if name.endswith(".png")]
        lie = [path for path in (out / "yolo").rglob("*.png") if path.is_symlink()]
        assert len(lie) == (3 if images in ("link", "") else 0)
        if images != "none":
            assert Counter(name.split("/")[1] for name in held[images]) == {"train": 2, "val": 1}
    assert held["none"] == []
    with ZipFile(out / "yolo.zip") as archive:
        for name in NAMES:
            photo = next(each for each in held[""] if each.endswith(name))
            assert archive.read(photo) == workspace.result.paths[NAMES.index(name)].read_bytes()
    for split, wrong in (("most", "such as 80/10/10"), ("80/20/20", "80/20/20 adds up to 120")):
        asked = Asked("yolo", "", "components", 1, "none", split)
        *_, (count, _) = measure(workspace, asked)
        assert wrong in count and wrong in write(workspace, asked)


def test_classes_and_subsets_are_counted_before_anything_is_written(
    workspace: Workspace, view: View
) -> None:
    """Factor 0 has 18 pixels in each of three images, the other two 9."""
    choose(workspace, view, "threshold", "max-fraction")

    def counted(asked: Asked) -> tuple[list[str], list[list[str]], list[str]]:
        *_, (count, _) = measure(workspace, asked)
        head, *rows = re.findall("<tr>(.*?)</tr>", count)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
        columns = re.findall(r"col\">(\w+)(?: <span[^>]*>(\d+))?", head)
        return [*map(" ".join, columns[1:])], cells, re.findall('warning">(.*?)</div>', count)

    columns, rows, warned = counted(Asked("yolo-seg", "", "components", 10, split="67/33"))
    assert columns == ["train 2", "val 1"]
    assert rows == [["factor 0", "2", "1"], ["factor 1", "0", "0"], ["factor 2", "0", "0"]]
    assert [text.split(":")[0] for text in warned] == [
        "factor 1 has no annotation",
        "factor 2 has no annotation",
        "6 specks smaller than the minimum are left out",
    ]
    columns, rows, warned = counted(Asked("coco", "", "components", 1))
    assert (columns, rows[1], warned) == (["all 3"], ["factor 1", "3"], [])


def test_an_image_that_shows_nothing_is_exported_empty_and_can_be_taken_back(
    workspace: Workspace, view: View, tmp_path: Path
) -> None:
    order = workspace.pictures.order(3)
    first, second = (NAMES[index] for index in order[:2])
    data = {"act": "nothing", "image": str(order[0]), "at": "0", "on": "1"}
    shown = act(workspace, view, data)
    assert view.position == 1
    assert "nothing is marked here" in shown["cards"].split("<article")[1]
    act(workspace, view, {"act": "accept", "image": str(order[1]), "at": "1", "on": "1"})
    labels = workspace.store.labels
    assert labels.image(first).shows_nothing and not labels.image(second).shows_nothing
    assert labels.count("accepted", NAMES) == 2
    # No later setting marks anything in it.
    choose(workspace, view, "threshold", "max-fraction")
    act(workspace, view, {"act": "take-all"})
    assert workspace.store.labels.image(first) == labels.image(first)
    assert names_listed(workspace, view, filter=NOTHING) == [first]

    summary = export_labelled(workspace.result, labels, ["coco", "yolo-seg"], tmp_path / "out")
    assert summary.n_empty == 1
    coco = json.loads((tmp_path / "out/coco/annotations/instances_default.json").read_text("utf-8"))
    assert {image["file_name"] for image in coco["images"]} == {first, second}
    of_second = next(image["id"] for image in coco["images"] if image["file_name"] == second)
    assert {each["image_id"] for each in coco["annotations"]} == {of_second}
    texts = list((tmp_path / "out/yolo-seg/labels").rglob("*.txt"))
    assert sorted(path.stat().st_size > 0 for path in texts) == [False, True]
    # Alone, such images are an export too.
    alone = edits.set_status(labels, second, "")
    assert export_labelled(workspace.result, alone, "coco", tmp_path / "alone").n_instances == 0

    # Accepting it takes what the settings make.
    again = {**data, "act": "accept"}
    act(workspace, view, again)
    assert workspace.store.labels.image(first).shows_nothing  # a key that was pressed twice
    act(workspace, view, {**again, "anew": "1"})
    assert not workspace.store.labels.image(first).shows_nothing
    act(workspace, view, {"act": "undo"})
    act(workspace, view, {**data, "on": "0"})
    assert workspace.store.labels.image(first) == ImageLabel()


def test_images_with_too_low_a_score_show_nothing_and_the_least_sure_come_first(
    tmp_path: Path,
) -> None:
    result = planted(tmp_path, k=1)
    maps = result.heatmaps
    rows = torch.tensor([0.9, 0.2, 0.55]).repeat_interleave(6 * 8)[:, None]
    scores = maps.replace(coefficients=rows * (maps.coefficients > 0), scale=torch.ones(1))
    result.factorizations[1] = replace(result.factorizations[1], scores=scores)
    result.recipe = "contrast"
    applied = replace(result, applied=result.bank)
    workspace, view = opened_workspace(applied, tmp_path / "applied"), View()
    opened(workspace, view)
    assert names_listed(workspace, view, order=SCORE) == [NAMES[2], NAMES[1], NAMES[0]]
    cards = act(workspace, view, {"act": "look", "look": "photos"})["cards"]
    assert re.findall(r">score (.*?)<", cards) == ["0.55", "0.20", "0.90"]
    assert names_listed(workspace, view, filter=NOTHING) == [NAMES[1]]
    # In the set itself, where three instances tell nothing of outliers, all of them stay.
    workspace, view = opened_workspace(result, tmp_path / "itself"), View()
    opened(workspace, view)
    assert names_listed(workspace, view, filter=NOTHING) == []


def test_photographs_of_several_kinds_are_labeled_by_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless numbers of factors were asked for."""
    factors, kinds = planted(tmp_path), planted(tmp_path, k=2)
    kinds = replace(kinds, recipe="contrast", channel_weights=torch.ones(2, 2))
    monkeypatch.setattr("deepff.networks.loading.load_backbone", lambda **_: None)
    monkeypatch.setattr("deepff.discovery.discover.discover", lambda *_, **__: factors)
    monkeypatch.setattr("deepff.discovery.discover.find_object", lambda *_, **__: kinds)
    for name, counts, k in (("kinds", None, 2), ("factors", [3], 3)):
        workspace = open_workspace([tmp_path / NAMES[0]], tmp_path / name, counts)
        while not workspace.ready:
            assert workspace.error is None
            time.sleep(0.05)
        assert workspace.store.labels.settings.k == k
        assert [*workspace.result.factorizations] == [k]
        # Thresholds over the set are each kind's.
        view = View()
        opened(workspace, view)
        choose(workspace, view, "refine", "none")
        choose(workspace, view, "threshold", "max-fraction")
        labels = workspace.store.labels
        assert workspace.masks.current(labels, NAMES[0]).values.any()
