import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.filters import threshold_otsu
from torch.nn import functional

import deepff
from deepff.errors import InputError
from deepff.options import THRESHOLD_VALUES, Threshold, threshold_value
from deepff.regions.thresholds import PERCENTILE_BINS, label_map, masks, thresholds
from deepff.results.heatmaps import HeatMaps
from deepff.results.histogram import Histogram


def skewed_maps(n: int, k: int, seed: int) -> list[torch.Tensor]:
    """Maps of different sizes whose factors have different scales and long tails."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.arange(-2, k - 2)[:, None, None]
    return [torch.rand(k, 20 + i, 31 - i, generator=generator) ** 4 * scale for i in range(n)]


def pooled(maps: list[torch.Tensor]) -> np.ndarray:
    """All pixels of each factor, (k, pixels)."""
    return torch.cat([image.flatten(1) for image in maps], dim=1).numpy().astype(np.float64)


@pytest.mark.parametrize("percent", [0, 12.5, 75, 99.9, 100])
def test_percentile_is_within_a_bin_below_numpys_on_the_pooled_pixels(percent: float) -> None:
    maps = skewed_maps(4, 3, seed=0)
    pixels = pooled(maps)
    exact = np.percentile(pixels, percent, axis=1)
    width = np.ptp(pixels, axis=1) / PERCENTILE_BINS

    found = thresholds(maps, "percentile", percent)

    assert found.shape == (4, 3)
    assert (found == found[0]).all()
    below = (exact - found[0].double().numpy()) / width
    assert (below > -0.05).all()  # float32 rounding, as a share of a bin
    assert (below < 1.05).all()


def test_default_is_the_papers_rule_on_the_upsampled_maps() -> None:
    coefficients = torch.rand(4 * 5 + 3 * 3, 2, generator=torch.Generator().manual_seed(1))
    maps = HeatMaps(coefficients, [(4, 5), (3, 3)], [(37, 50), (30, 28)])
    exact = np.percentile(pooled([maps[0], maps[1]]), 75, axis=1)

    np.testing.assert_allclose(thresholds(maps)[0], exact, atol=2 / PERCENTILE_BINS)
    on = sum(
        masks(image, row).sum((1, 2)) for image, row in zip(maps, thresholds(maps), strict=True)
    )
    # more than a quarter by the pixels of equal value that lie at the threshold
    np.testing.assert_allclose(on / (37 * 50 + 30 * 28), 0.25, atol=3e-3)


def test_otsu_over_the_set_is_skimages_on_the_pooled_pixels() -> None:
    dark, bright = skewed_maps(3, 2, seed=2), skewed_maps(3, 2, seed=3)
    maps = [torch.cat([a, 3 + b], dim=2) for a, b in zip(dark, bright, strict=True)]
    expected = [threshold_otsu(pixels) for pixels in pooled(maps)]

    found = thresholds(maps, "otsu")

    # a pixel at the edge of a bin may fall to either side
    np.testing.assert_allclose(found[0], expected, atol=np.ptp(pooled(maps)) / 256)
    assert (found == found[0]).all()


def test_otsu_image_is_skimages_of_each_image() -> None:
    maps = [image * (1 + i) for i, image in enumerate(skewed_maps(3, 2, seed=4))]
    found = thresholds(maps, "otsu-image")
    for image, row in zip(maps, found, strict=True):
        for pixels, threshold in zip(image.numpy(), row, strict=True):
            bin_width = float(np.ptp(pixels)) / 256
            assert float(threshold) == pytest.approx(threshold_otsu(pixels), abs=1.01 * bin_width)


def test_max_fraction_takes_the_maximum_over_the_set() -> None:
    maps = [torch.tensor([[[1.0, 2.0]], [[0.0, 8.0]]]), torch.tensor([[[4.0]], [[1.0]]])]
    assert thresholds(maps, "max-fraction", 0.25).tolist() == [[1.0, 2.0], [1.0, 2.0]]


@pytest.mark.parametrize("method", list(Threshold))
@pytest.mark.parametrize("level", [0.0, 0.3, -2.0, 1e-30])
def test_a_constant_factor_has_empty_masks(method: str, level: float) -> None:
    # upsampling returns equal values with rounding noise, which is nothing to threshold either
    grid = torch.full((1, 1, 3, 5), level)
    constant = functional.interpolate(grid, (29, 47), mode="bilinear")[0]
    varied = torch.linspace(0, 1, 29 * 47).view(1, 29, 47)
    image = torch.cat([constant, varied])

    rows = thresholds([image, image], method, threshold_value(method))

    assert not rows.isnan().any()
    assert [bool(mask.any()) for mask in masks(image, rows[1])] == [False, True]


def test_a_pixel_without_the_factor_is_off_where_the_percentile_is_zero() -> None:
    image = torch.zeros(1, 4, 4)
    image[0, 1, 1:3] = torch.tensor([0.1, 2.0])  # 14 of 16 pixels hold none of the factor
    row = thresholds([image])[0]
    assert row.tolist() == [0.0]
    assert masks(image, row).nonzero().tolist() == [[0, 1, 1], [0, 1, 2]]


def test_negative_values_are_off_whatever_the_threshold() -> None:
    image = torch.linspace(-4, 1, 16).view(1, 4, 4)
    row = thresholds([image], "percentile", 10)[0]
    assert row[0] < 0
    assert (masks(image, row) == (image > 0)).all()


def test_a_pixel_at_the_threshold_is_on() -> None:
    image = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert masks(image, torch.tensor([3.0])).tolist() == [[[False, False], [True, True]]]


def test_label_map_compares_shares_of_the_maximum() -> None:
    # factor 0 has a hundred times the scale of factor 1
    maps = torch.tensor([[[90.0, 40.0], [60.0, 10.0]], [[0.5, 0.8], [0.7, 0.2]]])
    on = masks(maps, torch.tensor([30.0, 0.6]))
    labels = label_map(maps, on, scale=torch.tensor([100.0, 1.0]))
    # (0, 0): only factor 0 is on; (0, 1): .4 < .8; (1, 0): .6 < .7; (1, 1): neither is on
    assert labels.tolist() == [[1, 2], [2, 0]]
    assert labels.dtype == torch.uint8


def test_label_map_ignores_a_larger_value_below_its_threshold() -> None:
    maps = torch.tensor([[[0.6]], [[0.4]]])
    on = masks(maps, torch.tensor([0.7, 0.3]))
    assert label_map(maps, on).tolist() == [[2]]


def test_label_map_gives_a_tie_to_the_first_factor_and_counts_past_255() -> None:
    maps = torch.ones(300, 1, 1)
    on = torch.ones(300, 1, 1, dtype=torch.bool)
    assert label_map(maps, on).tolist() == [[1]]
    on[:299] = False
    assert label_map(maps, on).tolist() == [[300]]


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("otsu-set", 75.0, "percentile, otsu, otsu-image, max-fraction"),
        ("percentile", 101.0, "use 0 to 100"),
        ("percentile", float("nan"), "use 0 to 100"),
        ("max-fraction", 75.0, "at most 1"),
        ("max-fraction", 0.0, "use more than 0"),
    ],
)
def test_wrong_options_are_refused(method: str, value: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        thresholds([torch.rand(1, 2, 2)], method, value)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), percents=st.lists(st.floats(0, 100), min_size=2, max_size=2))
def test_percentile_thresholds_rise_with_the_percentile(seed: int, percents: list[float]) -> None:
    maps = skewed_maps(2, 2, seed)
    low, high = (thresholds(maps, "percentile", percent) for percent in sorted(percents))
    assert (low <= high).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), percent=st.floats(1, 99))
def test_share_of_pixels_on_is_what_the_percentile_leaves(seed: int, percent: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    maps = [0.5 + torch.rand(2, 40, 50, generator=generator) for _ in range(2)]
    rows = thresholds(maps, "percentile", percent)
    on = torch.cat([masks(image, row).flatten(1) for image, row in zip(maps, rows, strict=True)], 1)
    # one order statistic, and the pixels that share its bin
    assert (on.double().mean(1) - (1 - percent / 100)).abs().max() <= 6 / 4000


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1000),
    k=st.integers(1, 5),
    method=st.sampled_from(list(Threshold)),
    value=st.floats(0.01, 1),
)
def test_label_map_labels_the_pixels_of_the_masks_only(
    seed: int, k: int, method: str, value: float
) -> None:
    image = skewed_maps(1, k, seed)[0]
    takes_value = method in THRESHOLD_VALUES
    on = masks(image, thresholds([image], method, value if takes_value else None)[0])
    labels = label_map(image, on, image.amax((1, 2)))
    assert ((labels > 0) == on.any(0)).all()
    for factor in range(k):
        assert on[factor][labels == factor + 1].all()


def test_a_sampled_histogram_gives_nearly_the_thresholds_of_all_pixels(data_root):
    """Real maps, images of several sizes; within half a percent of each factor's maximum."""
    folder = next((data_root / "icoseg/images").glob("036*"))
    heatmaps = deepff.discover(folder, 3).heatmaps
    levels = Histogram.sampled(heatmaps)
    assert torch.equal(levels.high, heatmaps.scale)
    for method, value in [
        ("percentile", 75),
        ("percentile", 90),
        ("otsu", None),
        ("max-fraction", 0.5),
    ]:
        exact = thresholds(heatmaps, method, value)[0]
        (sampled,) = thresholds(levels, method, value)
        assert ((sampled - exact).abs() / heatmaps.scale).max() < 0.005, method
