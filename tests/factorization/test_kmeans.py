"""k-means as a factorization, against planted clusters and scikit-learn."""

import math

import numpy as np
import pytest
import torch

from deepff.errors import InputError
from deepff.factorization import KMeans


def clusters(sizes: list[int], channels: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centers = 10 * torch.randn(len(sizes), channels, generator=generator)
    noise = 0.1 * torch.randn(len(labels), channels, generator=generator)
    return centers[labels] + noise, labels


def test_planted_clusters_are_found_the_largest_first() -> None:
    A, labels = clusters([20, 50, 30])
    model = KMeans(3, random_state=0)
    H = model.fit_transform(A)
    assert torch.equal(H.sum(1), torch.ones(100))
    assert torch.equal(H.sum(0), torch.tensor([50.0, 30.0, 20.0]))
    assert torch.equal(H.argmax(1), torch.tensor([2, 0, 1])[labels])
    for j, label in enumerate((1, 2, 0)):
        torch.testing.assert_close(model.components_[j], A[labels == label].mean(0))
    residual = float((A - H @ model.components_).norm())
    assert model.reconstruction_err_ == pytest.approx(residual, rel=1e-4)
    assert model.relative_err_ == pytest.approx(residual / float(A.norm()), rel=1e-4)
    assert torch.equal(model.transform(A), H)


def test_error_agrees_with_scikit_learn() -> None:
    from sklearn.cluster import KMeans as SklearnKMeans

    A, _ = clusters([40, 40, 40, 40])
    theirs = SklearnKMeans(4, n_init=10, random_state=0).fit(A.numpy())
    ours = KMeans(4, random_state=0).fit(A)
    assert ours.reconstruction_err_ == pytest.approx(math.sqrt(theirs.inertia_), rel=1e-4)


def test_every_kind_of_input_gives_the_same_bits() -> None:
    A, _ = clusters([40, 30, 30])
    H = KMeans(3, random_state=1).fit_transform(A)
    for other in (A.numpy(), A.double(), A.split(7), [a.numpy() for a in A.split(33)]):
        assert np.array_equal(KMeans(3, random_state=1).fit_transform(other), H)


@pytest.mark.parametrize(
    "A",
    [
        torch.zeros(9, 4),
        torch.ones(9, 4),
        torch.rand(9, 4) * 1e30,
        torch.rand(9, 4) * 1e-30,
        torch.rand(4, 9),
    ],
)
def test_degenerate_matrices(A: torch.Tensor) -> None:
    model = KMeans(3, random_state=0)
    H = model.fit_transform(A)
    assert model.components_.isfinite().all()
    assert torch.equal(H.sum(1), torch.ones(len(A)))
    scale = float(A.max()) or 1.0
    residual = float((A / scale - H @ (model.components_ / scale)).norm())
    assert model.reconstruction_err_ / scale == pytest.approx(residual, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4, 1e5])
def test_the_nearest_centre_is_found_far_from_zero(offset: float) -> None:
    A, labels = clusters([250, 250, 250, 250])
    A = A / 10 + offset
    model = KMeans(4, random_state=0)
    H = model.fit_transform(A)
    distances = torch.cdist(A.double(), model.components_.double())
    chosen = distances.gather(1, H.argmax(1, keepdim=True))[:, 0]
    rounding = 4 * offset * torch.finfo(torch.float32).eps
    assert (chosen <= distances.amin(1) + rounding).all()
    found = torch.zeros(4, 4).index_put_((labels, H.argmax(1)), torch.ones(()), accumulate=True)
    assert (found > 0).sum() == 4
    residual = float((A.double() - H.double() @ model.components_.double()).norm())
    # Centres are float32.
    slack = rounding * math.sqrt(A.numel())
    assert model.reconstruction_err_ == pytest.approx(residual, rel=1e-3, abs=slack)


def test_user_mistakes_are_refused() -> None:
    for k in (0, 5, "3"):
        with pytest.raises(InputError, match="n_components"):
            KMeans(k).fit(torch.rand(9, 4))
    with pytest.raises(InputError, match="NaN or infinite"):
        KMeans(1).fit(np.array([[1.0, math.nan]]))
    with pytest.raises(InputError, match="not fitted"):
        KMeans(1).transform(torch.rand(9, 4))
    with pytest.raises(InputError, match="5 features"):
        KMeans(2, random_state=0).fit(torch.rand(9, 4)).transform(torch.rand(9, 5))
