"""The app in a browser: the whole job on twelve photographs, as a person would do it."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

import pytest
from planted import planted

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("gradio")
pycocotools = pytest.importorskip("pycocotools.coco")

from deepff.report.load import load  # noqa: E402

GROUP = "021 Elephants-safari June 2008-timd2000"
EVIL = '<img src=x onerror="document.title=1">.jpg'
expect = playwright.expect
expect.set_options(timeout=20_000)


@pytest.fixture
def photos(data_root: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = sorted((data_root / "icoseg" / "images" / GROUP).glob("*.jpg"))[:12]
    for photo, name in zip(paths, [EVIL, "Büffel ${1+1} {{x}}.jpg"], strict=False):
        shutil.copy(photo, folder / name)
    for photo in paths[2:]:
        shutil.copy(photo, folder)
    return folder


Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``deepff label`` as a user would; gives its process and the URL that it prints."""
    running = []

    def start(*arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "deepff", "label", "--no-browser", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in running:
        process.kill()
        process.wait()


def open_page(browser: playwright.Browser, url: str, asked: list[str]) -> playwright.Page:
    page = browser.new_page(viewport={"width": 1366, "height": 768})
    page.set_default_timeout(15_000)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    expect(page.locator(".dff-card")).to_have_count(5, timeout=90_000)
    return page


def name_factor(page: playwright.Page, factor: int, name: str) -> None:
    field = page.get_by_label(f"Name of factor {factor}", exact=True)
    field.fill(name)
    field.press("Enter")


def revision(page: playwright.Page, number: int) -> None:
    expect(page.locator(f'.dff-head[data-revision="{number}"]')).to_be_visible()


def mend_one(page: playwright.Page, before: int) -> None:
    """Click, take it back, paint a line, take it back; the mask on the screen follows."""
    page.get_by_role("button", name="Mend").first.click()
    mask = page.locator("#mend-mask")
    expect(mask).to_have_attribute("src", re.compile("^data:image/png"))
    shown = [str(mask.get_attribute("src"))]
    # A pixel of the mask, where a click is on a piece.
    x, y = page.evaluate(
        """async () => {
          const mask = document.getElementById("mend-mask");
          await mask.decode();
          const canvas = new OffscreenCanvas(mask.naturalWidth, mask.naturalHeight);
          const pen = canvas.getContext("2d");
          pen.drawImage(mask, 0, 0);
          const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
          const at = data.findIndex((value, i) => i % 4 === 3 && value > 0 && i > data.length / 2);
          const box = mask.getBoundingClientRect();
          const pixel = (at - 3) / 4;
          return [
            box.x + (((pixel % canvas.width) + 0.5) / canvas.width) * box.width,
            box.y + ((Math.floor(pixel / canvas.width) + 0.5) / canvas.height) * box.height,
          ];
        }"""
    )
    # The page below is out of reach.
    expect(page.locator("[inert] #cards, #cards[inert]")).to_have_count(1)
    expect(page.locator("#mend-stage")).to_be_focused()
    page.keyboard.press("h")
    expect(mask).to_have_css("opacity", "0")
    page.keyboard.press("h")
    expect(mask).to_have_css("opacity", "1")
    page.keyboard.press("t")
    page.mouse.click(x, y)
    revision(page, before + 1)
    expect(mask).not_to_have_attribute("src", shown[0])
    page.keyboard.press("u")
    revision(page, before + 2)
    expect(mask).to_have_attribute("src", shown[0])
    page.keyboard.press("b")
    page.mouse.move(300, 300)
    page.mouse.down()
    page.mouse.move(500, 420, steps=4)
    page.mouse.up()
    revision(page, before + 3)
    expect(mask).not_to_have_attribute("src", shown[0])
    page.keyboard.press("u")
    revision(page, before + 4)
    expect(mask).to_have_attribute("src", shown[0])
    page.keyboard.press("Escape")
    expect(page.locator("#mend-view")).to_have_count(0)
    expect(page.locator("[inert]")).to_have_count(0)


def without_suggestions(page: playwright.Page, k: int) -> int:
    """Leave the factors as if the network said nothing of them; gives the revision after that."""
    head = page.locator(".dff-head")
    number = int(str(head.get_attribute("data-revision")))
    for factor in range(k):
        if page.get_by_label(f"Name of factor {factor}", exact=True).input_value():
            name_factor(page, factor, "")
            number += 1
            revision(page, number)
        keep = page.get_by_role("switch", name=f"Keep factor {factor}")
        if keep.get_attribute("aria-checked") == "false":
            keep.click()
            number += 1
            revision(page, number)
    return number


def name_two_of_three_alike(page: playwright.Page, base: int) -> None:
    """Factors 0 to 2 become two classes, and factor 3 is not kept; base + 5."""
    # Two names typed one after the other, as quickly as one types.
    page.get_by_label("Name of factor 0").click()
    page.keyboard.type("Körper <b>")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("legs")
    page.keyboard.press("Enter")
    revision(page, base + 3)
    assert page.get_by_label("Name of factor 0").input_value() == "Körper <b>"
    assert page.get_by_label("Name of factor 1").input_value() == "legs"

    suggested = page.locator("#name-suggestions option").evaluate_all(
        "all => all.map(o => o.value)"
    )
    assert {"Körper <b>", "legs"} <= {*suggested}
    name_factor(page, 2, "legs")
    expect(page.get_by_text("one class with factor 1")).to_be_visible()
    for card in page.locator(".dff-card").all():
        names = card.locator(".dff-chip span").all_inner_texts()
        assert len(names) == len(set(names)) and "legs" in names
    colors = page.locator(".dff-swatch").evaluate_all("all => all.map(s => s.style.background)")
    assert colors[1] == colors[2] != colors[0]

    page.get_by_role("switch", name="Keep factor 3").click()
    revision(page, base + 5)
    expect(page.locator(".dff-chip", has_text="factor 3")).to_have_count(0)


def review_by_keyboard(page: playwright.Page, base: int) -> tuple[str, str]:
    """From base + 5 to base + 10: the names of the image that is accepted, and the one skipped."""
    # The keyboard: the second image's first class is dropped, it is accepted, the third skipped.
    page.keyboard.press("ArrowRight")
    card = page.locator(".dff-card.current")
    dropped_in = card.locator(".dff-name").inner_text()
    picture = card.locator("img").get_attribute("src")
    page.keyboard.press("1")
    revision(page, base + 6)
    expect(card.locator(".dff-chip.dropped span")).to_have_text("Körper <b>")
    assert card.locator("img").get_attribute("src") != picture
    page.keyboard.press("a")
    revision(page, base + 7)
    expect(page.locator(".dff-card.accepted .dff-name")).to_have_text(dropped_in)
    skipped = card.locator(".dff-name").inner_text()
    assert skipped != dropped_in
    page.keyboard.press("s")
    revision(page, base + 8)
    expect(page.locator("#progress-text")).to_have_text("1 accepted · 1 skipped · 10 to look at")
    page.keyboard.press("u")
    expect(page.locator("#progress-text")).to_have_text("1 accepted · 0 skipped · 11 to look at")
    page.keyboard.press("s")
    revision(page, base + 10)
    return dropped_in, skipped


def change_the_threshold(page: playwright.Page, base: int) -> None:
    """Pictures follow, but for what was accepted; base + 11."""
    accepted = str(page.locator(".dff-card.accepted img").get_attribute("src"))
    first = page.locator(".dff-card img").first
    picture = first.get_attribute("src")
    page.locator("#value input[type=number]").fill("85")
    page.locator("#value input[type=number]").press("Enter")
    revision(page, base + 11)
    expect(first).not_to_have_attribute("src", str(picture))
    # What was accepted stays as it was, and says so.
    expect(page.locator(".dff-card.accepted img")).to_have_attribute("src", accepted)
    expect(page.locator(".dff-card.accepted .dff-differs")).to_contain_text("with other settings")
    expect(page.locator("#busy")).to_be_hidden()


def go_through_the_pages(page: playwright.Page, photos: Path) -> None:
    """Every image is there, and nothing in a file's name is taken for HTML or for a template."""
    page.get_by_role("spinbutton", name="Page").fill("3")
    page.get_by_role("spinbutton", name="Page").press("Enter")
    seen = set()
    for first_position in (10, 5, 0):
        card = page.locator(".dff-card").first
        expect(card).to_have_attribute("data-position", str(first_position))
        seen |= set(page.locator(".dff-name").all_inner_texts())
        if first_position:
            page.get_by_role("button", name="Previous page").click()
    assert seen == {path.name for path in photos.iterdir()}
    assert page.title() == "deepff label"


def export_all_but_skipped(page: playwright.Page, folder: Path) -> "pycocotools.COCO":
    """What the page counts is what the downloaded COCO file holds."""
    page.get_by_role("tab", name="Export").click()
    count = page.locator("#count")
    expect(count).to_contain_text("in 1 image")
    expect(count).to_contain_text("of 12: 1 accepted, 1 skipped, 10 to look at")
    page.locator("#which input").click()
    page.get_by_role("option", name="all except skipped (11)").click()
    expect(count).to_contain_text("in 11 images")
    split = page.locator("#split").get_by_role("textbox")
    assert split.input_value() == "80/20"
    expect(count.locator("th").nth(1)).to_contain_text("train 9 images")
    split.fill("")  # one file
    expect(count.locator("th").nth(1)).to_contain_text("all 11 images")
    counted = re.findall(r"(\d+) (masks|boxes)", count.inner_text())
    expect(page.locator("#preview pre")).to_contain_text('"iscrowd": 0')
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as downloading:
        page.locator("#download").click()
    downloading.value.save_as(folder / "coco.zip")
    with ZipFile(folder / "coco.zip") as archive:
        archive.extractall(folder / "coco")
    assert len([*(folder / "coco/images").iterdir()]) == 11
    annotations = pycocotools.COCO(folder / "coco" / "annotations/instances_default.json")
    assert counted == [(str(len(annotations.anns)), what) for what in ("masks", "boxes")]
    return annotations


def edit_in_two_tabs(page: playwright.Page, other: playwright.Page, base: int) -> None:
    """What was done in another tab is not overwritten; from base + 15 to base + 17."""
    expect(other.get_by_label("Name of factor 1")).to_have_value("legs")
    name_factor(other, 3, "ground")
    revision(other, base + 16)
    name_factor(page, 3, "grass")
    expect(page.locator("#notice")).to_contain_text("changed in another tab")
    expect(page.get_by_label("Name of factor 3")).to_have_value("ground")
    name_factor(page, 3, "grass")
    revision(page, base + 17)
    expect(page.locator("#notice")).to_be_hidden()


def a_class_of_ones_own(page: playwright.Page, base: int) -> None:
    """It is added, an image's pieces are moved to it by its key, and it is painted; base + 2."""
    page.get_by_label("Add classes").fill("headlight")
    page.keyboard.press("Enter")
    revision(page, base + 1)
    expect(page.locator("#class-rows [data-class]")).to_have_count(3)
    page.mouse.move(5, 5)
    page.keyboard.press("Shift+Digit3")
    revision(page, base + 2)
    chip = page.locator(".dff-card.current .dff-chip[data-class-key]")
    expect(chip).to_have_text(re.compile(r"headlight\s*3"))
    page.keyboard.press("m")
    painted = page.locator("#mend-view [data-class][aria-pressed=true]")
    expect(painted).to_contain_text("headlight")
    page.keyboard.press("2")
    expect(painted).to_contain_text("legs")
    page.keyboard.press("Escape")
    expect(page.locator("#mend-view")).to_have_count(0)


def nothing_asked_elsewhere(asked: list[str], url: str) -> None:
    """The page loads from its server alone."""
    host = urlsplit(url).hostname
    foreign = [
        url
        for url in asked
        if not url.startswith(("data:", "blob:")) and urlsplit(url).hostname != host
    ]
    assert len(asked) > 20
    assert foreign == []


def test_from_a_folder_of_photographs_to_coco_and_back_after_a_crash(
    browser: playwright.Browser, photos: Path, start: Start, tmp_path: Path
) -> None:
    out = tmp_path / "result"
    arguments = [photos, "--out", out, "-k", "3-4"]
    process, url = start(*arguments)
    asked: list[str] = []
    page = open_page(browser, url, asked)
    expect(page.locator("#progress-text")).to_have_text("0 accepted · 0 skipped · 12 to look at")
    page.get_by_label("the factors").click()
    revision(page, 1)
    expect(page.locator("#refine label")).to_have_text(["off", "guided", "dense"])

    base = without_suggestions(page, 4) - 1
    name_two_of_three_alike(page, base)
    dropped_in, skipped = review_by_keyboard(page, base)
    change_the_threshold(page, base)
    mend_one(page, base + 11)
    go_through_the_pages(page, photos)
    page.get_by_role("tab", name="Factors").click()
    expect(page.locator(".dff-alone")).to_have_count(4)
    expect(page.locator(".dff-alone h2").first).to_contain_text("Körper <b>")

    annotations = export_all_but_skipped(page, tmp_path)
    assert [category["name"] for category in annotations.cats.values()] == ["Körper <b>", "legs"]
    names = {image["file_name"]: number for number, image in annotations.imgs.items()}
    assert set(names) == {path.name for path in photos.iterdir()} - {skipped}
    body_in = {a["image_id"] for a in annotations.anns.values() if a["category_id"] == 1}
    assert names[dropped_in] not in body_in and len(body_in) > 5
    assert all(annotations.annToMask(a).sum() == a["area"] for a in annotations.anns.values())

    other = open_page(browser, url, asked)
    edit_in_two_tabs(page, other, base)

    process.send_signal(signal.SIGKILL)
    process.wait()
    page.close()
    other.close()
    _, url = start(*arguments)
    page = open_page(browser, url, asked)
    revision(page, base + 17)
    for factor, name in enumerate(["Körper <b>", "legs", "legs", "grass"]):
        expect(page.get_by_label(f"Name of factor {factor}")).to_have_value(name)
    expect(page.locator("#progress-text")).to_have_text("1 accepted · 1 skipped · 10 to look at")
    assert page.locator("#value input[type=number]").input_value() == "85"

    a_class_of_ones_own(page, base + 17)

    # A phone: nothing sticks out to the side.
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()

    nothing_asked_elsewhere(asked, url)
    assert json.loads((out / "labels.json").read_text("utf-8"))["revision"] == base + 19
    assert len(load(out).names) == 12


def focus(page: playwright.Page, selector: str, key: str = "Tab") -> None:
    """Press a key until an element has the focus."""
    for _ in range(80):
        if page.locator(selector).evaluate("e => e === document.activeElement"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{key} does not reach {selector}")


def violations(page: playwright.Page) -> list[str]:
    """What axe finds wrong, with the elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


def test_all_is_done_by_keyboard_and_axe_finds_nothing_wrong(
    browser: playwright.Browser, start: Start, tmp_path: Path
) -> None:
    planted(tmp_path).save(tmp_path / "result")
    _, url = start(tmp_path / "result")
    page = browser.new_page(viewport={"width": 1366, "height": 768})
    page.set_default_timeout(15_000)
    page.goto(url)
    expect(page.locator(".dff-card")).to_have_count(3, timeout=90_000)
    focus(page, 'input[data-factor="0"]')
    page.keyboard.type("head")
    page.keyboard.press("Enter")
    revision(page, 1)
    expect(page.locator(".dff-chip", has_text="head").first).to_be_visible()
    focus(page, '[data-act="keep"][data-factor="1"]')
    page.keyboard.press("Enter")
    revision(page, 2)
    expect(page.locator(".dff-factor.background")).to_have_count(1)
    assert violations(page) == []

    page.keyboard.press("m")
    expect(page.locator("#mend-stage")).to_be_focused()
    expect(page.locator("#mend-mask")).to_have_attribute("src", re.compile("^data:image/png"))
    assert violations(page) == []
    for key in ("b", "Shift+ArrowDown", "ArrowRight", "Enter"):  # a dot of the brush
        page.keyboard.press(key)
    revision(page, 3)
    expect(page.locator("#mend-stage")).to_be_focused()
    focus(page, '#mend-view [data-act="leave"]', "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#mend-view")).to_have_count(0)
    page.keyboard.press("a")
    expect(page.locator("#progress-text")).to_have_text("1 accepted · 0 skipped · 2 to look at")
    # There is nothing more to redo, or to undo: the focus goes to the other button.
    page.keyboard.press("u")
    focus(page, "#redo", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#undo")).to_be_focused()

    focus(page, '[role="tab"]:has-text("Export")')
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_contain_text("in 1 image")
    focus(page, "#write")
    page.keyboard.press("Enter")
    expect(page.locator("#download")).to_be_visible()
    assert violations(page) == []
    focus(page, "#download")
    with page.expect_download() as downloading:
        page.keyboard.press("Enter")
    with ZipFile(downloading.value.path()) as archive:
        assert "annotations/instances_train.json" in archive.namelist()

    page.goto((tmp_path / "result" / "report.html").as_uri())
    assert violations(page) == []
    page.close()
