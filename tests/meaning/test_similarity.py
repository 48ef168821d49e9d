"""Patches that occur elsewhere, where it is known where, and on real photographs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import deepff
from deepff.errors import InputError
from deepff.evaluation.datasets.mask_folders import load_icoseg


def colored(*halves: tuple[int, int, int]) -> np.ndarray:
    """An image of vertical stripes of colours, 8 pixels wide each."""
    return np.concatenate([np.full((8, 8, 3), color, np.uint8) for color in halves], axis=1)


class Pixels(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.fixture
def stripes() -> deepff.Result:
    red, green, both = (200, 0, 0), (0, 100, 0), (100, 100, 0)
    images = [colored(red, green), colored(green, both), colored(both, green)]
    backbone = deepff.load_backbone(Pixels(), mean=(0, 0, 0), std=(1, 1, 1), device="cpu")
    return deepff.discover(images, 2, model=backbone, layer="layer", size=16)


@pytest.mark.parametrize("by", ["activations", "factors"])
def test_cosines_of_colors(stripes, by):
    """Red has a cosine of 1 with red, of 1/√2 with equal parts of red and green, of 0 with green;
    so it has in two factors, which are the two colours."""
    found = stripes.similar(0, (2, 5), by=by)
    half = 0.5**0.5
    expected = [(1.0, 0.0), (0.0, half), (half, 0.0)]
    for index, (left, right) in enumerate(expected):
        cells = found.heatmaps.grid(index)[0]
        torch.testing.assert_close(cells[:, :8], torch.full((8, 8), left), atol=2e-3, rtol=0)
        torch.testing.assert_close(cells[:, 8:], torch.full((8, 8), right), atol=2e-3, rtol=0)
    assert found.strongest == (0, 1, 2)


def test_a_place_is_that_of_the_cell_that_looks_there(stripes):
    """Of a grid that lies on the right three quarters of the image, cell 0 begins at x = 4."""
    extent = ((0.0, 1.0), (0.25, 1.0))
    stripes.activations = replace(
        stripes.activations, images=[replace(i, extent=extent) for i in stripes.activations.images]
    )
    for x, red in ((1, 1.0), (9, 1.0), (11, 0.0)):  # the middle of the grid is at x = 10
        found = stripes.similar(0, (x, 4))
        assert float(found.heatmaps.grid(0)[0, 0, 0]) == pytest.approx(red, abs=2e-3)
        assert found.heatmaps.extents == [extent] * 3


def test_a_place_on_an_elephant_is_most_like_places_on_elephants(data_root: Path):
    truth = load_icoseg(data_root / "icoseg", groups=["021"])[0].images[::4]
    result = deepff.discover([t.image.path for t in truth], 2, size=336)
    mask = truth[0].labels() == 1
    # the place deepest inside the elephants
    rows, columns = np.nonzero(mask)
    y, x = int(np.median(rows)), int(np.median(columns))
    assert mask[y, x]
    found = result.similar(0, (x, y))
    for index, image in enumerate(truth[1:], start=1):
        inside = torch.from_numpy(image.labels() == 1)
        cosines = found.heatmaps[index][0]
        assert cosines[inside].mean() > cosines[~inside].mean() + 0.1
        at = int(cosines.argmax())
        assert inside.flatten()[at]


def test_places_are_found_again_from_a_cache_and_by_running_again(
    stripes, tmp_path, data_root, capsys
):
    folder = next((data_root / "icoseg/images").glob("036 *"))
    paths = sorted(folder.glob("*.jpg"))[:2]
    result = deepff.discover(paths, 1, size=224, cache=tmp_path / "cache")
    found = result.similar(1, (50, 80))
    result.save(tmp_path / "with")
    again = deepff.load(tmp_path / "with").similar(result.names[1], (50, 80))
    assert torch.equal(found.heatmaps.coefficients, again.heatmaps.coefficients)

    result.cache = None
    result.save(tmp_path / "without")
    anew = deepff.load(tmp_path / "without")
    assert anew.activations is None
    capsys.readouterr()
    run_again = anew.similar(1, (50, 80), progress=True)
    assert "network: 2/2" in capsys.readouterr().err
    torch.testing.assert_close(run_again.heatmaps.coefficients, found.heatmaps.coefficients)


def test_what_cannot_be_found_is_told(stripes, tmp_path):
    with pytest.raises(InputError, match=r"\(16, 3\) is not in 0, which is 16 × 8 pixels"):
        stripes.similar(0, (16, 3))
    with pytest.raises(InputError, match="from 0 to 2, not 3"):
        stripes.similar(3, (0, 0))
    with pytest.raises(InputError, match="no image 'x'"):
        stripes.similar("x", (0, 0))
    stripes.activations = None
    stripes.images = [replace(image, origin=None) for image in stripes.images]
    with pytest.raises(InputError, match="images="):
        stripes.similar(0, (0, 0))
    assert stripes.similar(0, (0, 0), by="factors").strongest[0] == 0


def test_the_picture_shows_the_place_and_its_likes(stripes):
    """Three images of 16 × 8 pixels at a height of 40, 80 wide, after the place's own."""
    picture = np.asarray(stripes.similar(0, (2, 5)).plot(height=40)).astype(int)
    assert picture.shape[0] == 40
    # 80 × 40 the place's own image, a gap of 12, then the same with its map: red is painted
    before, after = picture[4, :80], picture[4, 92:172]
    assert abs(before[50:] - after[50:]).max() < 10  # green, where nothing is alike
    assert abs(before[:30] - after[:30]).min(0).max() > 30
