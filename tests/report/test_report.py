"""The HTML report: what it holds, that nothing of it is code from a file's name, where maps lie."""

import json
import os
import re
import zlib
from base64 import b64decode
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image
from planted import result_of

from deepff.activations.activations import FeatureSource, ImageRecord
from deepff.export.folder import localize
from deepff.images.painting import factor_colors
from deepff.images.reading import SkippedFile
from deepff.options import RegionOptions
from deepff.pictures.figures import region_picture
from deepff.report import report
from deepff.report.report import STRIP_GAP, write_report
from deepff.result import Result
from deepff.results.factorization import Factorization
from deepff.results.heatmaps import HeatMaps

HOSTILE_NAMES = [
    "<script>alert(1)</script>.jpg",
    "</script><img src=x onerror=alert(1)>.png",
    '" onload="alert(1).jpg',
    "' onfocus='alert(1).jpg",
    "<!--.jpg",
    "]]>&lt;&amp;.jpg",
    "{{ 7 * 7 }}{% raw %}.jpg",
    "${alert(1)}`.jpg",
    "100%41#a?b=c.jpg",
    "sub folder/Übergröße ß 猫.jpg",
    "back\\slash\nnew line\u2028.jpg",
    "javascript:alert(1).jpg",
]
VOID = {"meta", "link", "img", "input"}


@dataclass
class Page(HTMLParser):
    """What an HTML parser finds on the page."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def text_of(self, tag: str) -> list[str]:
        return [text for owner, text in self.texts if owner == tag]

    def data(self) -> dict:
        return json.loads(self.text_of("script")[0])


def read_page(folder: Path) -> Page:
    page = Page()
    page.feed((folder / "report.html").read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    return page


def make_result(
    folder: Path,
    names: list[str],
    ks: tuple[int, ...] = (1, 2),
    size: tuple[int, int] = (97, 130),
    grid: tuple[int, int] = (6, 8),
    coefficients: torch.Tensor | None = None,
) -> Result:
    """Grey photos under ``names``; random heat maps unless ``coefficients`` (rows, k) are given."""
    images = []
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size[::-1], (100, 100, 100)).save(path, "JPEG")
        images.append(ImageRecord(name, path, size, grid))
    n = len(names)
    if coefficients is None:
        generator = torch.Generator().manual_seed(0)
        coefficients = torch.rand(n * grid[0] * grid[1], max(ks), generator=generator)
    factorizations = {
        k: Factorization(
            torch.ones(k, 5), HeatMaps(coefficients[:, :k], [grid] * n, [size] * n), 0.25, 9
        )
        for k in ks
    }
    triple = (0.5, 0.5, 0.5)
    source = FeatureSource(
        "efficientnet_lite0",
        "ImageNet",
        "0" * 64,
        "blocks.5",
        5,
        16,
        448,
        16,
        *[triple] * 2,
        "bilinear",
        False,
    )
    return Result(
        images,
        [],
        factorizations,
        "nmf",
        (source,),
        {},
        "deepff run images",
        {},
        created="2030-01-02T03:04:05+00:00",
    )


def embedded_maps(page: Page, k: int) -> list[np.ndarray]:
    """The page's maps as its script sees them: (k, h, w) of each image, relative to the set."""
    found = page.data()["factorizations"][str(k)]
    levels, dtype = (127, np.int8) if found["signed"] else (255, np.uint8)
    values = np.frombuffer(zlib.decompress(b64decode(found["maps"])), dtype)
    maps = []
    for image, peaks in zip(page.data()["images"], found["peaks"], strict=True):
        height, width = image["grid"]
        own, values = np.split(values, [k * height * width])
        gains = np.array(peaks)[:, None, None] / levels
        maps.append(own.reshape(k, height, width) * gains)
    assert len(values) == 0
    return maps


def test_no_name_from_a_file_becomes_code(tmp_path: Path) -> None:
    result = make_result(tmp_path / "photos", HOSTILE_NAMES)
    hostile = "".join(HOSTILE_NAMES)
    result.skipped = [SkippedFile(name, f"reason {name}") for name in HOSTILE_NAMES]
    result.command = f"deepff run {hostile}"
    result.sources = (replace(result.sources[0], model=hostile, layer=hostile, weights=hostile),)
    plain = make_result(tmp_path / "photos", [f"{i}.jpg" for i in range(len(HOSTILE_NAMES))])
    plain.skipped = [SkippedFile("a", "b")] * len(HOSTILE_NAMES)
    write_report(result, tmp_path / "hostile")
    write_report(plain, tmp_path / "plain")
    page, reference = read_page(tmp_path / "hostile"), read_page(tmp_path / "plain")

    # Harmless names give the very same elements with the very same attributes.
    assert [(tag, list(attrs)) for tag, attrs in page.tags] == [
        (tag, list(attrs)) for tag, attrs in reference.tags
    ]
    assert page.text_of("script")[1] == reference.text_of("script")[1]
    assert page.text_of("style") == reference.text_of("style")
    # and every name comes back whole.
    pictures = [attrs for tag, attrs in page.tags if tag == "img" and attrs["alt"]]
    thumbnails = [attrs for attrs in pictures if attrs["src"] != "figure.png"]
    assert [attrs["alt"] for attrs in thumbnails] == HOSTILE_NAMES
    assert page.text_of("figcaption") == HOSTILE_NAMES
    assert page.text_of("li") == [f"{name}: reason {name}" for name in HOSTILE_NAMES]
    assert page.text_of("pre")[0] == result.command
    assert [image["name"] for image in page.data()["images"]] == HOSTILE_NAMES


def test_links_lead_to_the_files_and_nowhere_else(tmp_path: Path) -> None:
    result = make_result(tmp_path / "photos", HOSTILE_NAMES)
    write_report(result, tmp_path / "out", overlays=True)
    page = read_page(tmp_path / "out")
    for image, path in zip(page.data()["images"], result.paths, strict=True):
        original = urlsplit(image["original"])
        assert (original.scheme, original.netloc, original.query, original.fragment) == (
            "file",
            "",
            "",
            "",
        )
        assert Path(unquote(original.path)) == path
        assert not re.search(r"[^\w%./~-]", image["strip"], re.ASCII)
        for k in (1, 2):
            strip = tmp_path / "out" / unquote(f"overlays/k{k}/{image['strip']}.jpg")
            assert Image.open(strip).size[1] == 191
        assert Image.open(tmp_path / "out" / image["thumbnail"]).size == (256, 191)
    assert len(list((tmp_path / "out" / "overlays" / "k2").rglob("*.jpg"))) == len(HOSTILE_NAMES)

    urls = [attrs[name] for _, attrs in page.tags for name in ("src", "href") if attrs.get(name)]
    for url in urls:
        assert urlsplit(url).netloc == ""
        assert urlsplit(url).scheme in ("", "data")
        is_here = url[0] == "#" and url[1:] in [attrs.get("id") for _, attrs in page.tags]
        assert url == "data:," or is_here or (tmp_path / "out" / unquote(url)).exists()
    code = "".join(page.text_of("style") + page.text_of("script")[1:])
    assert not re.search(r"https?:|url\(|@import|['\"`]//|fetch|XMLHttp|\beval\b|innerHTML", code)


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX only")
def test_bytes_that_are_not_unicode_do_not_stop_the_report(tmp_path: Path) -> None:
    result = make_result(tmp_path, ["a.jpg"])
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg"))
    result.paths[0].rename(path)
    result.images = [replace(result.images[0], origin=path)]
    result.command = f"deepff run {path}"
    write_report(result, tmp_path / "out")
    original = read_page(tmp_path / "out").data()["images"][0]["original"]
    assert unquote_to_bytes(urlsplit(original).path) == os.fsencode(path)


def test_page_states_the_facts_of_the_run(tmp_path: Path) -> None:
    coefficients = torch.zeros(8 * 4, 2)
    strength = torch.tensor([3.0, 8, 1, 7, 2, 6, 4, 5])
    coefficients[:, 0] = strength.repeat_interleave(4)
    coefficients[5 * 4 + 1, 1] = 1.0  # factor 2 appears on image 5 only
    names = [f"{i}.jpg" for i in range(8)]
    result = make_result(tmp_path, names, (2,), grid=(2, 2), coefficients=coefficients)
    write_report(result, tmp_path / "out")
    page = read_page(tmp_path / "out")
    facts = page.text_of("dd")
    assert facts == [
        "efficientnet_lite0",
        "blocks.5 (5 channels, stride 16)",
        "ImageNet",
        "448 pixels",
        "NMF (non-negative matrix factorization): no value is below 0; k = 2",
        "2030-01-02 03:04 UTC",
    ]
    # 1 − 0.25² of the squares of the activations
    assert page.text_of("small")[0] == "explain 94 % of the activations"
    titles = [str(attrs["title"]) for tag, attrs in page.tags if tag == "small" and attrs]
    assert titles[0].endswith("the relative error is 0.2500")
    strongest: dict[str, list[int]] = {"0": [], "1": []}
    for _, attrs in page.tags:
        if attrs.get("class") == "open" and "data-k" in attrs:
            strongest[str(attrs["data-factor"])].append(int(str(attrs["data-image"])))
    assert strongest == {"0": [1, 3, 5, 7, 6, 0], "1": [5]}
    # Both components have the same norm: shares are those of the coefficients' norms.
    norms = [2 * float(strength.norm()), 1.0]
    assert [text for text in page.text_of("span") if text.endswith(" %")] == [
        f"{100 * norm / sum(norms):.1f} %" for norm in norms
    ]


def test_the_page_begins_with_photographs_and_ends_with_what_to_do_next(tmp_path: Path) -> None:
    write_report(make_result(tmp_path, ["a.jpg", "b.jpg"]), tmp_path / "out")
    page = read_page(tmp_path / "out")
    parts = [
        attrs.get("id") or attrs["aria-label"]
        for tag, attrs in page.tags
        if tag in ("section", "details")
    ]
    assert parts == [
        "photographs",
        "Factors at k = 1",
        "Factors at k = 2",
        "over-k",
        "Factors linked over k",
        "made",
        "next",
    ]
    assert [attrs["value"] for _, attrs in page.tags if "checked" in attrs] == ["2"]
    assert page.text_of("pre")[1:] == ["deepff segment", "deepff label", "deepff explain"]


@pytest.mark.parametrize("signed", [False, True])
def test_embedded_maps_are_the_heat_maps(tmp_path: Path, signed: bool) -> None:
    coefficients = torch.rand(3 * 48, 3, generator=torch.Generator().manual_seed(1)) - 0.5 * signed
    coefficients[:48] *= 0.01  # a weak image keeps its levels too
    coefficients[:, 2] = 0
    result = make_result(tmp_path, ["a.jpg", "b.jpg", "c.jpg"], (1, 3), coefficients=coefficients)
    write_report(result, tmp_path / "out")
    for k in (1, 3):
        maps = result.factorizations[k].heatmaps
        for i, found in enumerate(embedded_maps(read_page(tmp_path / "out"), k)):
            expected = maps.normalized(i).numpy()
            step = np.abs(expected).max() / (127 if signed else 255)
            np.testing.assert_allclose(found, expected, atol=0.5 * step + 1e-4)


def test_maps_of_a_large_set_are_coarsened_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coefficients = torch.zeros(40 * 60, 1)
    coefficients[25 * 60 + 41] = 1  # cell (25, 41): its center lies at (25.5 / 40, 41.5 / 60)
    result = make_result(tmp_path, ["a.jpg"], (1,), grid=(40, 60), coefficients=coefficients)
    monkeypatch.setattr(report, "MAX_EMBEDDED_VALUES", 600)
    write_report(result, tmp_path / "out")
    (found,) = embedded_maps(read_page(tmp_path / "out"), 1)
    assert found.shape == (1, 20, 30)
    assert np.unravel_index(found.argmax(), found.shape) == (0, 12, 20)


def test_strip_shows_photo_all_factors_and_each_alone_around_the_cells_center(
    tmp_path: Path,
) -> None:
    # 6 × 8 cells on a thumbnail of 191 × 256 pixels, whose height is no multiple of 6.
    cells = [(2, 3), (4, 6)]
    coefficients = torch.zeros(48, 2)
    for j, (row, column) in enumerate(cells):
        coefficients[row * 8 + column, j] = 1
    result = make_result(tmp_path, ["a.jpg"], (2,), coefficients=coefficients)
    write_report(result, tmp_path / "out", overlays=True)
    strip = np.asarray(Image.open(tmp_path / "out" / "overlays" / "k2" / "a.jpg")).astype(float)
    assert strip.shape == (191, 4 * 256 + 3 * STRIP_GAP, 3)
    photo, together, *alone = (
        strip[:, start : start + 256] for start in range(0, strip.shape[1], 256 + STRIP_GAP)
    )
    np.testing.assert_allclose(photo, 100, atol=2)

    centers = [((row + 0.5) * 191 / 6, (column + 0.5) * 256 / 8) for row, column in cells]
    painted = 0.8 * factor_colors(2) + 0.2 * 100
    for j, (y, x) in enumerate(centers):
        other_y, other_x = (int(c) for c in centers[1 - j])
        for panel in (together, alone[j]):
            np.testing.assert_allclose(panel[int(y), int(x)], painted[j], atol=12)
        np.testing.assert_allclose(alone[j][other_y, other_x], 100, atol=4)
        weight = np.abs(alone[j] - 100).sum(-1)
        weight[weight < 20] = 0  # what JPEG leaves
        rows, columns = np.indices(weight.shape) + 0.5
        assert abs((rows * weight).sum() / weight.sum() - y) < 0.5
        assert abs((columns * weight).sum() / weight.sum() - x) < 0.5


def test_lost_photos_are_shown_grey_and_named(tmp_path: Path) -> None:
    result = make_result(tmp_path, ["lost.jpg", "kept.jpg", "broken.jpg"])
    result.paths[0].unlink()
    result.paths[2].write_text("no image any more")
    write_report(result, tmp_path / "out")
    page = read_page(tmp_path / "out")
    greys = [
        np.asarray(Image.open(tmp_path / "out" / image["thumbnail"])).mean()
        for image in page.data()["images"]
    ]
    assert greys == pytest.approx([128, 100, 128], abs=1)
    listed = page.text_of("li")
    assert [entry.split(":")[0] for entry in listed] == ["lost.jpg", "broken.jpg"]
    assert all(entry.endswith("(used, but shown gray)") for entry in listed)


def test_a_second_report_is_the_same_to_the_byte_and_leaves_no_other_files(tmp_path: Path) -> None:
    result = make_result(tmp_path, [f"{i}.jpg" for i in range(12)], (1, 2, 3))
    for folder in ("first", "second", "second"):
        write_report(result, tmp_path / folder)

    def files(folder: Path) -> dict[str, bytes]:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    first = files(tmp_path / "first")
    assert first == files(tmp_path / "second")
    expected = {"report.html", "figure.png", "thumbnails/unreadable.json"}
    expected |= {f"thumbnails/{i:05d}.jpg" for i in range(12)}
    expected |= {f"crops/k{k}-{j}-{n}.jpg" for k in (1, 2, 3) for j in range(k) for n in range(6)}
    assert set(first) == expected


def test_images_and_boxes_of_a_result_with_scores_are_in_their_order(tmp_path: Path) -> None:
    """The left half of each image is one object."""
    maps = torch.zeros(3, 1, 40, 80)
    maps[..., :40] = 1
    result = result_of(maps, ["a.png", "b.png", "c.png"], tmp_path)
    for name in result.names:
        Image.new("RGB", (80, 40), "gray").save(tmp_path / name)
    values = torch.tensor([0.2, 0.9, 0.55]).repeat_interleave(40 * 80)[:, None]
    scores = result.heatmaps.replace(coefficients=values, scale=torch.ones(1))
    result.factorizations[1] = replace(result.factorizations[1], scores=scores)
    result.save(tmp_path / "result")
    localize(result, tmp_path / "result", options=RegionOptions("otsu-image"))
    page = (tmp_path / "result/report.html").read_text("utf-8")
    captions = re.findall(r"<figcaption.*?>(<b>.*?)</figcaption>", page)
    in_order = ["<b>0.90</b> b.png", "<b>0.55</b> c.png", "<b>0.20</b> a.png"]
    # The script arranges the first gallery, whose images have the numbers of the set.
    assert captions == [in_order[2], in_order[0], in_order[1], *in_order]
    assert '<option value="score" selected>' in page
    # The score is written in the box, on its color, and nothing next to it.
    photo, color = np.full((40, 80, 3), 128, np.uint8), factor_colors(1)[0]
    labels = np.zeros((40, 80), np.uint8)
    plain = region_picture(photo, labels, [(0, (0, 0, 60, 40), None)])
    scored = region_picture(photo, labels, [(0, (0, 0, 60, 40), 0.9)])
    rows, columns = np.nonzero((plain != scored).any(2))
    assert rows.max() < 25 and columns.max() < 50
    assert (scored[rows, columns] == color).all(1).mean() > 0.5
    assert (scored[rows, columns] == 255).all(1).any()
