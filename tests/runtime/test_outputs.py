"""Folders that are written into: what was there, and is not deepff's, stays."""

import json
import os
import shutil
from pathlib import Path

import pytest

from deepff.errors import InputError, InputWarning
from deepff.runtime.outputs import RECORD, Rules, check_outputs, output_folder, own_files


def put(folder: Path, rules: Rules, **files: str) -> None:
    with output_folder(folder, rules) as new:
        for name, text in files.items():
            path = new / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def every_file(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_what_deepff_wrote_is_replaced_and_what_it_did_not_write_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(out, Rules(), a="1", sub__b="1")
    (out / "mine").write_text("mine")
    put(out, Rules(), a="2", sub__c="2")
    assert contents(out) == {"a": "2", "sub/b": "1", "sub/c": "2", "mine": "mine"}
    put(out, Rules(remove_stale=True), a="3")
    assert contents(out) == {"a": "3", "mine": "mine"}
    assert not (out / "sub").exists()


@pytest.mark.parametrize("state", ["never deepff's", "changed since"])
def test_other_files_are_replaced_on_request_alone(tmp_path: Path, state: str) -> None:
    if state == "changed since":
        put(tmp_path, Rules(), sub__a="deepff's")
    (tmp_path / "sub").mkdir(exist_ok=True)
    (tmp_path / "sub" / "a").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"sub/a is not deepff's, or was changed.*--overwrite"):
        check_outputs(tmp_path, ["sub/a", "b"], Rules())
    with pytest.raises(InputError, match=r"sub/a is not deepff's"):
        put(tmp_path, Rules(remove_stale=True), sub__a="new", b="new")
    assert contents(tmp_path) == before
    put(tmp_path, Rules(overwrite=True), sub__a="new")
    assert contents(tmp_path) == {"sub/a": "new"}
    put(tmp_path, Rules(), sub__a="newer")
    assert contents(tmp_path) == {"sub/a": "newer"}


def test_a_changed_file_of_an_earlier_output_stays_when_all_is_written_anew(tmp_path: Path) -> None:
    put(tmp_path, Rules(), a="1", b="1")
    (tmp_path / "b").write_text("corrected by hand")
    with pytest.warns(
        InputWarning, match=r"/b: changed since deepff wrote it, so it is kept"
    ) as said:
        put(tmp_path, Rules(remove_stale=True), a="2")
    assert len(said) == 1
    assert contents(tmp_path) == {"a": "2", "b": "corrected by hand"}
    with pytest.raises(InputError, match="b is not deepff's"):
        put(tmp_path, Rules(remove_stale=True), b="3")


@pytest.mark.parametrize(
    "below",
    ["x", "x/y", "object/x", "part/x", "part/x/part", "part", "object/part", "object/object"],
)
@pytest.mark.parametrize("parts", [(), ("part", "object")])
@pytest.mark.parametrize("listed", [False, True], ids=["", "listed by an earlier version"])
def test_an_output_in_a_folder_below_stays(
    tmp_path: Path, below: str, parts: tuple[str, ...], listed: bool
) -> None:
    put(tmp_path, Rules(), a="1", object__a="1")
    put(tmp_path / below, Rules(), **{"manifest.json": "other", "part/b": "other"})
    put(tmp_path / below / "part", Rules(), c="other")
    if listed:
        content = json.loads((tmp_path / RECORD).read_text())
        found = json.loads((tmp_path / below / RECORD).read_text())["files"]
        content["files"] |= {f"{below}/{name}": found[name] for name in found}
        (tmp_path / RECORD).write_text(json.dumps(content))
    before = every_file(tmp_path / below)
    for remove_stale in (False, True):
        put(tmp_path, Rules(True, remove_stale, parts=parts), a="2")
        assert every_file(tmp_path / below) == before
        assert below not in (tmp_path / RECORD).read_text()
    assert (tmp_path / "a").read_text() == "2" and not (tmp_path / "object/a").exists()


@pytest.mark.parametrize("below", ["part", "part/x", "object", "object/part"])
def test_parts_of_a_result_go_with_it(tmp_path: Path, below: str) -> None:
    put(tmp_path, Rules(), a="1")
    files = {"manifest.json": "1"} if below == "object" else {"b": "1"}
    put(tmp_path / below, Rules(), **files)
    put(tmp_path, Rules(remove_stale=True, parts=("part", "object")), a="2")
    assert every_file(tmp_path).keys() == {"a", RECORD}


@pytest.mark.parametrize("way", ["itself", "a link in its place", "through a linked folder"])
def test_a_photograph_is_never_replaced(tmp_path: Path, way: str) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    photo = photos / "a.png"
    photo.write_text("a photograph")
    if way == "itself":
        out = photos
    elif way == "a link in its place":
        out.mkdir()
        photo.rename(out / "a.png")
        photo.symlink_to(out / "a.png")
    else:
        out.symlink_to(photos)
    inputs = [photo, None]
    for rules in (Rules(inputs=inputs), Rules(overwrite=True, remove_stale=True, inputs=inputs)):
        with pytest.raises(InputError, match=r"a\.png is a photograph of the set, which is never"):
            check_outputs(out, ["a.png"], rules)
        with pytest.raises(InputError, match="is a photograph of the set"):
            put(out, rules, **{"a.png": "a mask"})
    assert photo.read_text() == "a photograph"


def test_a_failure_leaves_the_output_before(tmp_path: Path) -> None:
    put(tmp_path / "out", Rules(), a="1")
    with pytest.raises(IsADirectoryError), output_folder(tmp_path / "out") as new:
        new.write_text("")
    assert contents(tmp_path) == {"out/a": "1"}
    assert sorted(os.listdir(tmp_path / "out")) == [RECORD, "a"]


def test_an_output_that_was_copied_elsewhere_is_still_deepffs(tmp_path: Path) -> None:
    put(tmp_path / "out", Rules(), a="1", sub__b="1")
    shutil.copytree(tmp_path / "out", tmp_path / "moved" / "out")
    assert list(own_files(tmp_path / "moved" / "out")) == ["a", "sub/b"]
    put(tmp_path / "moved" / "out", Rules(remove_stale=True), a="2")
    assert contents(tmp_path / "moved" / "out") == {"a": "2"}


def test_links_are_deepffs_while_they_lead_where_they_did(tmp_path: Path) -> None:
    for target in ("x", "y", "z"):
        (tmp_path / target).write_text(target)
    out = tmp_path / "out"
    for target in ("x", "y"):
        with output_folder(out) as new:
            (new / "link").symlink_to(tmp_path / target)
    assert (out / "link").read_text() == "y"
    (out / "link").unlink()
    (out / "link").symlink_to(tmp_path / "z")
    with pytest.raises(InputError, match="link is not deepff's"), output_folder(out) as new:
        (new / "link").symlink_to(tmp_path / "x")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"files": 1}', '{"files": {"a": 1}}'])
def test_without_a_readable_list_nothing_is_deepffs(tmp_path: Path, damage: str) -> None:
    put(tmp_path, Rules(), a="1")
    (tmp_path / RECORD).write_text(damage)
    with pytest.raises(InputError, match="a is not deepff's"):
        put(tmp_path, Rules(), a="2")


def test_files_and_folders_in_the_way_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    (tmp_path / "b").mkdir()
    for names, sentence in (
        (["a/x"], "a is a file, but must be a folder"),
        (["b"], "b is a folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            check_outputs(tmp_path, names, Rules(overwrite=True))
    with pytest.raises(InputError, match="a is a file; name a folder"):
        put(tmp_path / "a", Rules())


def test_folders_made_for_a_failed_output_go_again_if_they_are_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()

    def fail(folder: Path) -> None:
        with pytest.raises(IsADirectoryError), output_folder(folder) as new:
            new.write_text("")

    fail(tmp_path / "a" / "b" / "out")
    fail(tmp_path / "mine" / "c" / "out")
    fail(tmp_path / "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
