"""A photograph that was replaced after the run is never used with the maps of the former one."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import deepff
from deepff.errors import InputError, InputWarning
from deepff.export.folder import localize, segment
from deepff.images.decoding import UnreadableImageError
from deepff.result import Result

SAID = r"b\.png.*not the photograph that the result was made from"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "photos").mkdir()
    for turn, name in enumerate(("a.png", "b.png", "c.png")):
        picture = Image.linear_gradient("L").rotate(90 * turn).resize((192, 128))
        picture.convert("RGB").save(folder / "photos" / name)
    deepff.discover(folder / "photos", 2, size=224).save(folder / "result")
    return folder


@pytest.fixture
def replaced(made: Path) -> Iterator[Result]:
    """The result, of which b.png now is a copy of c.png, of the same size."""
    photos = made / "photos"
    shutil.copy(photos / "b.png", made / "b.png")
    shutil.copy(photos / "c.png", photos / "b.png")
    yield deepff.load(made / "result")
    shutil.copy(made / "b.png", photos / "b.png")


@pytest.mark.parametrize(
    "use",
    [
        lambda result, out: list(result.regions(refine="guided-crf")),
        lambda result, out: list(result.regions(refine="dense-crf")),
        lambda result, out: result.export("coco", out, images="copy"),
        lambda result, out: result.export("coco", out, images="link"),
        lambda result, out: result.export("yolo", out),
        lambda result, out: result.similar(0, (5, 5)),
    ],
    ids=["guided-crf", "dense-crf", "copy", "link", "yolo", "similar"],
)
def test_what_needs_the_photograph_is_refused(
    replaced: Result, tmp_path: Path, use: Callable[[Result, Path], None]
) -> None:
    with pytest.raises(InputError, match=SAID):
        use(replaced, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_can_do_without_leaves_it_out_and_says_so(
    replaced: Result, made: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnreadableImageError, match="not the photograph"):
        replaced.images[1].read()  # as the app's pictures
    with pytest.warns(InputWarning, match=SAID):
        assert replaced.importance().images == (0, 2)
    whole = deepff.find_object(replaced)
    assert whole.names == ["a.png", "c.png"]
    assert [file.name for file in whole.skipped] == ["b.png"]
    shutil.copytree(made / "result", tmp_path / "result")
    for write in (segment, localize):
        with pytest.warns(InputWarning, match=SAID):
            write(replaced, tmp_path / "result")
    with pytest.warns(InputWarning, match=SAID):
        replaced.save(tmp_path / "result")
    page = (tmp_path / "result" / "report.html").read_text()
    assert "not the photograph that the result was made from (used, but shown gray)" in page
    again = deepff.load(tmp_path / "result", made / "photos")
    with pytest.raises(UnreadableImageError):
        again.images[1].read()


def test_once_it_is_back_it_is_used_again(made: Path, tmp_path: Path) -> None:
    result = deepff.load(made / "result")
    assert len(list(result.regions(refine="guided-crf"))) == 3
    assert result.export("coco", tmp_path / "out", images="copy").n_instances > 0
