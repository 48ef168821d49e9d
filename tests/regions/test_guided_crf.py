from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from planted import result_of
from torch.nn import functional

import deepff.regions.guided_crf as module
from deepff.errors import InputError
from deepff.options import RegionOptions, Threshold
from deepff.regions.guided_crf import Numbers, dff_crf, guided_crf, mean_field
from deepff.regions.probabilities import (
    refined_masks,
    unary_probabilities,
    without_holes,
)
from deepff.regions.regions import find_regions
from deepff.regions.thresholds import masks
from deepff.result import Result


def box_mean(values: np.ndarray, radius: int) -> np.ndarray:
    """Mean over (2r + 1)² windows of the last two axes, the image mirrored at its borders."""
    padding = [(0, 0)] * (values.ndim - 2) + [(radius, radius)] * 2
    mirrored = np.pad(values, padding, mode="reflect")
    side = 2 * radius + 1
    return sliding_window_view(mirrored, (side, side), axis=(-2, -1)).mean((-2, -1))


def guided_filter(image: np.ndarray, p: np.ndarray, radius: int, eps: float) -> np.ndarray:
    """He, Sun & Tang (2013), Eqs. 19-21, pixel by pixel, float64: image (3, H, W), p (H, W)."""
    mean_i, mean_p = box_mean(image, radius), box_mean(p, radius)
    products = image[:, None] * image[None]
    sigma = box_mean(products, radius) - mean_i[:, None] * mean_i[None]
    covariance = box_mean(image * p, radius) - mean_i * mean_p
    a, b = np.empty_like(image), np.empty_like(p)
    for y, x in np.ndindex(p.shape):
        a[:, y, x] = np.linalg.solve(sigma[:, :, y, x] + eps * np.eye(3), covariance[:, y, x])
        b[y, x] = mean_p[y, x] - a[:, y, x] @ mean_i[:, y, x]
    return (box_mean(a, radius) * image).sum(0) + box_mean(b, radius)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(0))
    return exponentials / exponentials.sum(0)


@pytest.mark.parametrize("n_iter", [1, 3])
def test_mean_field_is_the_formula_with_the_published_filter(n_iter: int) -> None:
    rng = np.random.default_rng(0)
    image = rng.random((3, 11, 14))
    unary = rng.random((2, 11, 14)) * 0.45 + 0.02
    log_unary = np.log(np.concatenate([1 - unary.sum(0, keepdims=True), unary]))
    q = softmax(log_unary)
    for _ in range(n_iter):
        filtered = np.stack([guided_filter(image, label, radius=3, eps=1e-2) for label in q])
        q = softmax(log_unary + 5.0 * filtered)

    found = mean_field(
        torch.from_numpy(image).float()[None],
        torch.from_numpy(unary).float()[None],
        Numbers(5.0, 3 / 14, 1e-2, n_iter),
    )

    np.testing.assert_allclose(found.softmax(1)[0], q, atol=1e-4)


def test_without_weight_or_iterations_the_unaries_come_back() -> None:
    image, maps = torch.rand(3, 30, 40), torch.rand(3, 30, 40)
    limits = torch.tensor([0.5, 0.2, 0.8])
    expected = unary_probabilities(maps, limits)
    for weight, n_iter in ((0.0, 3), (12.0, 0)):
        found = mean_field(image[None], expected[None], Numbers(weight, 0.1, 1e-4, n_iter))
        torch.testing.assert_close(found.softmax(1)[0, 1:], expected)


def test_unary_of_one_factor() -> None:
    # u² / (u² + t²) with t = 0.5: 1/2 at t, .64 / .89 at .8, held within [.02, .98] elsewhere
    maps = torch.tensor([[[0.5, 0.8, 0.0, -0.9]]])
    expected = torch.tensor([[[0.5, 0.64 / 0.89, 0.02, 0.02]]])
    torch.testing.assert_close(unary_probabilities(maps, torch.tensor([0.5])), expected)


def test_unary_at_thresholds_of_zero_and_infinity() -> None:
    maps = torch.tensor([[[0.0, 1e-20, 0.5]]])
    found = unary_probabilities(maps, torch.tensor([0.0]))
    torch.testing.assert_close(found, torch.tensor([[[0.02, 0.02, 0.98]]]))
    found = unary_probabilities(maps, torch.tensor([float("inf")]))
    torch.testing.assert_close(found, torch.tensor([[[0.02, 0.02, 0.02]]]))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), k=st.integers(1, 5), data=st.data())
def test_unaries_keep_the_thresholds_meaning(seed: int, k: int, data: st.DataObject) -> None:
    maps = torch.rand(k, 9, 8, generator=torch.Generator().manual_seed(seed))
    maps[maps < 0.2] = 0
    levels = st.sampled_from([0.0, 0.1, 0.55, 0.9, float("inf")])
    limits = torch.tensor(data.draw(st.lists(levels, min_size=k, max_size=k)))
    unary = unary_probabilities(maps, limits)
    on = masks(maps, limits)

    assert (unary > 0).all()
    assert (unary.sum(0) <= 0.98 + 1e-6).all()
    near = ((maps - limits[:, None, None]).abs() < 1e-5).any(0)
    assert (refined_masks(unary).any(0) == on.any(0))[~near].all()


def square(colour: tuple[float, float, float], rows: slice, columns: slice) -> torch.Tensor:
    image = torch.full((3, 96, 128), 0.2)
    image[:, rows, columns] = torch.tensor(colour)[:, None, None]
    return image


def test_a_blurred_map_snaps_to_the_edges_of_the_image() -> None:
    image = square((0.9, 0.3, 0.1), slice(24, 72), slice(40, 96))
    truth = image[0] > 0.5
    coarse = functional.interpolate(truth[None, None].float(), (3, 4), mode="area")
    blurred = functional.interpolate(coarse, (96, 128), mode="bilinear")[0]
    limits = torch.tensor([0.5 * blurred.max()])

    before = masks(blurred, limits)[0]
    after = refined_masks(guided_crf(image, blurred, limits))[0]

    def iou(mask: torch.Tensor) -> float:
        return float((mask & truth).sum() / (mask | truth).sum())

    assert iou(before) < 0.9
    assert iou(after) > 0.99


def test_the_result_does_not_depend_on_the_images_scale() -> None:
    image = square((0.9, 0.3, 0.1), slice(24, 72), slice(40, 96))
    large = functional.interpolate(image[None], scale_factor=3, mode="nearest")[0]
    maps = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))
    limits = torch.tensor([0.5, 0.6])
    small_result = guided_crf(image, maps, limits)
    large_result = guided_crf(large, maps, limits)
    assert large_result.shape == (2, 288, 384)
    back = functional.interpolate(large_result[None], (96, 128), mode="area")[0]
    assert float((back - small_result).abs().mean()) < 0.01


def test_bytes_and_floats_are_the_same_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    floats = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    maps, limits = torch.rand(2, 4, 3), torch.tensor([0.5, 0.5])
    assert torch.equal(guided_crf(pixels, maps, limits), guided_crf(floats, maps, limits))


@settings(deadline=None, max_examples=25)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    k=st.integers(1, 4),
    flat=st.booleans(),
    limit=st.sampled_from([0.0, 0.4, float("inf")]),
)
def test_probabilities_are_probabilities_at_any_size(
    height: int, width: int, k: int, flat: bool, limit: float
) -> None:
    generator = torch.Generator().manual_seed(height)
    image = torch.rand(3, height, width, generator=generator)
    maps = torch.rand(k, 2, 3, generator=generator)
    if flat:
        image, maps = torch.zeros_like(image), torch.zeros_like(maps)
    found = guided_crf(image, maps, torch.full((k,), limit))
    assert found.shape == (k, height, width)
    assert (found >= 0).all()
    assert (found.sum(0) <= 1 + 1e-5).all()


def test_labels_weigh_the_background_against_all_factors_together() -> None:
    probabilities = torch.tensor([[[0.3, 0.2, 0.25]], [[0.25, 0.2, 0.25]]])
    # .55 of factors, factor 0 first; .4 of factors; .5 of factors, a tie
    assert refined_masks(probabilities).tolist() == [[[True, False, True]], [[False] * 3]]


def test_a_box_around_the_object_is_cut_to_its_outline(data_root: Path) -> None:
    group = next((data_root / "icoseg" / "ground_truth").glob("021*"))
    before, after = np.zeros(2), np.zeros(2)
    for path in sorted(group.iterdir())[:5]:
        photo = data_root / "icoseg" / "images" / group.name / f"{path.stem}.jpg"
        image = np.array(Image.open(photo).convert("RGB"))
        truth = torch.from_numpy(np.array(Image.open(path).convert("L")) > 0)
        # the object seen on a grid as coarse as a network's last layer
        height, width = truth.shape
        shape = max(1, round(height / 36)), max(1, round(width / 36))
        coarse = functional.interpolate(truth[None, None].float(), shape, mode="area")[0]
        blurred = functional.interpolate(coarse[None], (height, width), mode="bilinear")[0]
        limits = torch.tensor([0.3])
        for counts, mask in (
            (before, masks(blurred, limits)[0]),
            (after, refined_masks(guided_crf(image, coarse, limits))[0]),
        ):
            counts += [float((mask & truth).sum()), float((mask | truth).sum())]
    assert after[0] / after[1] > before[0] / before[1] + 0.03


def test_what_factors_enclose_is_theirs_in_proportion() -> None:
    ring, bay = torch.full((2, 2, 6, 7), 0.1)
    # A ring of both factors around one pixel; a bay that opens to the border.
    ring[0, 1:4, 1:3] = 0.8
    ring[1, 1:4, 3] = 0.8
    ring[:, 2, 2] = torch.tensor([0.3, 0.1])
    bay[0, 1:6, 2:5] = 0.8
    bay[0, 3:6, 3] = 0.1

    filled = without_holes(ring)

    assert torch.allclose(filled[:, 2, 2], torch.tensor([0.75, 0.25]))
    filled[:, 2, 2] = ring[:, 2, 2]
    assert torch.equal(filled, ring)
    assert torch.equal(without_holes(bay), bay)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.3, 0.8))
def test_holes_are_those_that_scipy_fills(seed: int, share: float) -> None:
    from scipy.ndimage import binary_fill_holes

    on = torch.rand(1, 9, 11, generator=torch.Generator().manual_seed(seed)) < share
    filled = without_holes(on.float() * 0.9 + 0.05)
    assert np.array_equal(refined_masks(filled)[0].numpy(), binary_fill_holes(on[0].numpy()))


def refined_by_the_text(
    photos: list[np.ndarray], maps: list[np.ndarray], percent: float
) -> list[np.ndarray]:
    """Masks (H, W) of one factor, step by step as Collins et al. have it, in float64.

    The maps at the photographs' size are the unaries, mean field refines them, and then comes the
    percentile over all pixels of the set.
    """
    largest = max(of_image.max() for of_image in maps)
    refined = []
    for photo, of_image in zip(photos, maps, strict=True):
        image = photo.transpose(2, 0, 1) / 255
        factor = 0.01 + 0.98 * of_image / largest
        q = log_unary = np.log(np.stack([1 - factor, factor]))
        radius = round(module._PAPERS.radius * max(photo.shape[:2]))
        for _ in range(module._PAPERS.n_iter):
            filtered = np.stack(
                [guided_filter(image, label, radius, module._PAPERS.eps) for label in softmax(q)]
            )
            q = log_unary + module._PAPERS.weight * filtered
        refined.append(softmax(q)[1])
    limit = np.percentile(np.concatenate([q.ravel() for q in refined]), percent)
    return [q >= limit for q in refined]


def photographed(folder: Path, maps: torch.Tensor) -> tuple[Result, list[np.ndarray]]:
    """A result with maps (n, k, H, W) on a grid of pixels, and its photographs, (H, W, 3) uint8."""
    rng = np.random.default_rng(0)
    height, width = maps.shape[-2:]
    photos = []
    for index in range(len(maps)):
        photo = rng.integers(0, 40, (height, width, 3))
        photo[2 : height // 2, width // 4 : 3 * width // 4] += rng.integers(60, 200, 3)
        photos.append(photo.astype(np.uint8))
        Image.fromarray(photos[-1]).save(folder / f"{index}.png")
    return result_of(maps, [f"{index}.png" for index in range(len(maps))], folder), photos


def blobs(n: int, k: int, height: int, width: int) -> torch.Tensor:
    """Maps (n, k, H, W) as smooth as upsampled ones, of any maximum."""
    generator = torch.Generator().manual_seed(7)
    coarse = torch.rand(n, k, 3, 4, generator=generator) ** 2
    return 5 * functional.interpolate(coarse, (height, width), mode="bilinear")


@pytest.mark.parametrize("percent", [75.0, 50.0])
def test_dff_crf_is_the_order_of_the_text(tmp_path: Path, percent: float) -> None:
    maps = blobs(3, 2, 18, 24)
    result, photos = photographed(tmp_path, maps)
    options = RegionOptions("percentile", percent, refine="dff-crf")
    found = [regions.masks.numpy() for regions in find_regions(result, 2, options)]
    for factor in range(2):
        expected = refined_by_the_text(photos, [*maps[:, factor].double().numpy()], percent)
        same = np.mean([f[factor] == e for f, e in zip(found, expected, strict=True)])
        assert same > 0.998  # of 1,296 pixels at most two at the threshold


@pytest.mark.parametrize("k", [1, 3])
def test_masks_of_dff_crf_are_a_quarter_of_the_set_and_may_overlap(tmp_path: Path, k: int) -> None:
    maps = blobs(4, 1, 20, 30).repeat(1, k, 1, 1) * torch.arange(1, k + 1)[:, None, None]
    result, _ = photographed(tmp_path, maps)
    found = list(find_regions(result, k, RegionOptions(refine="dff-crf")))
    shares = torch.stack([regions.masks for regions in found]).float().mean((0, 2, 3))
    torch.testing.assert_close(shares, torch.full((k,), 0.25), atol=2e-3, rtol=0)
    # Factors with the same map but for its scale have the same masks.
    assert all(torch.equal(regions.masks[0], mask) for regions in found for mask in regions.masks)


@pytest.mark.parametrize(
    ("threshold", "value"), [("percentile", 75), ("percentile", 90), ("otsu", None)]
)
def test_without_weight_dff_crf_leaves_the_masks_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: str, value: float | None
) -> None:
    """The refined map is then the log-odds of the map, which keep the order of all pixels."""
    monkeypatch.setattr(module, "_PAPERS", module._PAPERS._replace(weight=0.0))
    maps = blobs(3, 2, 18, 24)
    result, _ = photographed(tmp_path, maps)
    refined = [dff_crf(torch.rand(3, 18, 24), of_image / 5) for of_image in maps]
    for before, after in zip(maps, refined, strict=True):
        for factor in range(2):
            order = before[factor].flatten().argsort(stable=True)
            assert (after[factor].flatten()[order].diff() >= -1e-6).all()
    if threshold == "percentile":
        plain = find_regions(result, 2, RegionOptions(threshold, value))
        crf = find_regions(result, 2, RegionOptions(threshold, value, "dff-crf"))
        for one, other in zip(plain, crf, strict=True):
            assert float((one.masks != other.masks).float().mean()) < 2e-3


def test_a_factor_that_an_image_lacks_is_nowhere_in_it(tmp_path: Path) -> None:
    maps = blobs(3, 2, 18, 24)
    maps[1, 0] = 0  # factor 0 is in two images of three, factor 1 in none
    maps[:, 1] = 0
    result, _ = photographed(tmp_path, maps)
    for threshold in Threshold:
        found = list(find_regions(result, 2, RegionOptions(threshold, refine="dff-crf")))
        assert [bool(regions.masks[0].any()) for regions in found] == [True, False, True]
        assert not any(regions.masks[1].any() for regions in found)


def test_dff_crf_follows_the_edge_of_an_object_under_a_blurred_map(tmp_path: Path) -> None:
    """A square of a quarter of the pixels: the refined map's 75th percentile is its outline."""
    truth = torch.zeros(1, 1, 64, 96)
    truth[..., 16:48, 24:72] = 1
    coarse = functional.interpolate(truth, (4, 6), mode="area")
    maps = functional.interpolate(coarse, (64, 96), mode="bilinear")
    photo = np.where(truth[0, 0, ..., None].bool(), [230, 80, 30], [40, 60, 50]).astype(np.uint8)
    result, _ = photographed(tmp_path, maps)
    Image.fromarray(photo).save(tmp_path / "0.png")

    def differing(refine: str) -> float:
        (regions,) = find_regions(result, 1, RegionOptions(refine=refine))
        return float((regions.masks[0] != truth[0, 0].bool()).float().mean())

    assert differing("none") > 0.01
    assert differing("dff-crf") < 0.002


def test_dff_crf_needs_every_photograph_of_the_set(tmp_path: Path) -> None:
    result, _ = photographed(tmp_path, blobs(3, 1, 18, 24))
    (tmp_path / "2.png").unlink()
    with pytest.raises(InputError, match=r"2\.png, which can no longer be used"):
        next(find_regions(result, 1, RegionOptions(refine="dff-crf")))
