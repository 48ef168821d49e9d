"""Mends of one mask."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from deepff.app.kept_masks import NamedMask
from deepff.app.mending import (
    Stroke,
    cut,
    moved,
    painted,
    piece_alone,
    segmented,
    taken,
    without_class,
    without_hole,
    without_piece,
)
from deepff.app.segmenter import Segmenter
from deepff.errors import InputError
from deepff.layers.layer import Extent
from deepff.pictures.figures import photo_shape
from deepff.regions.clicks import CLICK_SIDE, ClickScene, click_scene


def drawn(*rows: str) -> NamedMask:
    """A mask drawn in digits: . is the background, 1 a bear, 2 a fish."""
    values = [[0 if c == "." else int(c) for c in row] for row in rows]
    return NamedMask(np.array(values, np.uint8), ("bear", "fish"))


def rows(mask: NamedMask) -> list[str]:
    return ["".join("." if value == 0 else str(value) for value in row) for row in mask.values]


def at(mask: NamedMask, row: int, column: int) -> tuple[float, float]:
    height, width = mask.values.shape
    return (column + 0.5) / width, (row + 0.5) / height


PIECES = drawn(
    "11....1.",
    "1.1...1.",
    ".1.22...",
    "...22.11",
)


def test_a_piece_hangs_together_at_corners_and_goes_alone() -> None:
    mended = without_piece(PIECES, at(PIECES, 2, 1))
    assert rows(mended) == ["......1.", "......1.", "...22...", "...22.11"]
    with pytest.raises(InputError, match="there is no piece here"):
        without_piece(PIECES, at(PIECES, 0, 4))


def test_one_piece_is_kept_of_its_class_alone() -> None:
    mended = piece_alone(PIECES, at(PIECES, 3, 7))
    assert rows(mended) == ["........", "........", "...22...", "...22.11"]


def test_a_hole_is_filled_by_what_has_most_of_its_rim() -> None:
    ring = drawn("11111.", "1..12.", "11222.", "......")
    mended = without_hole(ring, at(ring, 1, 1))
    assert rows(mended) == ["11111.", "11112.", "11222.", "......"]
    for row, column in ((3, 3), (0, 0)):
        with pytest.raises(InputError, match="no hole"):
            without_hole(ring, at(ring, row, column))


def test_the_brush_paints_round_its_line_and_no_further() -> None:
    blank = NamedMask(np.zeros((60, 120), np.uint8), ("bear",))
    mended = painted(blank, Stroke([(0.25, 0.5), (0.75, 0.5)], 0.1), "fish")
    assert mended.names == ("bear", "fish") and set(np.unique(mended.values)) == {0, 2}
    y, x = np.nonzero(mended.values)
    # 12 pixels wide, from 30 − 6 to 90 + 6.
    assert abs(y.min() - 23.5) <= 1 and abs(y.max() - 35.5) <= 1
    assert abs(x.min() - 24) <= 1 and abs(x.max() - 95) <= 1
    erased = painted(mended, Stroke([(0.5, 0.5)], 0.05), None)
    assert 20 <= np.count_nonzero(mended.values) - np.count_nonzero(erased.values) <= 50
    assert without_class(mended, "fish").values.sum() == 0


@pytest.mark.parametrize("size", [(60, 80), (3000, 4000)])
def test_a_cut_parts_what_touched(size: tuple[int, int]) -> None:
    height, width = size
    whole = np.zeros(size, np.uint8)
    whole[height // 4 : -height // 4, width // 8 : -width // 8] = 1
    slanted = Stroke([(0.4, 0.0), (0.6, 1.0)], 0.2)
    mended = cut(NamedMask(whole, ("bear",)), slanted)
    pieces, n = ndimage.label(mended.values, np.ones((3, 3)))
    first, second = np.bincount(pieces.ravel())[1:]
    assert n == 2 and 0.9 < first / second < 1.1
    assert np.count_nonzero(mended.values) > 0.9 * np.count_nonzero(whole)


def iou(mask: NamedMask, disc: np.ndarray) -> float:
    marked = mask.values > 0
    return float((marked & disc).sum() / (marked | disc).sum())


def plane_scene(scale: int = 1) -> tuple[np.ndarray, Callable[[Extent], ClickScene]]:
    """Where a red plane on a fading sky is, enlarged, and scenes of its parts."""
    y, x = np.mgrid[:160, :240]
    body = ((y - 80) / 9) ** 2 + ((x - 120) / 70) ** 2 < 1
    wings = (abs(x - 120) < 12) & (abs(y - 80) < 50)
    sky = np.stack([90 + y / 4, 140 + y / 4, 215 + y / 8], 2)
    noise = np.random.default_rng(0).normal(0, 4, sky.shape)
    photo = np.where((body | wings)[..., None], (190, 40, 40), sky) + noise
    picture = Image.fromarray(photo.clip(0, 255).astype(np.uint8))

    def scene_of(extent: Extent) -> ClickScene:
        (top, bottom), (left, right) = extent
        box = left * 240, top * 160, right * 240, bottom * 160
        shape = photo_shape((box[3] - box[1], box[2] - box[0]), CLICK_SIDE)
        pixels = np.array(picture.resize(shape[::-1], Image.Resampling.BILINEAR, box))
        return click_scene(pixels, np.zeros((1, *shape)), np.full(shape, 0.5))

    return (body | wings).repeat(scale, 0).repeat(scale, 1), scene_of


def test_one_click_takes_a_plane_on_the_sky_and_another_gives_it_back() -> None:
    plane, scene = plane_scene(4)
    blank = NamedMask(np.zeros(plane.shape, np.uint8), ("bird",))
    mended = taken(blank, scene, [(0.3, 0.5)], "plane", [])
    assert mended.names == ("bird", "plane") and set(np.unique(mended.values)) == {0, 2}
    assert iou(mended, plane) > 0.93
    assert taken(mended, scene, [(0.5, 0.3)], "plane", []).values.sum() == 0
    # A class is exchanged by a click while another is chosen.
    assert iou(taken(mended, scene, [(0.5, 0.3)], "bird", []), plane) > 0.93
    assert (taken(mended, scene, [(0.5, 0.3)], "bird", []).values != 2).all()


def test_a_click_leaves_what_is_surely_right_far_from_it() -> None:
    # An image of one color, in which the maps are sure of a bar, and a mask with a bump on it.
    bar = np.zeros((160, 240), bool)
    bar[60:120, 20:220] = True
    likely = np.where(bar, 0.97, 0.03)
    mask = bar.copy()
    mask[48:60, 110:130] = True
    scene = click_scene(np.full((160, 240, 3), 128, np.uint8), np.zeros((1, 160, 240)), likely)
    after = taken(
        NamedMask(mask.astype(np.uint8), ("bar",)), lambda _: scene, [(0.5, 0.34)], "bar", []
    )
    changed = (after.values > 0) != mask
    y, x = np.nonzero(changed & bar)
    # The click is 7 pixels deep, so that it may reach 2 · (2 · 7 + 2) across.
    assert np.hypot(y - 54, x - 120).max(initial=0) <= 33
    assert changed[48:60, 110:130].mean() > 0.9


def test_a_click_takes_a_halo_away_around_it_and_keeps_what_was_clicked_earlier() -> None:
    plane, scene = plane_scene()
    halo = ndimage.binary_dilation(plane, iterations=6)
    mask = NamedMask(halo.astype(np.uint8), ("plane",))
    on_halo = at(mask, 27, 120)
    assert halo[27, 120] and not plane[27, 120]
    mended = taken(mask, scene, [on_halo], "plane", [])
    changed = mended.values != mask.values
    assert (changed & halo & ~plane)[:70].sum() > 0.9 * (halo & ~plane)[:70].sum()
    assert (changed & plane).sum() < 0.01 * plane.sum()
    # A click close to a border sees what is near it: 48 pixels of 240.
    assert not changed[76:].any() and (changed == changed[:, ::-1]).mean() > 0.99
    kept = taken(mask, scene, [on_halo], "plane", [at(mask, 133, 120)])
    assert kept.values[133, 120] and not kept.values[27, 120]


def test_a_box_takes_what_stands_out_in_it_and_nothing_beyond() -> None:
    plane, scene = plane_scene()
    blank = NamedMask(np.zeros(plane.shape, np.uint8), ())
    mended = taken(blank, scene, [at(blank, 22, 45), at(blank, 138, 195)], "plane", [])
    assert iou(mended, plane) > 0.9
    # Corners in any order; what is outside of the box is not touched.
    half = taken(blank, scene, [at(blank, 138, 195), at(blank, 22, 120)], "plane", [])
    assert not half.values[:, :119].any() and half.values[:, 121:].any()


@pytest.fixture(scope="module")
def sam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small SAM of random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "image_size": 64, "patch_size": 8}
    layer = {"num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 16}
    vision = {"output_channels": 16, "num_pos_feats": 8, "global_attn_indexes": [0]}
    config = transformers.SamConfig(
        vision_config={**small, **layer, **vision, "window_size": 4},
        prompt_encoder_config={**small, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": 16, **layer, "iou_head_hidden_dim": 16},
    )
    images = transformers.SamImageProcessor(
        size={"longest_edge": 64},
        pad_size={"height": 64, "width": 64},
        mask_size={"longest_edge": 32},
        mask_pad_size={"height": 32, "width": 32},
    )
    folder = tmp_path_factory.mktemp("sam")
    transformers.SamModel(config).save_pretrained(folder)
    transformers.SamProcessor(images).save_pretrained(folder)
    return folder


def test_a_sam_of_transformers_answers_as_it_does_there(sam: Path) -> None:
    transformers = pytest.importorskip("transformers")
    photo = np.random.default_rng(0).integers(0, 255, (60, 90, 3)).astype(np.uint8)
    before = np.zeros((60, 90), bool)
    network = transformers.SamModel.from_pretrained(sam).eval()
    processor = transformers.SamProcessor.from_pretrained(sam)
    points = {"input_points": [[[[45.0, 30.0], [9.0, 6.0]]]], "input_labels": [[[1, 0]]]}
    inputs = processor(photo, return_tensors="pt", **points)
    with torch.no_grad():
        outputs = network(**inputs)
    sizes = inputs["original_sizes"], inputs["reshaped_input_sizes"]
    best = int(outputs.iou_scores[0, 0].argmax())
    expected = processor.post_process_masks(outputs.pred_masks, *sizes)[0][0][best].numpy()
    segmenter = Segmenter(f"hf/{sam}", "cpu")
    marked = segmenter(photo, [(0.5, 0.5), (0.1, 0.1)], [True, False], None, before)
    assert marked.shape == (60, 90) and 0 < marked.mean() < 1
    assert (marked == expected).all()
    # The mask before, and a box, count too.
    before[:20] = True
    again = segmenter(photo, [(0.5, 0.5), (0.1, 0.1)], [True, False], None, before)
    assert (again != marked).any()


def test_what_is_no_segmenter_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match=r"no segmenter that can be had.*hf/OWNER/NAME"):
        Segmenter(str(tmp_path))
    monkeypatch.setattr("deepff.networks.available.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package transformers.*deepff\[transformers\]"):
        Segmenter("hf/facebook/sam-vit-base")


def test_a_segmenter_gets_all_clicks_and_what_it_marks_is_taken_in_one_piece() -> None:
    asked = []

    def segment(points, are_inside, box, before):  # type: ignore[no-untyped-def]
        asked.append((points, are_inside, box, before.sum()))
        marked = np.zeros((10, 20), bool)
        marked[2:5, 2:6] = marked[7:9, 12:16] = True
        return marked

    blank = NamedMask(np.zeros((10, 20), np.uint8), ("bird",))
    one = segmented(blank, segment, [at(blank, 3, 3)], "plane", [at(blank, 9, 19)])
    assert asked[0][1:] == ([True, False], None, 0)
    assert one.names == ("bird", "plane") and (one.values == 2).sum() == one.values[2:5, 2:6].size
    both = segmented(blank, segment, [at(blank, 0, 0), at(blank, 9, 19)], "plane", [])
    assert asked[1][2] == (at(blank, 0, 0), at(blank, 9, 19)) and (both.values == 2).sum() == 20
    # A click on the class takes away what the segmenter no longer marks.
    full = NamedMask(np.full((10, 20), 2, np.uint8), ("bird", "plane"))
    less = segmented(full, segment, [at(full, 0, 0)], "plane", [at(full, 3, 3)])
    assert asked[2][1] == [False, True] and (less.values > 0).sum() == 20


def test_a_piece_is_moved_to_another_class_and_so_is_all_that_is_marked() -> None:
    values = np.zeros((10, 20), np.uint8)
    values[2:5, 2:6] = values[7:9, 2:6] = 1
    values[2:5, 10:16] = 2
    mask = NamedMask(values, ("door", "wheel"))
    one = moved(mask, [at(mask, 3, 4)], "headlight")
    assert one.names == ("door", "wheel", "headlight")
    assert (one.values == 3).sum() == 12 and (one.values == 1).sum() == 8
    every = moved(mask, [], "wheel")
    assert (every.values == 2 * (values > 0)).all()
    with pytest.raises(InputError, match="no piece here"):
        moved(mask, [at(mask, 0, 0)], "wheel")
