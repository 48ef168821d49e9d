"""Finding the files of a set in order, and names for them and their output files."""

import json
import os
import unicodedata
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_images import encoded, photograph, save

from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_files import find_images, natural_key, output_names
from deepff.images.reading import image_size


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def names(paths: object) -> list[str]:
    images = find_images(paths)
    assert all(image.path.is_absolute() for image in images)
    return [image.name for image in images]


def test_a_folder_is_searched_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "img10.jpg", "img2.jpg", "IMG3.jpg", "img1.jpg", "img.jpg", "img01.jpg")
    touch(tmp_path, "b/2.png", "b/10.png", "B2/1.png", "a 1/x.txt", "img10/y")
    assert names(tmp_path) == [
        "a 1/x.txt",
        "b/2.png",
        "b/10.png",
        "B2/1.png",
        "img.jpg",
        "img01.jpg",
        "img1.jpg",
        "img2.jpg",
        "IMG3.jpg",
        "img10.jpg",
        "img10/y",
    ]
    assert names(str(tmp_path)) == names([tmp_path]) == names(tmp_path)


def test_labels_next_to_their_photographs_are_no_images(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "a.json", "b.png", "b.txt", "b.xml", "c.json", "sub/a.txt")
    assert names(tmp_path) == ["a.jpg", "b.png", "c.json", "sub/a.txt"]
    assert names([tmp_path / "a.json"]) == ["a.json"]


@given(st.lists(st.text(alphabet="aB10 /.é²٣", min_size=1, max_size=8), unique=True))
@settings(deadline=None)
def test_natural_order_is_total_and_by_number(texts: list[str]) -> None:
    order = sorted(texts, key=natural_key)
    for other in (order[::-1], order[1::2] + order[::2]):
        assert sorted(other, key=natural_key) == order
    numbers = [f"img{len(text)}{i}.jpg" for i, text in enumerate(texts)]
    assert sorted(numbers, key=natural_key) == sorted(numbers, key=lambda name: int(name[3:-4]))


def test_hidden_files_and_results_are_skipped(tmp_path: Path) -> None:
    touch(tmp_path, ".DS_Store", ".hidden/a.jpg", "sub/.b.jpg", "sub/c.jpg", "plain/d.jpg")
    touch(tmp_path, "out/overlays/e.png", "broken/f.jpg", "list/g.jpg")
    (tmp_path / "out/manifest.json").write_text(json.dumps({"deepff": "0.1.0"}))
    (tmp_path / "plain/manifest.json").write_text(json.dumps({"name": "my web app"}))
    (tmp_path / "broken/manifest.json").write_text('{"deepff": ')
    (tmp_path / "list/manifest.json").write_text('["deepff"]')
    kept = ["broken/f.jpg", "list/g.jpg", "plain/d.jpg", "sub/c.jpg"]
    assert [name for name in names(tmp_path) if not name.endswith("manifest.json")] == kept
    assert names(f"{tmp_path}/**/*.*g") == kept
    # What is named outright is meant.
    assert names(tmp_path / ".hidden") == ["a.jpg"]
    assert names(tmp_path / "out/overlays/e.png") == ["e.png"]
    assert names([tmp_path / "sub", tmp_path / "out"]) == ["sub/c.jpg"]
    with pytest.raises(InputError, match="holds a deepff result"):
        find_images(tmp_path / "out")


def test_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "photos/1.jpg", "photos/2.png", "photos/a/3.jpg", "photos/a/b/4.jpg", "5.jpg")
    assert names("photos/*.jpg") == ["1.jpg"]
    assert names("photos/**/*.jpg") == ["1.jpg", "a/3.jpg", "a/b/4.jpg"]
    assert names("photos/**") == names("photos")
    assert names("photos/*/*.jpg") == ["a/3.jpg"]
    assert names("photos/**/b/*") == ["a/b/4.jpg"]
    assert names("**/a/**/*.jpg") == ["photos/a/3.jpg", "photos/a/b/4.jpg"]
    assert names("photos/[12].*") == ["1.jpg", "2.png"]
    assert names("photos/?.png") == ["2.png"]
    assert names(["*.jpg", "photos/*.png"]) == ["5.jpg", "photos/2.png"]
    assert names(Path("photos/*.jpg")) == ["1.jpg"]


def test_an_existing_path_wins_over_a_glob(tmp_path: Path) -> None:
    touch(
        tmp_path, "a[1].jpg", "a1.jpg", "what?.jpg", "whatx.jpg", "set[ab]/*.jpg", "set[ab]/b.jpg"
    )
    touch(tmp_path, "seta/c.jpg")
    assert names(tmp_path / "a[1].jpg") == ["a[1].jpg"]
    assert names(tmp_path / "what?.jpg") == ["what?.jpg"]
    assert names(tmp_path / "set[ab]") == ["*.jpg", "b.jpg"]
    assert names(tmp_path / "set[ab]/*.jpg") == ["*.jpg"]
    assert names(tmp_path / "set[ab]/?.jpg") == ["*.jpg", "b.jpg"]
    assert names(tmp_path / "a[1]*.jpg") == ["a1.jpg"]


def test_several_paths_keep_their_names_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "cats/1.jpg", "cats/10.jpg", "dogs/1.jpg", "dogs/2.jpg")
    cats, dogs = tmp_path / "cats", tmp_path / "dogs"
    everything = ["cats/1.jpg", "cats/10.jpg", "dogs/1.jpg", "dogs/2.jpg"]
    assert names([cats, dogs]) == everything
    assert names([dogs, cats]) == everything[2:] + everything[:2]  # as given
    assert names([dogs / "2.jpg", dogs / "1.jpg"]) == ["2.jpg", "1.jpg"]
    assert names([cats / "1.jpg", dogs / "1.jpg"]) == ["cats/1.jpg", "dogs/1.jpg"]
    assert names([cats, cats / "1.jpg", cats, f"{cats}/*.jpg"]) == ["1.jpg", "10.jpg"]
    monkeypatch.chdir(cats)
    assert names([".", "../dogs"]) == everything
    assert names("../dogs/1.jpg") == ["1.jpg"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "set/z/1.jpg", "elsewhere/2.jpg")
    root = tmp_path / "set"
    (root / "a.jpg").symlink_to(root / "z/1.jpg")
    (root / "a").symlink_to(root / "z")
    (root / "up").symlink_to(root)
    (root / "z/up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "gone.jpg").symlink_to(tmp_path / "gone.jpg")
    expected = ["gone.jpg", "linked/2.jpg", "self", "z/1.jpg"]
    assert names(root) == names(f"{root}/**") == names([root, root / "a.jpg"]) == expected
    for name in ("gone.jpg", "self"):
        with pytest.raises(UnreadableImageError, match=r"file not found|symbolic links"):
            image_size(root / name)


def test_two_folders_linked_into_each_other_many_times(tmp_path: Path) -> None:
    for i in range(8):
        touch(tmp_path, f"{i}/{i}.jpg")
        for j in range(8):
            (tmp_path / f"{i}/to{j}").symlink_to(tmp_path / f"{j}")
    assert names(tmp_path) == [f"{i}/{i}.jpg" for i in range(8)]
    assert names(f"{tmp_path}/**/*.jpg") == [f"{i}/{i}.jpg" for i in range(8)]


@pytest.mark.parametrize(
    "name",
    ["two words.jpg", 'it\'s "q".jpg', "Müller ☃.jpg", "<script>alert(1)<!--.jpg", "a\nb.jpg"],
)
def test_odd_names_survive(tmp_path: Path, name: str) -> None:
    path = save(photograph(), tmp_path / name)
    (image,) = find_images(tmp_path)
    assert (image.path, image.name) == (path, name)
    assert image_size(image.path) == (96, 128)
    assert output_names([image.name]) == [name.removesuffix(".jpg").replace("\n", "_")]


def test_a_name_that_is_not_unicode_is_shown_in_hexadecimal(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    data = encoded("PNG")
    for name in (b"caf\xe9.png", b"caf%E9.png", b"\xff\xfe.png", b"\xc3\xa9.png"):
        try:
            Path(os.fsdecode(os.path.join(folder, name))).write_bytes(data)
        except OSError:
            pytest.skip("this file system takes Unicode names only")
    images = find_images(tmp_path)
    shown = [image.name for image in images]
    assert len(set(shown)) == 4
    assert {"caf%E9.png", "%FF%FE.png", "é.png"} <= set(shown)
    assert json.loads(json.dumps(shown, ensure_ascii=False).encode()) == shown
    assert all(image_size(image.path) == (96, 128) for image in images)


def test_nothing_to_find_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty/sub").mkdir(parents=True)
    touch(tmp_path, "full/a.jpg", "hidden/.a.jpg")
    for paths, message in [
        (tmp_path / "missing", "cannot find"),
        (tmp_path / "missing.jpg", "cannot find"),
        (tmp_path / "empty", "has no files that are not hidden"),
        (tmp_path / "hidden", "has no files that are not hidden"),
        (f"{tmp_path}/full/*.png", "no file matches"),
        (f"{tmp_path}/missing/*.png", "cannot list the folder"),
        ([tmp_path / "full", tmp_path / "missing"], "cannot find"),
        ([], "no images are given"),
        ("", "cannot find"),
    ]:
        with pytest.raises(InputError, match=message) as caught:
            find_images(paths)
        assert "\n" not in str(caught.value)


# --- names of output files


@pytest.mark.parametrize(
    ("names_of_images", "expected"),
    [
        (["a.jpg", "a.png", "b.jpg"], ["a.jpg", "a.png", "b"]),
        (["a.jpg", "a.png", "a.jpg.jpg"], ["a.jpg", "a.png", "a.jpg-2"]),
        (["x/1.jpg", "y/1.jpg"], ["x/1", "y/1"]),
        (["A.jpg", "a.png"], ["A.jpg", "a.png"]),
        (["A.jpg", "a.jpg"], ["A.jpg", "a.jpg-2"]),
        (["é.jpg", "e\u0301.png"], ["é.jpg", "e\u0301.png"]),
        (["photo 1.5 m.jpg", "noext", "v1.2/noext"], ["photo 1.5 m", "noext", "v1.2/noext"]),
        (["a.jpg", "a"], ["a.jpg", "a"]),
        (["a.jpg", "a.png/b.jpg"], ["a-2", "a.png/b"]),
        ([".jpg", "...jpg"], ["_jpg", "_"]),
        (["a\\b.jpg", "a_b.jpg", "a\nb.jpg"], ["a_b.jpg", "a_b.jpg-2", "a_b.jpg-3"]),
        ([" a .jpg", "#1.jpg", "b\u2028/c. .jpg"], ["a", "_1", "b_/c"]),
        (["../a.jpg", "/etc/b.jpg", ".."], ["a", "etc/b", "image"]),
        ([], []),
    ],
)
def test_output_names(names_of_images: list[str], expected: list[str]) -> None:
    assert output_names(names_of_images) == expected


NAMES = st.one_of(
    st.lists(st.text(alphabet="aAbé./-2 ", min_size=1, max_size=9), unique=True, max_size=12),
    st.lists(st.from_regex(r"(a|A|b|a/b|\.\.)(\.jpg|\.png|-2|\.)*", fullmatch=True), unique=True),
    st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=8),
    st.lists(
        st.from_regex(r"[ax]{195,240}(\.jpg|\.png)?", fullmatch=True), unique=True, max_size=4
    ),
)


@given(NAMES)
@settings(deadline=None, max_examples=150)
def test_output_names_are_unique_and_stay_inside(names_of_images: list[str]) -> None:
    outputs = output_names(names_of_images)
    assert len(outputs) == len(names_of_images)
    keys = {unicodedata.normalize("NFC", name).casefold() for name in outputs}
    assert len(keys) == len(outputs)
    for name in outputs:
        path = PurePosixPath(name)
        assert not path.is_absolute()
        assert path.parts
        assert ".." not in path.parts
        assert str(path) == name
        assert "\0" not in name
        assert all(len(part.encode()) <= 230 for part in path.parts)


@given(NAMES)
@settings(deadline=None, max_examples=50)
def test_output_files_can_be_written_side_by_side(
    tmp_path_factory: pytest.TempPathFactory, names_of_images: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("out")
    outputs = output_names(names_of_images)
    for i, name in enumerate(outputs):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x") as file:
            file.write(str(i))
    texts = [(folder / f"{name}.png").read_text() for name in outputs]
    assert texts == [str(i) for i in range(len(outputs))]
