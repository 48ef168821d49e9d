"""The estimators keep scikit-learn's contract, and the package's own."""

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matrices import estimator
from rounding import coefficient_rounding
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from deepff.errors import InputError
from deepff.factorization import METHODS, NMF, PCA, Factorizer, KMeans, SemiNMF
from deepff.factorization.blocks import RowBlocks

ESTIMATORS = [
    NMF(2, random_state=0),
    NMF(2, solver="mu", random_state=0),
    SemiNMF(2, random_state=0),
    PCA(2),
    KMeans(2, random_state=0),
]
EXCEPTIONS = {
    "check_dtype_object": "whatever is wrong with a matrix is an InputError, which is a ValueError "
    "and no TypeError, so that the command line can tell it in one sentence",
}


def data(rows: int = 60, channels: int = 8) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.random((rows, 3)) @ rng.random((3, channels)) + 0.01 * rng.random((rows, channels))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda _: EXCEPTIONS)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_clones_and_copies_are_equal(model: Any) -> None:
    copied = clone(model)
    assert copied.get_params() == model.get_params()
    assert repr(copied) == repr(model)
    H = copied.fit_transform(data())
    assert not hasattr(clone(copied), "components_")
    again = pickle.loads(pickle.dumps(copied))
    close = coefficient_rounding(data(), again.components_)
    np.testing.assert_allclose(again.transform(data()), H, rtol=0, atol=close)
    assert copied.set_params(n_components=3).fit(data()).components_.shape == (3, 8)


def test_what_is_shown_is_what_was_chosen() -> None:
    assert repr(NMF(5, solver="mu")) == "NMF(n_components=5, solver='mu')"


@pytest.mark.parametrize("method", METHODS)
def test_an_estimator_keeps_the_packages_own_contract(method: str) -> None:
    def fitted(factorizer: Factorizer, A: RowBlocks) -> torch.Tensor:
        return factorizer.fit_transform(A)

    model = estimator(method, 2)
    H = fitted(model, RowBlocks(torch.from_numpy(data())))
    assert H.shape == (60, 2) and model.components_.shape == (2, 8)
    assert isinstance(H, torch.Tensor) and isinstance(model.components_, torch.Tensor)
    assert 0 < model.relative_err_ < 1 and model.n_iter_ >= 1
    assert model.needs_non_negative == (method == "nmf")


@pytest.mark.parametrize("method", METHODS)
def test_features_have_the_names_of_columns(method: str) -> None:
    frame = pd.DataFrame(data(), columns=[f"c{i}" for i in range(8)])
    model = estimator(method, 2).fit(frame)
    assert model.n_features_in_ == 8
    assert list(model.feature_names_in_) == list(frame.columns)
    names = [f"{type(model).__name__.lower()}{j}" for j in range(2)]
    assert list(model.get_feature_names_out()) == names
    with pytest.raises(InputError, match="feature names"):
        model.transform(frame[frame.columns[::-1]])
    found = estimator(method, 2).set_output(transform="pandas").fit_transform(frame)
    assert list(found.columns) == names
    assert found.index.equals(frame.index)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
def test_inverse_transform_multiplies(method: str, convert: Any) -> None:
    A = convert(data())
    model = estimator(method, 3)
    H = model.fit_transform(A)
    back = model.inverse_transform(H)
    assert type(back) is type(A)
    np.testing.assert_allclose(back, H @ model.components_, rtol=1e-6)
    error = np.linalg.norm(data() - np.asarray(back, dtype=np.float64))
    assert model.reconstruction_err_ == pytest.approx(error, rel=1e-3)
    with pytest.raises(InputError, match="2 coefficients per row, but 3"):
        model.inverse_transform(H[:, :2])
    with pytest.raises(NotFittedError):
        estimator(method, 2).inverse_transform(H)


@pytest.mark.parametrize("method", METHODS)
def test_estimators_are_parts_of_larger_ones(method: str) -> None:
    rng = np.random.default_rng(1)
    labels = np.arange(120) % 2
    A = rng.random((120, 6)) + 3 * labels[:, None] * (np.arange(6) < 3)
    pipeline = make_pipeline(estimator(method, 2), LogisticRegression())
    assert pipeline.fit(A, labels).score(A, labels) > 0.95
    name = type(estimator(method, 2)).__name__.lower()
    grid = {f"{name}__n_components": [1, 2]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(A, labels)
    assert search.best_score_ > 0.9
    frame = pd.DataFrame(A, columns=list("abcdef"))
    columns = ColumnTransformer(
        [("first", estimator(method, 2), list("abc")), ("rest", estimator(method, 1), list("def"))]
    )
    H = columns.fit_transform(frame)
    assert H.shape == (120, 3)
    np.testing.assert_allclose(columns.transform(frame), H, atol=1e-5)
    assert list(columns.get_feature_names_out())[-1] == f"rest__{name}0"


@pytest.mark.parametrize("options", [{"solver": "mu"}, {"solver": "hals"}, {"init": "nndsvda"}])
def test_a_fit_that_its_limit_stops_warns(options: dict) -> None:
    A = np.random.default_rng(0).random((60, 20))
    with pytest.warns(ConvergenceWarning, match="stopped after 2 iterations"):
        NMF(5, max_iter=2, tol=1e-9, random_state=0, **options).fit(A)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NMF(5, max_iter=2, tol=0, random_state=0, **options).fit(A)
        NMF(5, max_iter=2000, random_state=0, **options).fit(A)


def test_a_semi_nmf_that_its_limit_stops_warns() -> None:
    A = np.random.default_rng(0).normal(size=(60, 20))
    with pytest.warns(ConvergenceWarning, match="SemiNMF stopped after 2 iterations"):
        SemiNMF(5, max_iter=2, tol=1e-9, random_state=0).fit(A)


def test_pca_says_at_once_that_it_does_not_center() -> None:
    assert "Without centering" in (PCA.__doc__ or "").splitlines()[0]
