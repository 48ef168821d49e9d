"""The set's own classifier of pixels, on planted cells whose classes are known."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from deepff.activations.activations import Activations, FeatureSource, ImageRecord
from deepff.regions.pixel_classifier import (
    fit_logistic,
    fit_pixel_classifier,
    label_confidence,
    principal_components,
    sample_cells,
)
from deepff.results.classifier import PixelClassifier

FINE, COARSE = (12, 16), (6, 8)


def _source(channels: int, stride: int) -> FeatureSource:
    return FeatureSource(
        model="planted",
        weights="",
        weights_digest="",
        layer=f"stride{stride}",
        channels=channels,
        stride=stride,
        size=128,
        multiple=16,
        mean=(0, 0, 0),
        std=(1, 1, 1),
        interpolation="bilinear",
        amp=False,
    )


SOURCES = (_source(6, 8), _source(4, 16))


def planted(
    n_images: int = 4, noise: float = 0.1, seed: int = 0
) -> tuple[list[Activations], list[Tensor]]:
    """Two layers of images with a rectangle in each, and where the rectangles are, (h, w) bool.

    Channels 0 to 2 of the fine layer fire on the object, 3 to 5 elsewhere; the coarse layer's on
    its part at the left of each image only.
    """
    generator = torch.Generator().manual_seed(seed)
    truth, fine, coarse = [], [], []
    for index in range(n_images):
        mask = torch.zeros(FINE, dtype=torch.bool)
        mask[2 + index % 3 : 8 + index % 3, 4:12] = True
        truth.append(mask)
        on = mask.flatten()[:, None].float()
        values = torch.cat([on.expand(-1, 3), (1 - on).expand(-1, 3)], dim=1)
        fine.append(values + noise * torch.rand(values.shape, generator=generator))
        small = functional.adaptive_avg_pool2d(mask[None].float(), COARSE)[0].flatten()[:, None]
        coarse.append(small + noise * torch.rand(len(small), 4, generator=generator))
    return [_layer(fine, FINE), _layer(coarse, COARSE)], truth


def _layer(rows: list[Tensor], grid: tuple[int, int]) -> Activations:
    records = [ImageRecord(f"{i}.png", None, (96, 128), grid) for i in range(len(rows))]
    return Activations(records, [torch.cat(rows)])


def no_doubt(index: int) -> Tensor:
    return torch.zeros(2, 2)


def taught(
    activations: list[Activations], labels: list[Tensor], rounds: int = 1
) -> PixelClassifier | None:
    """Fitted to ``labels``, (k, h, w) each, in every round."""
    return fit_pixel_classifier(
        activations,
        sample_cells(activations, SOURCES),
        len(labels[0]),
        lambda index, last: labels[index],
        no_doubt,
        rounds=rounds,
    )


def test_learns_what_the_masks_of_a_set_have_in_common() -> None:
    activations, truth = planted()
    wrong = [mask.clone() for mask in truth]
    wrong[0][:, :6] = False  # of one image the masks lack a quarter of the object
    classifier = taught(activations, [mask[None].float() for mask in wrong])
    assert classifier is not None
    maps = classifier.heatmaps(activations)
    assert maps.n_factors == 1
    for index, mask in enumerate(truth):
        assert torch.equal(maps.grid(index)[0] >= 0.5, mask)


def test_names_each_of_several_classes() -> None:
    activations, truth = planted()
    left = [mask & (torch.arange(16) < 8) for mask in truth]
    # What tells left from right: the channels of the coarse layer.
    columns = (torch.arange(8) < 4).float().expand(*COARSE).flatten()
    sides = torch.stack([columns, columns, 1 - columns, 1 - columns], dim=1)
    rows = torch.cat([sides + 0.01] * len(truth))
    activations[1] = Activations(activations[1].images, [rows])
    labels = [
        torch.stack([own, mask & ~own]).float() for own, mask in zip(left, truth, strict=True)
    ]
    classifier = taught(activations, labels)
    assert classifier is not None
    maps = classifier.heatmaps(activations)
    for index, (own, mask) in enumerate(zip(left, truth, strict=True)):
        found = maps.grid(index)
        assert torch.all(found.sum(0) <= 1 + 1e-6)
        assert ((found[0] > 0.5) == own).float().mean() > 0.95
        assert ((found[1] > 0.5) == (mask & ~own)).float().mean() > 0.95


def test_probabilities_are_those_of_the_interpolated_rows() -> None:
    """Interpolating the classifier's maps instead of the channels changes nothing."""
    activations, _ = planted()
    generator = torch.Generator().manual_seed(1)
    classifier = PixelClassifier(
        torch.randn(2, 10, generator=generator),
        torch.randn(2, generator=generator),
        SOURCES,
    )
    fine, coarse = (layer.image_rows[1] for layer in activations)
    unit = [functional.normalize(rows, dim=1) for rows in (fine, coarse)]
    upsampled = functional.interpolate(unit[1].T.reshape(1, 4, *COARSE), FINE, mode="bilinear")[
        0
    ].flatten(1)
    features = torch.cat([unit[0], upsampled.T], dim=1)
    logits = features @ classifier.weights.T + classifier.bias
    expected = functional.pad(logits, (1, 0)).softmax(1)[:, 1:].T.reshape(2, *FINE)
    found = classifier.probabilities([fine, coarse], [layer.images[1] for layer in activations])
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_scale_of_activations_makes_no_difference() -> None:
    activations, truth = planted()
    labels = [mask[None].float() for mask in truth]
    louder = [
        Activations(layer.images, [block * 1000 for block in layer.blocks]) for layer in activations
    ]
    classifiers = [taught(layers, labels) for layers in (activations, louder)]
    first, second = (c.heatmaps(activations).coefficients for c in classifiers if c is not None)
    assert torch.allclose(first, second, atol=1e-3)


def test_later_rounds_get_the_classifier_s_own_probabilities() -> None:
    activations, truth = planted()
    seen: list[tuple[int, bool]] = []

    def labels(index: int, last: Tensor | None) -> Tensor:
        seen.append((index, last is None))
        return truth[index][None].float() if last is None else (last > 0.5).float()

    classifier = fit_pixel_classifier(
        activations, sample_cells(activations, SOURCES), 1, labels, no_doubt, rounds=2
    )
    assert classifier is not None
    assert sorted(seen) == sorted((i, first) for i in range(4) for first in (True, False))


def test_doubt_leaves_open_what_the_first_labels_miss() -> None:
    """Three quarters of every object are labelled background; where that is doubted, no more."""
    activations, truth = planted(noise=0.3)
    rest = [mask & (torch.arange(16) >= 10) for mask in truth]

    def found(doubted: bool) -> float:
        def doubts(index: int) -> Tensor:
            return truth[index].float() if doubted else torch.zeros(FINE)

        classifier = fit_pixel_classifier(
            activations,
            sample_cells(activations, SOURCES),
            1,
            lambda index, last: rest[index][None].float(),
            doubts,
            rounds=1,
        )
        assert classifier is not None
        maps = classifier.heatmaps(activations)
        missed = [
            maps.grid(i)[0][mask & ~own]
            for i, (mask, own) in enumerate(zip(truth, rest, strict=True))
        ]
        return float(torch.cat(missed).mean())

    # Of 144 cells of background and 36 of these, against 12 of the object that weigh as much.
    assert found(doubted=False) == pytest.approx(0.83, abs=0.1)
    assert found(doubted=True) > 0.97


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5])
def test_gives_none_where_labels_tell_nothing_apart(value: float) -> None:
    activations, truth = planted()
    labels = [torch.full((1, *FINE), value) for _ in truth]
    assert taught(activations, labels) is None


def test_does_the_same_twice_and_when_rows_lie_in_several_blocks() -> None:
    activations, truth = planted()
    labels = [mask[None].float() for mask in truth]
    apart = [Activations(layer.images, layer.image_rows) for layer in activations]
    first, second, third = (
        taught(layers, labels, 2) for layers in (activations, activations, apart)
    )
    assert first is not None and second is not None and third is not None
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first.weights, third.weights)


def test_label_confidence_is_the_margin_of_the_largest_share() -> None:
    one = torch.tensor([[[0.0, 0.25, 0.5, 1.0]]])
    assert torch.allclose(label_confidence(one), torch.tensor([[1.0, 0.5, 0.0, 1.0]]))
    three = torch.tensor([0.5, 0.3, 0.1])[:, None, None]
    assert label_confidence(three).item() == pytest.approx(0.2)


def test_fit_logistic_finds_the_optimum() -> None:
    """The gradient of the penalised loss vanishes, by autograd of the formula written out."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 5, generator=generator)
    targets = torch.rand(200, 2, generator=generator) / 2
    confidence = torch.rand(200, generator=generator)
    fitted = fit_logistic(features, targets, confidence)
    assert fitted is not None
    weights, bias = (x.clone().requires_grad_() for x in (fitted[:, :-1], fitted[:, -1]))
    is_object = targets.sum(1) > 0.5
    count = torch.where(is_object, confidence / confidence[is_object].sum(), 0)
    count += torch.where(is_object, 0, confidence / confidence[~is_object].sum())
    logits = torch.cat([torch.zeros(200, 1), features @ weights.T + bias], dim=1)
    every = torch.cat([1 - targets.sum(1, keepdim=True), targets], dim=1)
    entropy = -(every * logits.log_softmax(1)).sum(1)
    loss = (count / 2 * entropy).sum() + 1e-3 * weights.square().sum()
    loss.backward()
    assert weights.grad is not None and bias.grad is not None
    assert weights.grad.abs().max() < 1e-4
    assert bias.grad.abs().max() < 1e-4
    again = fit_logistic(features, targets, confidence, start=torch.randn(2, 6))
    assert again is not None
    assert torch.allclose(again, fitted, atol=1e-2)


def test_classes_by_hand_are_those_of_scikit_learn() -> None:
    """Of 300, 60 and 10 rows, each class weighs by the fourth root of its size."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 300 + [1] * 60 + [2] * 10)
    features = torch.randn(370, 4, generator=generator) + functional.one_hot(labels, 4)
    targets = functional.one_hot(labels)[:, 1:].float()
    fitted = fit_logistic(features, targets, torch.ones(370), by_hand=True)
    assert fitted is not None
    shares = torch.tensor([300.0, 60.0, 10.0]) ** 0.25
    weights = (shares / shares.sum() / torch.tensor([300.0, 60.0, 10.0]))[labels]
    # Both penalize so little that it does not matter that here the background has no weights.
    reference = LogisticRegression(C=1 / 2e-4, max_iter=1000).fit(features, labels, weights)
    logits = functional.pad(features @ fitted[:, :-1].T + fitted[:, -1], (1, 0))
    expected = torch.from_numpy(reference.predict_proba(features.numpy()))
    assert (logits.softmax(1) - expected).abs().max() < 0.01


def test_principal_components_are_those_of_the_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([5.0, 2.0, 0.5])
    rows = torch.randn(5000, 3, generator=generator) * spread + 7
    mean, basis = principal_components(rows)
    projected = (rows - mean) @ basis
    assert torch.allclose(projected.std(0), spread / 5, rtol=0.05)
    assert torch.allclose(basis.abs().argmax(0), torch.arange(3))
