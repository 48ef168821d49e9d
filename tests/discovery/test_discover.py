"""The whole way on real images with real weights."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rounding import coefficient_rounding
from sklearn.decomposition import non_negative_factorization
from torch import nn

import deepff
from deepff.errors import InputError
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.result import Result


@pytest.fixture(scope="module")
def gymnastics(data_root: Path) -> Result:
    folder = next((data_root / "icoseg/images").glob("036 Gymnastics-1"))
    return deepff.discover(folder, range(1, 5), random_state=0)


def share_inside(heatmap: torch.Tensor, mask: np.ndarray) -> float:
    return float(heatmap[torch.from_numpy(mask)].sum() / heatmap.sum())


def test_one_factor_sits_on_the_gymnast_and_another_on_the_beam_in_all_images(
    gymnastics, data_root
):
    """At k = 3; the beam, below the gymnast, is where the lower edge of the photograph is."""
    truth = load_icoseg(data_root / "icoseg", groups=["036"])[0]
    masks = [image.labels() == 1 for image in truth.images]
    maps = gymnastics.factorizations[3].heatmaps
    assert [image.image.name for image in truth.images] == gymnastics.names

    # how many times more of a factor lies on the gymnast than if it were spread evenly
    gain = np.array(
        [
            [share_inside(factor, mask) / mask.mean() for factor in maps[index]]
            for index, mask in enumerate(masks)
        ]
    )
    gymnast = int(gain.mean(0).argmax())
    assert (gain[:, gymnast] > 2).all(), gain
    others = [j for j in range(3) if j != gymnast]
    assert (gain[:, others].max(1) < gain[:, gymnast] / 1.5).all(), gain

    lower = np.array(
        [
            [float(factor[-factor.shape[0] // 7 :].sum() / factor.sum()) for factor in maps[index]]
            for index in range(len(masks))
        ]
    )
    beam = max(others, key=lambda j: lower[:, j].mean())
    assert (lower[:, beam] > 2 / 7).all(), lower


def test_half_of_each_gymnasts_mask_is_the_best_quarter_of_the_factors_pixels(
    gymnastics, data_root
):
    """The paper's threshold on the k = 1 maps finds the gymnast."""
    truth = load_icoseg(data_root / "icoseg", groups=["036"])[0]
    maps = gymnastics.factorizations[1].heatmaps
    pixels = torch.cat([heatmap.flatten() for heatmap in maps])
    threshold = float(np.quantile(pixels.numpy(), 0.75))
    for image, heatmap in zip(truth.images, maps, strict=True):
        mask = image.labels() == 1
        found = heatmap[0].numpy() >= threshold
        assert (found & mask).sum() / mask.sum() > 0.5, image.image.name


def test_coefficients_agree_with_an_independent_nmf_for_the_same_components(gymnastics):
    found = gymnastics.factorizations[4]
    rows = gymnastics.activations.rows.numpy().astype(np.float64)
    expected, _, _ = non_negative_factorization(
        rows,
        H=found.components.numpy().astype(np.float64),
        n_components=4,
        init="custom",
        update_H=False,
        tol=1e-10,
        max_iter=5000,
    )
    scale = expected.max()
    np.testing.assert_allclose(found.coefficients.numpy(), expected, atol=2e-4 * scale)
    residual = np.linalg.norm(rows - expected @ found.components.numpy()) / np.linalg.norm(rows)
    assert found.relative_error == pytest.approx(residual, rel=1e-4)


def test_errors_fall_with_k_and_shares_sum_to_one(gymnastics):
    errors = [found.relative_error for found in gymnastics.factorizations.values()]
    assert errors == sorted(errors, reverse=True)
    for k, found in gymnastics.factorizations.items():
        assert found.components.shape == (k, 1280)
        assert float(found.energy_shares.sum()) == pytest.approx(1)


def test_the_same_seed_gives_the_same_bits(gymnastics):
    again = deepff.discover(gymnastics.paths, 4, random_state=0)
    assert torch.equal(again.coefficients, gymnastics.coefficients)
    assert torch.equal(again.components, gymnastics.components)


def test_a_saved_result_comes_back_whole(gymnastics, tmp_path):
    gymnastics.save(tmp_path / "result")
    loaded = deepff.load(tmp_path / "result")
    assert loaded.names == gymnastics.names
    assert loaded.image_sizes == gymnastics.image_sizes
    assert loaded.sources == gymnastics.sources
    assert loaded.options == gymnastics.options
    assert loaded.created == gymnastics.created
    assert list(loaded.factorizations) == [1, 2, 3, 4]
    for k, found in gymnastics.factorizations.items():
        assert torch.equal(loaded.factorizations[k].components, found.components)
        assert torch.equal(loaded.factorizations[k].coefficients, found.coefficients)
        assert loaded.factorizations[k].relative_error == found.relative_error
    assert torch.equal(loaded.heatmaps[2], gymnastics.heatmaps[2])
    bank = deepff.load_concepts(tmp_path / "result/concepts.safetensors")
    assert bank.sources[0].weights_digest == gymnastics.sources[0].weights_digest
    assert torch.equal(bank.components[3], gymnastics.factorizations[3].components)
    manifest = json.loads((tmp_path / "result/manifest.json").read_text())
    assert manifest["options"]["random_state"] == 0
    assert [image["size"] for image in manifest["images"]] == [
        list(size) for size in gymnastics.image_sizes
    ]


def test_heat_maps_in_several_shards_come_back_in_order(gymnastics, tmp_path, monkeypatch):
    monkeypatch.setattr("deepff.report.save.SHARD_BYTES", 12_500)
    gymnastics.save(tmp_path / "result")
    shards = sorted((tmp_path / "result/heatmaps").iterdir())
    assert len(shards) == 3
    loaded = deepff.load(tmp_path / "result")
    assert torch.equal(loaded.coefficients, gymnastics.coefficients)


def test_a_cached_result_finds_its_activations_again(gymnastics, tmp_path):
    paths = gymnastics.paths[:2]
    result = deepff.discover(paths, 2, size=128, cache=tmp_path / "cache")
    result.save(tmp_path / "result")
    loaded = deepff.load(tmp_path / "result")
    assert torch.equal(loaded.activations.rows, result.activations.rows)
    (tmp_path / "cache").rename(tmp_path / "moved")
    assert deepff.load(tmp_path / "result").activations is None


def test_what_a_run_leaves_can_be_read_by_all_that_the_umask_lets(gymnastics, tmp_path):
    previous = os.umask(0o022)
    try:
        gymnastics.save(tmp_path / "result")
    finally:
        os.umask(previous)
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {0o644}


def test_the_recorded_command_makes_the_result_again(gymnastics, tmp_path):
    paths = gymnastics.paths[:2]
    result = deepff.discover(
        paths,
        (1, 2),
        size=64,
        layer="blocks.5.0.bn1",
        random_state=3,
        method=deepff.NMF(2, n_init=2),
    )
    again = eval(result.command, {"deepff": deepff})
    assert again.command == result.command
    assert again.sources == result.sources
    assert torch.equal(again.coefficients, result.coefficients)
    assert result.command.startswith(f"deepff.discover(['{paths[0]}', '{paths[1]}'], ")


def test_results_and_activations_have_a_short_repr(gymnastics):
    assert repr(gymnastics) == (
        "<Result of 6 images, efficientnet_lite0 bn2, nmf, relative error "
        + ", ".join(
            f"k={k}: {found.relative_error:.3f}" for k, found in gymnastics.factorizations.items()
        )
        + ">"
    )
    assert repr(gymnastics.activations) == "<Activations of 6 images, 924 × 1280>"


def test_networks_that_give_nan_are_named(gymnastics):
    network = Checkerboard()
    with torch.no_grad():
        network.both.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="layer positive are NaN; check the weights of Checker"):
        deepff.discover(gymnastics.paths, 2, model=network, layer="positive", size=80)


def test_saving_never_mixes_with_other_files(gymnastics, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no deepff result"):
        gymnastics.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(InputError, match="is a file; name a folder"):
        gymnastics.save(tmp_path / "notes.txt")


def test_a_second_run_replaces_the_first(gymnastics, tmp_path):
    gymnastics.save(tmp_path, overlays=True)
    (tmp_path / "labels.json").write_text("{}")
    fewer = deepff.discover(gymnastics.paths[:2], 2, size=128)
    fewer.save(tmp_path, overlays=True, overwrite=True)
    assert [path.name for path in sorted((tmp_path / "overlays").iterdir())] == ["k2"]
    assert len(list((tmp_path / "overlays/k2").iterdir())) == 2
    assert (tmp_path / "labels.json").exists()


@pytest.mark.parametrize("method", ["pca", "kmeans"])
def test_other_methods_give_maps_of_the_same_form(gymnastics, method):
    result = deepff.discover(gymnastics.paths, 3, size=224, method=method)
    assert result.coefficients.shape == (sum(h * w for h, w in result.grids), 3)
    assert result.heatmaps[0].shape == (3, *result.image_sizes[0])
    assert result.heatmaps.signed == (method == "pca")


def test_pca_is_the_best_of_all_factorizations(gymnastics):
    """Eckart & Young: no k factors leave a smaller error than the top singular vectors."""
    pca = deepff.discover(gymnastics.paths, range(1, 5), method="pca")
    singular = torch.linalg.svdvals(pca.activations.rows.double())
    for k, found in pca.factorizations.items():
        assert found.relative_error <= gymnastics.factorizations[k].relative_error + 1e-6
        expected = (singular[k:].square().sum() / singular.square().sum()).sqrt()
        assert found.relative_error == pytest.approx(float(expected), rel=1e-4)


class Checkerboard(nn.Module):
    """A network whose one layer has two channels: brightness and darkness of 8 × 8 cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.AvgPool2d(8)
        self.both = nn.Conv2d(3, 2, 1)
        self.positive = nn.ReLU()
        with torch.no_grad():
            self.both.weight.copy_(torch.tensor([[1.0] * 3, [-1.0] * 3])[:, :, None, None] / 3)
            self.both.bias.copy_(torch.tensor([0.0, 1.0]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.positive(self.both(self.cells(images))).mean((2, 3))


def test_ones_own_module_and_a_planted_pattern(tmp_path):
    """Dark and bright cells are found as the two factors, cell for cell."""
    pattern = np.random.default_rng(0).random((6, 10)) > 0.5
    pixels = np.kron(pattern, np.ones((8, 8))).astype(np.uint8) * 255
    Image.fromarray(pixels).save(tmp_path / "board.png")
    board = deepff.load_backbone(Checkerboard(), mean=(0, 0, 0), std=(1, 1, 1))
    result = deepff.discover(tmp_path, 2, model=board, layer="positive", size=80)
    maps = result.heatmaps.normalized(0).numpy()
    bright = int(maps[:, pattern].mean(1).argmax())
    np.testing.assert_allclose(maps[bright], pattern, atol=1e-3)
    np.testing.assert_allclose(maps[1 - bright], ~pattern, atol=1e-3)
    assert result.relative_error < 1e-3
    assert result.model == "Checkerboard"


def test_a_signed_layer_is_refused_with_layers_that_would_do(gymnastics):
    with pytest.raises(
        InputError, match=r"layer conv_head .* has values down to -\d.*bn2.*semi-nmf"
    ):
        deepff.discover(gymnastics.paths, 2, layer="conv_head", method="nmf")


def test_a_signed_layer_is_factorised_by_semi_nmf(gymnastics, tmp_path):
    result = deepff.discover(gymnastics.paths, [2, 3], layer="blocks.6.0", size=224)
    assert (result.method, gymnastics.method) == ("semi-nmf", "nmf")
    assert "semi-nmf" in repr(result)
    A = result.activations.rows.double()
    for k, found in result.factorizations.items():
        H, W = found.coefficients.double(), found.components.double()
        assert float(A.min()) < 0 and float(W.min()) < 0 and float(H.min()) >= 0
        error = float((A - H @ W).norm() / A.norm())
        assert found.relative_error == pytest.approx(error, rel=1e-4)
        singular = torch.linalg.svdvals(A)
        assert error <= 1.2 * float((singular[k:].square().sum() / singular.square().sum()).sqrt())
    result.save(tmp_path)
    assert "semi-NMF: coefficients are never negative" in (tmp_path / "report.html").read_text()
    loaded = deepff.load(tmp_path)
    assert loaded.method == "semi-nmf"
    again = deepff.apply(tmp_path / "concepts.safetensors", gymnastics.paths)
    for k, found in again.factorizations.items():
        close = coefficient_rounding(A, found.components)
        expected = result.factorizations[k].coefficients
        torch.testing.assert_close(found.coefficients, expected, rtol=0, atol=close)
    masks = next(iter(result.regions(3))).masks
    assert masks.any()


def test_how_many_factors_of_a_signed_layer(gymnastics):
    result = deepff.discover(gymnastics.paths, "auto", layer="blocks.6.0", size=224)
    assert result.method == "semi-nmf"
    assert sorted(result.agreements) == [2, 3, 4, 5, 6]


def test_the_method_of_ones_own_is_kept(gymnastics):
    result = deepff.discover(gymnastics.paths[:2], 2, method="semi-nmf", size=128)
    assert result.method == "semi-nmf" and result.layer == "bn2"
    chosen = deepff.discover(gymnastics.paths[:2], method=deepff.SemiNMF(3, n_init=2), size=128)
    assert chosen.method == "semi-nmf" and chosen.n_components == 3
    assert chosen.options["n_init"] == 2


@pytest.mark.parametrize("k", [0, -1, [], [0, 2]])
def test_k_must_be_positive(gymnastics, k):
    with pytest.raises(InputError, match="number of factors must be a whole number, 1 or more"):
        deepff.discover(gymnastics.paths, k)


def test_unknown_method_and_option(gymnastics):
    with pytest.raises(
        InputError, match="no method 'ica'; choose one of auto, nmf, semi-nmf, pca, kmeans"
    ):
        deepff.discover(gymnastics.paths, 2, method="ica")
    with pytest.raises(
        InputError, match=r"no channel weighting 'centre'; choose one of none, border"
    ):
        deepff.discover(gymnastics.paths, 2, channel_weights="centre")


def test_loading_what_is_no_result(tmp_path):
    with pytest.raises(InputError, match="holds no deepff result"):
        deepff.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"deepff": "0.1.0", "status": "writing"}')
    with pytest.raises(InputError, match="was not finished; run its command again"):
        deepff.load(tmp_path)
