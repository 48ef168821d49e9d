"""Every kind of matrix gives what the same numbers in a float32 tensor give, or one sentence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import estimator
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization import METHODS, NMF, PCA, KMeans
from deepff.factorization.blocks import RowBlocks

# Small whole numbers, which every dtype holds.
A = np.random.default_rng(0).poisson(1.0, (90, 7)) * (np.arange(90) % 9 > 0)[:, None]
DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">f4", ">f8"]
BINARY = (A > 1).astype(float)


ARRAYS: dict[str, Callable[[], object]] = {
    **{f"dtype {dtype}": (lambda dtype=dtype: A.astype(dtype)) for dtype in DTYPES},
    "rows backwards": lambda: A[::-1].copy()[::-1],
    "channels backwards": lambda: A[:, ::-1].copy()[:, ::-1],
    "every other row": lambda: np.repeat(A, 2, axis=0)[::2],
    "column by column": lambda: np.asfortranarray(A),
    "a field of records": lambda: _records()["value"],
    "of objects": lambda: A.astype(object),
    "lists": lambda: A.tolist(),
    "blocks": lambda: [A[:5], A[5:60].astype(">f8"), A[60:][::-1][::-1]],
    "data frame": lambda: pd.DataFrame(A, columns=list("abcdefg")),
    "data frame of several dtypes": lambda: pd.DataFrame(A).astype({0: "f4", 1: "u1", 2: "Int64"}),
    **{f"SciPy {kind}": (lambda kind=kind: sp.coo_array(A).asformat(kind)) for kind in
       ("csr", "csc", "coo", "lil", "dok", "dia", "bsr")},
    "SciPy matrix": lambda: sp.csr_matrix(A),
    "SciPy blocks": lambda: [sp.csr_array(A[:40]), sp.csc_array(A[40:])],
}  # fmt: skip
TENSORS: dict[str, Callable[[], object]] = {
    **{str(dtype): (lambda dtype=dtype: torch.from_numpy(A).to(dtype)) for dtype in
       (torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64)},
    "sparse COO": lambda: torch.from_numpy(A).float().to_sparse_coo(),
    "sparse CSR": lambda: torch.from_numpy(A).half().to_sparse_csr(),
    "sparse CSC": lambda: torch.from_numpy(A).double().to_sparse_csc(),
    "blocks": lambda: torch.from_numpy(A).float().split(13),
    "RowBlocks": lambda: RowBlocks(torch.from_numpy(A).split(13)),
    "with gradients": lambda: torch.from_numpy(A).float().requires_grad_(),
}  # fmt: skip


def _records() -> np.ndarray:
    records = np.zeros(A.shape, dtype=[("name", "S3"), ("value", "f4")])
    records["value"] = A
    return records


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_give_arrays(method: str, kind: str) -> None:
    expected = estimator(method, 3)
    H = expected.fit_transform(torch.from_numpy(A).float())
    found = estimator(method, 3)
    assert isinstance(found.fit_transform(ARRAYS[kind]()), np.ndarray)
    np.testing.assert_array_equal(found.fit_transform(ARRAYS[kind]()), H.numpy())
    np.testing.assert_array_equal(found.transform(ARRAYS[kind]()), expected.transform(A))
    assert isinstance(found.components_, np.ndarray)
    np.testing.assert_array_equal(found.components_, expected.components_.numpy())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_give_tensors(method: str, kind: str) -> None:
    H = estimator(method, 3).fit_transform(torch.from_numpy(A).float())
    found = estimator(method, 3)
    assert torch.equal(found.fit_transform(TENSORS[kind]()), H)
    assert isinstance(found.components_, Tensor)
    assert not found.components_.requires_grad


@pytest.mark.parametrize("method", METHODS)
def test_what_was_fitted_to_one_kind_transforms_the_other(method: str) -> None:
    fitted = estimator(method, 3).fit(A)
    H = fitted.transform(torch.from_numpy(A))
    assert isinstance(H, Tensor)
    np.testing.assert_array_equal(fitted.transform(A), H.numpy())


@pytest.mark.parametrize("method", METHODS)
def test_truth_values_are_numbers(method: str) -> None:
    expected = estimator(method, 3).fit_transform(BINARY)
    np.testing.assert_array_equal(estimator(method, 3).fit_transform(BINARY > 0), expected)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.random.RandomState])
@pytest.mark.parametrize("method", ["nmf", "kmeans"])
def test_every_kind_of_seed_is_taken(method: str, kind: Callable[[int], object]) -> None:
    again = kind if kind is np.random.RandomState else int
    H, expected = (
        METHODS[method](3, random_state=seed(3)).fit_transform(A) for seed in (kind, again)
    )
    np.testing.assert_array_equal(H, expected)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "0", np.array([1, 2])])
@pytest.mark.parametrize("method", ["nmf", "kmeans"])
def test_what_is_no_seed_is_refused(method: str, seed: object) -> None:
    with pytest.raises(InputError, match="random_state"):
        METHODS[method](3, random_state=seed).fit(A)


@pytest.mark.parametrize(
    "wrong",
    [None, "text", 3, {"a": 1}, [["a", "b"]], A.astype(object) + 1j, A + 1j, [[1, 2], [3]],
     sp.csr_array(A + 1j), pd.DataFrame({"a": ["x", "y"]}), np.array(["2020"], "M8"), [None]],
)  # fmt: skip
@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_matrix_is_refused_in_one_sentence(method: str, wrong: object) -> None:
    with pytest.raises(InputError) as caught:
        estimator(method, 3).fit(wrong)
    assert str(caught.value).endswith(".") and ". " not in str(caught.value)


@pytest.mark.parametrize("power", [-120, -60, 60, 120, 126])
@pytest.mark.parametrize("method", METHODS)
def test_magnitude_is_only_magnitude(method: str, power: int) -> None:
    """Powers of two change no bit of a float32 matrix while it has that power."""
    X = torch.from_numpy(np.ldexp(BINARY, power)).float()
    fitted = estimator(method, 3).fit(X)
    reference = estimator(method, 3).fit(torch.from_numpy(BINARY).float())
    scale = power if method == "kmeans" else 0
    W = torch.ldexp(fitted.components_.double(), torch.tensor(-scale)).float()
    close = {"rtol": 0.0, "atol": 2e-3 if "nmf" in method else 1e-5}  # NMF: by when it stops
    torch.testing.assert_close(W, reference.components_, **close)
    H = fitted.transform(X).double()
    expected = reference.transform(torch.from_numpy(BINARY)).double()
    shift = power if method != "kmeans" else 0
    torch.testing.assert_close(torch.ldexp(H, torch.tensor(-shift)), expected, **close)
    assert fitted.relative_err_ == pytest.approx(reference.relative_err_, rel=1e-5)


@pytest.mark.parametrize("solver", ["hals", "mu"])
def test_coefficients_past_float32_are_refused(solver: str) -> None:
    X = np.full((20, 100), 1e38)
    with pytest.raises(InputError, match="divide them"):
        NMF(1, solver=solver, random_state=0).fit(X)
    fitted = NMF(1, solver=solver, random_state=0).fit(np.ones((20, 100)))
    with pytest.raises(InputError, match="divide them"):
        fitted.transform(X)
    assert NMF(1, solver=solver, random_state=0).fit_transform(X / 100).max() == pytest.approx(1e37)
    assert fitted.transform(X / 100).max() == pytest.approx(1e37)


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    exponent=st.integers(-35, 35),
    method=st.sampled_from(sorted(METHODS)),
    seed=st.integers(0, 10_000),
)
def test_anything_small_is_factorised(
    shape: tuple[int, int], density: float, exponent: int, method: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.random(shape) * (rng.random(shape) < density) * 10.0**exponent
    k = int(rng.integers(1, min(shape) + 1))
    fitted = estimator(method, k)
    H = fitted.fit_transform(X)
    assert np.isfinite(H).all() and np.isfinite(fitted.components_).all()
    scale = X.max() or 1.0
    total = np.linalg.norm(X / scale)
    error = np.linalg.norm(X / scale - (H / scale).astype(float) @ fitted.components_)
    if method == "kmeans":
        error = np.linalg.norm(X / scale - H @ (fitted.components_ / scale).astype(float))
    assert fitted.reconstruction_err_ / scale == pytest.approx(error, rel=1e-3, abs=3e-5 * total)
    np.testing.assert_allclose(
        fitted.transform(X) / scale, H / scale, atol=1e-4 * max(H.max() / scale, 1e-30)
    )


@contextmanager
def other_defaults(kind: str) -> Iterator[None]:
    """Torch's defaults as another library may have left them."""
    try:
        if kind == "float64":
            torch.set_default_dtype(torch.float64)
        elif kind == "device":
            torch.set_default_device("meta")
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


VARIANTS = {
    "in memory": (400, 40, {}),
    "by blocks": (7000, 32, {}),
    "short of memory": (24_000, 20, {"memory": 2**20}),
}


@pytest.mark.filterwarnings("ignore:memory is")
@pytest.mark.parametrize("defaults", ["float64", "device", "autocast"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "build",
    [
        lambda **kw: NMF(3, random_state=0, **kw),
        lambda **kw: NMF(3, random_state=0, init="nndsvda", max_iter=3, tol=0, **kw),
        lambda **kw: NMF(3, random_state=0, solver="mu", max_iter=3, tol=0, **kw),
        lambda **kw: PCA(3, **kw),
        lambda **kw: KMeans(3, random_state=0),
    ],
    ids=["hals", "nndsvda", "mu", "pca", "kmeans"],
)
def test_torchs_defaults_change_nothing(
    build: Callable, variant: str, defaults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variant != "in memory":
        monkeypatch.setattr("deepff.factorization.start.WHOLE_ENTRIES", 0)
    rows, channels, options = VARIANTS[variant]
    rng = np.random.default_rng(0)
    X = rng.random((rows, 3), dtype=np.float32) @ rng.random((3, channels), dtype=np.float32)
    expected = build(**options)
    H = expected.fit_transform(X)
    with other_defaults(defaults):
        found = build(**options)
        np.testing.assert_array_equal(found.fit_transform(X), H)
        transformed, back = found.transform(X), found.inverse_transform(H)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(transformed, expected.transform(X))
    np.testing.assert_array_equal(back, expected.inverse_transform(H))
