from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from deepff.regions.bilateral_grid import BilateralGrid
from deepff.regions.dense_crf import (
    crf_kernels,
    dense_crf,
    mean_field,
    normalized_kernel,
    refined_by_kernels,
    smoothness_kernel,
)
from deepff.regions.probabilities import refined_masks, unary_probabilities


def exact_mean_field(
    image: np.ndarray,
    unary: np.ndarray,
    kernels: list[tuple[float, np.ndarray]],
    n_iter: int,
) -> np.ndarray:
    """Krähenbühl & Koltun (2011), Algorithm 1, over all pairs of pixels, float64.

    Image (3, H, W), unary (k, H, W); a kernel is (weight, standard deviations of x, y, r, g, b).
    """
    _, height, width = image.shape
    y, x = np.indices((height, width))
    features = np.stack([x, y, *image]).reshape(5, -1)
    labels = np.concatenate([1 - unary.sum(0, keepdims=True), unary])
    log_unary = np.log(labels).reshape(len(labels), -1)
    q = labels.reshape(len(labels), -1)
    normalized = []
    for weight, sigmas in kernels:
        scaled = features / sigmas[:, None]
        distances = ((scaled[:, :, None] - scaled[:, None]) ** 2).sum(0)
        kernel = np.exp(-distances / 2)
        root = kernel.sum(1) ** -0.5
        normalized.append(weight * root[:, None] * kernel * root)
    for _ in range(n_iter):
        logits = log_unary + sum(q @ kernel for kernel in normalized)
        q = np.exp(logits - logits.max(0))
        q /= q.sum(0)
    return q.reshape(labels.shape)[1:]


def by_kernels(image: np.ndarray, unary: np.ndarray, **settings: float) -> np.ndarray:
    """The dense CRF of one image, with another weight or number of iterations."""
    kernels = crf_kernels(torch.from_numpy(image).float()[None])
    return refined_by_kernels(kernels, torch.from_numpy(unary).float()[None], **settings)[0].numpy()


def smoothness_sigmas(sigma: float) -> np.ndarray:
    return np.array([sigma, sigma, np.inf, np.inf, np.inf])


def bilateral_sigmas(position: float, color: float) -> np.ndarray:
    return np.array([position, position, *3 * [color / 255]])


def noisy_scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two coloured regions on grey with noise, and unaries of them, displaced and noisier."""
    rng = np.random.default_rng(seed)
    image, unary = np.full((3, 20, 24), 0.3), np.full((2, 20, 24), 0.15)
    colors = np.array([[0.8, 0.4, 0.2], [0.2, 0.5, 0.7]])
    corners = [(4, 2), (8, 14)]
    for factor, (color, (top, left)) in enumerate(zip(colors, corners, strict=True)):
        image[:, top : top + 10, left : left + 8] = color[:, None, None]
        unary[factor, top - 2 : top + 8, left + 1 : left + 9] = 0.6
    image += rng.normal(0, 0.03, image.shape)
    unary += rng.uniform(-0.13, 0.13, unary.shape)
    return image.clip(0, 1), unary


@pytest.mark.parametrize("n_iter", [1, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_the_brute_force_mean_field(seed: int, n_iter: int) -> None:
    image, unary = noisy_scene(seed)
    kernels = [(3.0, smoothness_sigmas(2.0)), (5.0, bilateral_sigmas(0.12 * 24, 13.0))]
    expected = exact_mean_field(image, unary, kernels, n_iter)
    found = by_kernels(image, unary, n_iter=n_iter)
    assert (expected > 0.5).mean((1, 2)).min() > 0.1
    # The grid's colours are those of a palette, which shows in the few pixels in doubt.
    assert np.abs(found - expected).mean() < 0.005
    assert ((found > 0.5) != (expected > 0.5)).mean() < 0.01


@pytest.mark.parametrize("n_iter", [1, 5])
def test_with_smoothness_alone_it_is_the_brute_force_mean_field_exactly(n_iter: int) -> None:
    image, unary = noisy_scene(0)
    expected = exact_mean_field(image, unary, [(3.0, smoothness_sigmas(2.0))], n_iter)
    found = by_kernels(image, unary, bilateral_weight=0, n_iter=n_iter)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_mean_field_with_an_exact_bilateral_kernel_is_the_brute_force_one() -> None:
    image, unary = noisy_scene(0)
    sigmas = bilateral_sigmas(3.0, 13.0)
    y, x = np.indices(image.shape[1:])
    scaled = np.stack([x, y, *image]).reshape(5, -1) / sigmas[:, None]
    exact = np.exp(-((scaled[:, :, None] - scaled[:, None]) ** 2).sum(0) / 2)
    matrix = torch.from_numpy(exact)

    def kernel(labels: torch.Tensor) -> torch.Tensor:
        return (labels.flatten(2) @ matrix).view_as(labels)

    normalized = normalized_kernel(kernel, torch.ones(1, 1, *image.shape[1:], dtype=torch.float64))
    found = mean_field(torch.from_numpy(unary)[None], [(5.0, normalized)], n_iter=5)[0]
    expected = exact_mean_field(image, unary, [(5.0, sigmas)], n_iter=5)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def bilateral_sums(
    image: torch.Tensor, values: torch.Tensor, position_sigma: float, color_sigma: float
) -> torch.Tensor:
    """Over all pairs of pixels, float64: image uint8 (3, H, W), values (labels, H, W)."""
    y, x = torch.meshgrid(*(torch.arange(side) for side in image.shape[1:]), indexing="ij")
    features = torch.stack(
        [x / position_sigma, y / position_sigma, *(image / color_sigma)]
    ).double()
    points = features.flatten(1).T
    kernel = torch.cdist(points, points).square().mul(-0.5).exp()
    return (values.double().flatten(1) @ kernel).view_as(values)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    shape=st.sampled_from([(1, 1), (1, 30), (40, 3), (24, 32), (33, 47)]),
    n_colors=st.integers(1, 200),
    position_sigma=st.sampled_from([0.01, 0.8, 2.0, 5.0, 6.0, 9.0, 50.0]),
    color_sigma=st.sampled_from([0.01, 5.0, 13.0, 80.0]),
)
def test_of_as_many_colours_as_a_palette_holds_sums_and_means_are_those_over_all_pairs(
    seed: int,
    shape: tuple[int, int],
    n_colors: int,
    position_sigma: float,
    color_sigma: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Pillow's palette keeps such colours apart.
    codes = torch.randperm(512, generator=generator)[:n_colors]
    colors = torch.stack([codes // 64, codes // 8 % 8, codes % 8]) * 32 + 16
    of_pixels = torch.randint(n_colors, shape, generator=generator)
    image = colors[:, of_pixels].to(torch.uint8)
    values = torch.rand(2, *shape, generator=generator)
    values[1] = 1
    expected = bilateral_sums(image, values, position_sigma, color_sigma)
    found = BilateralGrid(image[None], position_sigma, color_sigma).filter(values[None])[0]
    if position_sigma < 6:  # each pixel is a node
        found = found.double() * (expected.sum() / found.sum())  # it may scale all sums alike
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    means, expected_means = found[0] / found[1], expected[0] / expected[1]
    assert float((means - expected_means).abs().mean()) < 0.01


def test_on_a_photograph_means_of_what_is_near_and_looks_alike_are_right(data_root: Path) -> None:
    photo, unary, _ = scene_of_real_image(data_root)
    image = torch.from_numpy(photo[::6, ::6]).permute(2, 0, 1)
    values = functional.interpolate(unary[None], image.shape[1:], mode="bilinear")[0]
    both = torch.cat([values, torch.ones_like(values)])
    expected = bilateral_sums(image, both, 0.12 * max(image.shape), 13.0)
    found = BilateralGrid(image[None], 0.12 * max(image.shape), 13.0).filter(both[None])[0]
    mean, expected_mean = found[0] / found[1], expected[0] / expected[1]
    assert float(expected_mean.std()) > 0.1
    assert float((mean - expected_mean).square().mean().sqrt()) < 0.04


def test_the_bilateral_kernel_does_not_mix_the_images_of_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(256, (3, 12, 16), generator=generator, dtype=torch.uint8)
    images = image.expand(2, -1, -1, -1)
    labels = torch.zeros(2, 1, 12, 16)
    labels[0, 0, 5, 5] = 1
    filtered = BilateralGrid(images, 3.0, 60.0).filter(labels)
    assert float(filtered[0].max()) > 0
    assert float(filtered[1].abs().max()) == 0


def test_the_smoothness_kernel_of_one_pixel_is_the_gaussian_around_it() -> None:
    labels = torch.zeros(1, 1, 9, 11)
    labels[0, 0, 4, 3] = 1
    filtered = smoothness_kernel(torch.zeros(1, 3, 9, 11), 2.0)(labels)[0, 0]
    assert filtered[4, 3] == 1
    assert float(filtered[4, 5]) == pytest.approx(np.exp(-0.5))
    assert float(filtered[6, 5]) == pytest.approx(np.exp(-1))


def test_without_weights_or_iterations_the_unaries_come_back() -> None:
    generator = torch.Generator().manual_seed(0)
    kernels = crf_kernels(torch.rand(1, 3, 30, 40, generator=generator))
    maps = torch.rand(1, 3, 30, 40, generator=generator)
    unary = unary_probabilities(maps, torch.tensor([0.5, 0.2, 0.8]))
    unweighted = mean_field(unary, [(0.0, kernels.smoothness), (0.0, kernels.bilateral)], n_iter=5)
    torch.testing.assert_close(unweighted, unary)
    torch.testing.assert_close(refined_by_kernels(kernels, unary, n_iter=0), unary)


def test_on_a_constant_image_a_ramp_becomes_a_steeper_one_at_the_same_place() -> None:
    ramp = torch.linspace(0.1, 0.9, 80).expand(1, 60, 80)
    refined = dense_crf(torch.full((3, 60, 80), 0.4), ramp)[0]
    sure = (ramp[0] - 0.5).abs() > 0.02
    assert ((refined > 0.5) == (ramp[0] > 0.5))[sure].all()
    assert float(refined.diff(dim=1).min()) > -1e-3
    assert float((refined - refined[:1]).abs().mean()) < 0.02
    assert (refined[:, 60:] > ramp[0, :, 60:]).all() and (refined[:, :20] < ramp[0, :, :20]).all()


def iou(mask: torch.Tensor, truth: torch.Tensor) -> float:
    return float((mask & truth).sum() / (mask | truth).sum())


def test_a_blurred_map_snaps_to_the_edge_between_two_colours() -> None:
    image = torch.full((3, 96, 128), 0.2)
    image[:, 24:72, 40:96] = torch.tensor([0.9, 0.3, 0.1])[:, None, None]
    truth = image[0] > 0.5
    coarse = functional.interpolate(truth[None, None].float(), (3, 4), mode="area")
    blurred = functional.interpolate(coarse, (96, 128), mode="bilinear")[0]
    unary = unary_probabilities(blurred, torch.tensor([0.5 * blurred.max()]))
    assert iou(unary[0] >= 0.5, truth) < 0.9
    assert iou(dense_crf(image, unary)[0] >= 0.5, truth) > 0.99


def test_two_factors_each_snap_to_their_own_colour() -> None:
    image = torch.full((3, 64, 96), 0.2)
    colors = torch.tensor([[0.9, 0.3, 0.1], [0.1, 0.4, 0.9]])
    truth = torch.zeros(2, 64, 96, dtype=torch.bool)
    truth[0, 16:48, 16:48] = True
    truth[1, 16:48, 48:80] = True
    for color, region in zip(colors, truth, strict=True):
        image[:, region] = color[:, None]
    coarse = functional.interpolate(truth[None].float(), (4, 6), mode="area")
    blurred = functional.interpolate(coarse, (64, 96), mode="bilinear")[0]
    unary = unary_probabilities(blurred, torch.tensor([0.5, 0.5]))
    for mask, region in zip(refined_masks(dense_crf(image, unary)), truth, strict=True):
        assert iou(mask, region) > 0.98


def test_kernels_serve_several_maps_of_an_image() -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(3, 30, 40, generator=generator)
    kernels = crf_kernels(image[None])
    for k in (1, 3):
        unary = torch.rand(k + 1, 6, 8, generator=generator).softmax(0)[1:]
        assert torch.equal(refined_by_kernels(kernels, unary[None])[0], dense_crf(image, unary))


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1000),
    k=st.integers(1, 4),
    shape=st.sampled_from([(1, 1), (1, 9), (13, 2), (20, 24), (70, 33)]),
    kind=st.sampled_from(["noise", "black", "two colours"]),
    extreme=st.booleans(),
)
def test_the_result_is_probabilities(
    seed: int, k: int, shape: tuple[int, int], kind: str, extreme: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(3, *shape, generator=generator)
    image = {"noise": image, "black": image * 0, "two colours": image.round()}[kind]
    unary = torch.rand(k + 1, *shape, generator=generator).softmax(0)[1:]
    if extreme:  # 0 and 1 exactly: one label is certain everywhere
        unary = (unary == unary.amax(0)).float()
    refined = dense_crf(image, unary, size=50)
    assert refined.shape == unary.shape
    assert float(refined.min()) >= 0
    assert float(refined.sum(0).max()) <= 1 + 1e-5


def scene_of_real_image(data_root: Path) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """A photograph, unaries from its object seen on a coarse grid, and the object's mask."""
    from PIL import Image

    truth_path = sorted(next((data_root / "icoseg" / "ground_truth").glob("028*")).iterdir())[0]
    photo = data_root / "icoseg" / "images" / truth_path.parent.name / f"{truth_path.stem}.jpg"
    truth = torch.from_numpy(np.array(Image.open(truth_path).convert("L")) > 0)
    shape = tuple(max(1, round(side / 36)) for side in truth.shape)
    coarse = functional.interpolate(truth[None, None].float(), shape, mode="area")[0]
    unary = unary_probabilities(coarse, torch.tensor([0.4]))
    return np.array(Image.open(photo).convert("RGB")), unary, truth


def test_on_a_photograph_the_mask_gets_closer_to_the_object(data_root: Path) -> None:
    image, unary, truth = scene_of_real_image(data_root)
    before = functional.interpolate(unary[None], truth.shape, mode="bilinear")[0, 0] >= 0.5
    after = dense_crf(image, unary)[0] >= 0.5
    assert iou(after, truth) > iou(before, truth) + 0.03


@pytest.mark.parametrize("k", [1, 3])
def test_it_agrees_with_pydensecrf(data_root: Path, k: int) -> None:
    densecrf = pytest.importorskip("pydensecrf.densecrf")
    image, unary, _ = scene_of_real_image(data_root)
    image = np.ascontiguousarray(image[::2, ::2])
    height, width, _ = image.shape
    unary = functional.interpolate(unary[None], (height, width), mode="bilinear")[0]
    unary = torch.cat([unary.roll(20 * j, 2) for j in range(k)]) / k
    labels = torch.cat([1 - unary.sum(0, keepdim=True), unary])
    reference = densecrf.DenseCRF2D(width, height, k + 1)
    reference.setUnaryEnergy(-labels.log().flatten(1).numpy())
    reference.addPairwiseGaussian(sxy=2, compat=3)
    reference.addPairwiseBilateral(sxy=0.12 * max(height, width), srgb=13, rgbim=image, compat=5)
    expected = np.array(reference.inference(5)).reshape(labels.shape)[1:]
    found = dense_crf(image, unary).numpy()
    # pydensecrf approximates the smoothness kernel as well, which is exact here
    assert np.abs(found - expected).mean() < 2e-3
    assert ((found >= 0.5) == (expected >= 0.5)).mean() > 0.998


def test_kernels_serve_all_that_asks_for_the_same_image() -> None:
    generator = torch.Generator().manual_seed(0)
    image, other = torch.rand(2, 1, 3, 30, 40, generator=generator)
    kernels = crf_kernels(image)
    assert crf_kernels(image.clone()) is kernels
    for different in (
        crf_kernels(other),
        crf_kernels(image, size=20),
        crf_kernels(image, smoothness_sigma=1.0),
        crf_kernels(image.reshape(1, 3, 40, 30)),
    ):
        assert different is not kernels
    maps = torch.rand(1, 3, 4, generator=generator)
    expected = dense_crf(image[0], maps)
    assert torch.equal(refined_by_kernels(kernels, maps[None])[0], expected)
    assert crf_kernels(image, size=20).shape == (15, 20)
