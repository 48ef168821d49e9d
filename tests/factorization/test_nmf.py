"""NMF against planted factorizations, scikit-learn, and its own promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matrices import estimator
from rounding import coefficient_rounding
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization import METHODS, NMF, start
from deepff.factorization.blocks import RowBlocks
from deepff.factorization.nnls import CoefficientSolver, solve

SOLVERS = ["hals", "mu"]
INITS = ["random", "nndsvda"]
ROUNDING = 2e-6  # what float32 leaves uncertain of a relative error


def planted(rows: int, channels: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sparse H and W, each factor with rows and channels of its own, so that they are unique."""
    rng = np.random.default_rng(seed)
    H = rng.exponential(size=(rows, k)) * (rng.random((rows, k)) < 0.4)
    W = rng.exponential(size=(k, channels)) * (rng.random((k, channels)) < 0.4)
    H[: 4 * k] = np.tile(np.eye(k), (4, 1))
    W[:, : 2 * k] = np.tile(np.eye(k), (1, 2))
    return torch.from_numpy(H).float(), torch.from_numpy(W).float()


def activations_like(rows: int, channels: int, k: int, seed: int) -> Tensor:
    """Sparse, near low rank, with noise and dead rows: what a ReLU leaves."""
    H, W = planted(rows, channels, k, seed)
    generator = torch.Generator().manual_seed(seed)
    noise = 0.5 * torch.randn(rows, channels, generator=generator)
    A = (H @ W + noise - 0.2).clamp_min(0)
    A[::17] = 0
    return A


def cosines_after_matching(found: Tensor, true: Tensor) -> np.ndarray:
    found = torch.nn.functional.normalize(found, dim=1)
    true = torch.nn.functional.normalize(true, dim=1)
    cosines = (found @ true.T).numpy()
    return cosines[linear_sum_assignment(-cosines)]


def error(A: Tensor, H: Tensor, W: Tensor) -> float:
    return float((A.double() - H.double() @ W.double()).norm())


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("seed", range(3))
def test_hals_recovers_a_planted_factorization(init: str, seed: int) -> None:
    H, W = planted(400, 60, 4, seed)
    model = NMF(4, init=init, random_state=seed, tol=1e-7, max_iter=2000)
    found = model.fit_transform(H @ W)
    assert cosines_after_matching(model.components_, W).min() > 0.9999
    assert cosines_after_matching(found.T, H.T).min() > 0.9999
    assert model.relative_err_ < 1e-3


def test_mu_recovers_a_planted_factorization() -> None:
    H, W = planted(400, 60, 3)
    model = NMF(3, solver="mu", random_state=0, tol=0, max_iter=2000)
    found = model.fit_transform(H @ W)
    assert cosines_after_matching(model.components_, W).min() > 0.999
    assert cosines_after_matching(found.T, H.T).min() > 0.999


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [2, 6])
def test_hals_reaches_scikit_learns_error(k: int, seed: int) -> None:
    from sklearn import decomposition

    A = activations_like(600, 80, 8, seed)
    theirs = decomposition.NMF(k, init="random", random_state=seed, max_iter=500, tol=1e-5)
    theirs.fit(A.numpy())
    ours = NMF(k, random_state=seed).fit(A)
    assert ours.reconstruction_err_ <= 1.001 * theirs.reconstruction_err_


def test_hals_on_a_sample_reaches_the_error_of_all_rows() -> None:
    A = activations_like(start.SAMPLE_ROWS + 6000, 40, 8, 0)
    model = NMF(5, random_state=0).fit(A)
    everything = NMF(5, random_state=1, max_iter=100, tol=1e-7)
    everything.fit(A[torch.randperm(len(A), generator=torch.Generator().manual_seed(0))])
    assert model.reconstruction_err_ <= 1.001 * everything.reconstruction_err_
    assert model.n_reads_ <= 12


@pytest.mark.parametrize("k", [4, 12, 20])
def test_every_group_of_rows_gets_a_factor(k: int) -> None:
    """Groups without a channel in common: a start without a row of each rarely finds them all."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        H = torch.zeros(2000, k)
        H[torch.arange(2000), torch.randint(k, (2000,), generator=generator)] = 1
        H *= torch.rand(2000, 1, generator=generator)
        W = torch.block_diag(*torch.rand(k, 1, 6, generator=generator))
        model = NMF(k, random_state=seed).fit(H @ W)
        assert model.relative_err_ < 1e-5
        assert cosines_after_matching(model.components_, W).min() > 0.9999


@pytest.mark.parametrize("seed", range(3))
def test_reading_stops_where_more_of_it_would_gain_less_than_the_tolerance(seed: int) -> None:
    A = activations_like(40_000, 64, 4, seed)
    model = NMF(4, random_state=0).fit(A)
    longer = NMF(4, random_state=0, max_iter=20, tol=0).fit(A)
    assert model.n_reads_ == 3  # the check, one iteration, the solution for H
    assert model.relative_err_ <= (1 + model.tol) * longer.relative_err_
    assert NMF(4, random_state=0, tol=1e-7).fit(A).n_reads_ > 3


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("init", INITS)
def test_reported_error_is_that_of_the_returned_factors(solver: str, init: str) -> None:
    A = activations_like(300, 40, 5, 0)
    model = NMF(3, solver=solver, init=init, random_state=0, max_iter=30)
    H = model.fit_transform(A)
    expected = error(A, H, model.components_)
    assert model.reconstruction_err_ == pytest.approx(expected, rel=1e-5)
    assert model.relative_err_ == pytest.approx(expected / float(A.double().norm()), rel=1e-5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_reported_error_is_right_where_the_fit_is_nearly_exact(solver: str) -> None:
    H, W = planted(500, 50, 3)
    A = H @ W
    A[:, :3] += 1e-4
    model = NMF(3, solver=solver, random_state=0, tol=0, max_iter=300)
    H = model.fit_transform(A)
    assert model.relative_err_ < 0.02
    assert model.reconstruction_err_ == pytest.approx(error(A, H, model.components_), rel=1e-2)


@pytest.mark.parametrize("rank_one", [True, False])
def test_exactly_representable_matrices_have_error_zero(rank_one: bool) -> None:
    A = torch.full((200, 30), 3.0) if rank_one else torch.eye(30).repeat(4, 1)[:, :5]
    k = 1 if rank_one else 5
    model = NMF(k, random_state=0).fit(A)
    assert model.relative_err_ < 1e-5


def test_coefficients_agree_with_scikit_learn_for_the_same_components() -> None:
    from sklearn.decomposition import non_negative_factorization

    A = activations_like(200, 40, 5, 0)
    model = NMF(5, random_state=0).fit(A)
    theirs, _, _ = non_negative_factorization(
        A.double().numpy(),
        H=model.components_.double().numpy(),
        n_components=5,
        init="custom",
        update_H=False,
        tol=1e-12,
        max_iter=5000,
    )
    np.testing.assert_allclose(model.transform(A).numpy(), theirs, atol=1e-4 * theirs.max())


@pytest.mark.parametrize("solver", SOLVERS)
def test_transform_reproduces_the_coefficients_of_the_fit(solver: str) -> None:
    A = activations_like(300, 40, 5, 1)
    model = NMF(4, solver=solver, random_state=0, max_iter=20)
    H = model.fit_transform(A)
    close = coefficient_rounding(A, model.components_)
    torch.testing.assert_close(model.transform(A), H, rtol=0, atol=close)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_transform_reproduces_h_where_it_is_not_unique(solver: str, init: str, k: int) -> None:
    """Of a constant matrix, rows of W may be equal, and H could be shared among them at will."""
    A = torch.ones(50, 8)
    nmf = NMF(k, solver=solver, init=init, random_state=0)
    # Equal rows of W are interchangeable: the fit sorts them by weight, which rounding decides.
    H = nmf.fit_transform(A).sort(1).values
    transformed = nmf.transform(A).sort(1).values
    torch.testing.assert_close(transformed, H, rtol=0, atol=1e-5 * float(H.max()))


@settings(deadline=None, max_examples=60)
@given(k=st.integers(1, 12), m=st.integers(1, 30), rank=st.integers(1, 12), seed=st.integers(0, 99))
@example(k=7, m=19, rank=7, seed=88)  # one direction of Q is 2e-7 of the largest
def test_least_squares_solution_is_optimal(k: int, m: int, rank: int, seed: int) -> None:
    """Karush-Kuhn-Tucker: X ≥ 0, gradient ≥ 0, and one of them zero; also for singular Q."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(k, min(k, rank), generator=generator)
    A = torch.randn(m, W.shape[1], generator=generator)
    G, Q = W @ A.T, W @ W.T
    X = solve(torch.zeros_like(G), G, Q).double()
    gradient = Q.double() @ X - G.double()
    slack = 1e-4 * float(G.abs().max())
    assert (X >= 0).all()
    assert (gradient >= -slack).all()
    assert float((X * gradient).abs().max()) <= slack * max(1.0, float(X.max()))


@settings(deadline=None, max_examples=40)
@given(
    solver=st.sampled_from(SOLVERS),
    init=st.sampled_from(INITS),
    rows=st.integers(1, 60),
    channels=st.integers(1, 40),
    k=st.integers(1, 8),
    exponent=st.integers(-30, 30),
    seed=st.integers(0, 1000),
)
def test_objective_never_rises_and_nothing_overflows(
    solver: str, init: str, rows: int, channels: int, k: int, exponent: int, seed: int
) -> None:
    k = min(k, rows, channels)
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(rows, channels, generator=generator).clamp_min(0) * 10.0**exponent
    model = NMF(k, solver=solver, init=init, random_state=seed, max_iter=25, tol=0)
    H = model.fit_transform(A)
    assert H.isfinite().all()
    assert (H >= 0).all()
    assert model.components_.isfinite().all()
    assert (model.components_ >= 0).all()
    history = np.array(model.errors_)
    assert len(history) == model.n_iter_ + 1
    assert (np.diff(history) <= ROUNDING).all()
    assert history[-1] == model.relative_err_ <= 1 + 1e-6


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_iterations_never_fit_worse(solver: str) -> None:
    A = activations_like(200, 30, 5, 0)
    errors = [
        NMF(4, solver=solver, init="nndsvda", max_iter=i, tol=0).fit(A).relative_err_
        for i in (1, 2, 3, 5, 10, 20, 40)
    ]
    assert (np.diff(errors) <= ROUNDING).all()
    assert errors[-1] < 0.98 * errors[0]


@settings(deadline=None, max_examples=25)
@given(solver=st.sampled_from(SOLVERS), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_result_does_not_depend_on_the_split_into_blocks(solver: str, cuts: list[int]) -> None:
    A = activations_like(400, 30, 5, 0)
    whole = NMF(3, solver=solver, random_state=0, max_iter=20)
    split = NMF(3, solver=solver, random_state=0, max_iter=20)
    H = whole.fit_transform(A)
    parts = list(A.tensor_split(sorted(cuts)))
    torch.testing.assert_close(split.fit_transform(parts), H, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(split.components_, whole.components_, rtol=1e-5, atol=1e-6)


def test_blocks_and_samples_are_the_rows_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepff.factorization.blocks.CPU_BLOCK_BYTES", 0)  # 64 rows
    A = torch.arange(200 * 3).reshape(200, 3)
    rows = RowBlocks(A.tensor_split([0, 10, 10, 63, 130]))
    assert torch.equal(torch.cat([block for _, block in rows]), A.float())
    assert [index.start for index, _ in rows] == [0, 64, 128, 192]
    assert rows.n_reads == 2
    indices = torch.tensor([0, 9, 10, 62, 63, 129, 130, 199])
    assert torch.equal(rows.take(indices), A[indices].float())


@pytest.mark.parametrize("solver", SOLVERS)
def test_many_blocks_give_what_one_gives(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A = activations_like(400, 30, 5, 0)
    one = NMF(3, solver=solver, random_state=0, max_iter=20).fit(A)
    monkeypatch.setattr("deepff.factorization.blocks.CPU_BLOCK_BYTES", 0)
    many = NMF(3, solver=solver, random_state=0, max_iter=20).fit(A)
    torch.testing.assert_close(many.components_, one.components_, rtol=1e-3, atol=1e-4)
    assert many.reconstruction_err_ == pytest.approx(one.reconstruction_err_, rel=1e-5)


def test_every_kind_of_input_gives_the_same(tmp_path) -> None:
    A = activations_like(300, 30, 5, 0)
    np.save(tmp_path / "A.npy", A.numpy())
    inputs = [
        A.numpy(),
        A.double().numpy(),
        A.numpy().astype(">f4"),
        [A[:100], A[100:]],
        [A[:100].numpy(), A[100:].numpy()],
        np.load(tmp_path / "A.npy", mmap_mode="r"),
        A.clone().requires_grad_(),
        A.T.contiguous().T,
    ]
    H = NMF(3, random_state=0).fit_transform(A)
    for other in inputs:
        found = torch.as_tensor(NMF(3, random_state=0).fit_transform(other))
        torch.testing.assert_close(found, H)


def test_half_precision_is_read_as_it_is() -> None:
    A = activations_like(100, 20, 3, 0).half()
    H = NMF(2, random_state=0).fit_transform(A)
    assert torch.equal(H, NMF(2, random_state=0).fit_transform(A.float()))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_seed_gives_the_same_bits_and_leaves_global_draws_alone(solver: str) -> None:
    A = activations_like(300, 30, 5, 0)
    before = torch.get_rng_state()
    a, b = (NMF(4, solver=solver, random_state=7, max_iter=20) for _ in range(2))
    assert torch.equal(a.fit_transform(A), b.fit_transform(A))
    assert torch.equal(a.components_, b.components_)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("k", [2, 5, 6])
def test_one_start_is_enough_of_them(k: int) -> None:
    A = activations_like(200, 6, 3, 0)
    assert NMF(k, n_init=1, random_state=0).fit(A).relative_err_ < NMF(1).fit(A).relative_err_


def test_nndsvda_needs_no_seed() -> None:
    A = activations_like(300, 30, 5, 0)
    a, b = (NMF(4, init="nndsvda", random_state=seed).fit(A) for seed in (None, 5))
    assert torch.equal(a.components_, b.components_)


def test_components_have_length_one_and_fall_in_weight() -> None:
    A = activations_like(300, 30, 5, 0)
    model = NMF(4, random_state=0)
    H = model.fit_transform(A)
    torch.testing.assert_close(model.components_.norm(dim=1), torch.ones(4))
    weights = H.norm(dim=0)
    assert (weights.diff() <= 0).all()


def test_input_is_never_written_to() -> None:
    A = activations_like(200, 20, 3, 0) * 1e30
    copy = A.clone()
    NMF(2, random_state=0).fit(A)
    assert torch.equal(A, copy)


ZERO_ROWS = torch.cat([torch.zeros(50, 6), torch.rand(5, 6)])
ZERO_COLUMNS = torch.cat([torch.zeros(30, 4), torch.rand(30, 4)], dim=1)
DEGENERATE = {
    "all zero": (torch.zeros(20, 6), 3),
    "constant": (torch.full((20, 6), 2.0), 3),
    "one entry": (torch.tensor([[5.0]]), 1),
    "one row": (torch.rand(1, 9), 1),
    "one channel": (torch.rand(9, 1), 1),
    "one non-zero entry": (torch.eye(8)[:1].repeat(8, 1) * torch.eye(8), 4),
    "zero rows": (ZERO_ROWS, 4),
    "zero columns": (ZERO_COLUMNS, 4),
    "k = channels": (torch.rand(30, 5), 5),
    "k = rows": (torch.rand(5, 30), 5),
    "k > rank": (torch.rand(40, 1) @ torch.rand(1, 12), 6),
    "equal rows": (torch.rand(1, 12).repeat(40, 1), 3),
    "tiny": (torch.rand(40, 12) * 1e-30, 3),
    "huge": (torch.rand(40, 12) * 1e30, 3),
    "subnormal": (torch.rand(40, 12) * 1e-40, 3),
    "one huge row": (torch.cat([torch.rand(40, 12), torch.full((1, 12), 1e30)]), 3),
    "one huge column": (torch.cat([torch.rand(40, 11), torch.full((40, 1), 1e20)], 1), 3),
    "negative zero": (torch.full((10, 4), -0.0), 2),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_degenerate_matrices(name: str, solver: str, init: str) -> None:
    A, k = DEGENERATE[name]
    model = NMF(k, solver=solver, init=init, random_state=0, max_iter=50)
    H = model.fit_transform(A)
    assert H.shape == (len(A), k)
    for values in (H, model.components_, model.transform(A)):
        assert values.isfinite().all()
        assert (values >= 0).all()
    assert math.isfinite(model.reconstruction_err_)
    scale = float(A.max()) or 1.0
    total = float((A.double() / scale).norm())
    expected = error(A.double() / scale, H.double() / scale, model.components_)
    assert model.reconstruction_err_ / scale == pytest.approx(expected, rel=1e-3, abs=1e-5 * total)
    assert 0 <= model.relative_err_ <= 1
    assert H[(A == 0).all(1)].abs().sum() == 0


@pytest.mark.parametrize("name", ["all zero", "constant", "k > rank", "equal rows", "one entry"])
def test_degenerate_matrices_of_low_rank_are_fitted_exactly(name: str) -> None:
    A, k = DEGENERATE[name]
    assert NMF(k, random_state=0).fit(A).relative_err_ < 1e-4


BAD_MATRICES = {
    "negative": (torch.tensor([[1.0, -0.25], [0.5, 1.0]]), r"-0\.25"),
    "nan": (torch.tensor([[1.0, math.nan], [0.5, 1.0]]), "NaN or infinite"),
    "inf": (torch.tensor([[1.0, math.inf], [0.5, 1.0]]), "NaN or infinite"),
    "minus inf": (torch.tensor([[1.0, -math.inf], [0.5, 1.0]]), "NaN or infinite"),
    "past float32": (np.array([[1.0, 1e300], [0.5, 1.0]]), "NaN or infinite"),
    "one dimension": (torch.rand(5), "1 dimensions"),
    "four dimensions": (torch.rand(2, 3, 4, 5), "4 dimensions"),
    "complex": (torch.ones(3, 3, dtype=torch.complex64), "complex64"),
    "strings": (np.array([["a"]]), "type"),
    "nothing": ([], "at least one row"),
    "no rows": (torch.rand(0, 5), "0 rows"),
    "no channels": (torch.rand(5, 0), "0 channels"),
    "unequal channels": ([torch.rand(5, 3), torch.rand(5, 4)], "3 and 4 channels"),
}


@pytest.mark.parametrize("name", BAD_MATRICES)
def test_bad_matrices_are_refused_in_one_sentence(name: str) -> None:
    A, message = BAD_MATRICES[name]
    with pytest.raises(InputError, match=message) as caught:
        NMF(1, random_state=0).fit(A)
    assert str(caught.value).count(". ") == 0
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "parameters",
    [
        {"n_components": 0},
        {"n_components": -1},
        {"n_components": 2.0},
        {"n_components": True},
        {"n_components": 5},
        {"n_components": 2, "solver": "cd"},
        {"n_components": 2, "init": "custom"},
        {"n_components": 2, "max_iter": 0},
        {"n_components": 2, "n_init": 0},
        {"n_components": 2, "tol": -1e-4},
        {"n_components": 2, "tol": math.nan},
    ],
)
@pytest.mark.parametrize("shape", [(4, 9), (9, 4)])
def test_bad_parameters_are_refused(parameters: dict, shape: tuple[int, int]) -> None:
    with pytest.raises(InputError):
        NMF(**parameters).fit(torch.rand(shape))


def test_transform_refuses_what_it_was_not_fitted_for() -> None:
    with pytest.raises(InputError, match="not fitted"):
        NMF(2).transform(torch.rand(5, 4))
    model = NMF(2, random_state=0).fit(torch.rand(9, 4))
    with pytest.raises(InputError, match="5 features"):
        model.transform(torch.rand(9, 5))
    with pytest.raises(InputError, match="-1"):
        model.transform(-torch.ones(9, 4))
    with pytest.raises(InputError, match="NaN or infinite"):
        model.transform(torch.full((9, 4), math.nan))
    assert model.transform(torch.rand(1, 4)).shape == (1, 2)


@pytest.mark.parametrize("method", METHODS)
def test_transformed_rows_give_what_the_transformed_matrix_gives(method: str) -> None:
    A = activations_like(700, 30, 3, seed=1)
    weights = torch.linspace(0, 2, 30)
    kept = torch.arange(700) % 3 > 0

    def transform(index: slice | Tensor, rows: Tensor) -> Tensor:
        return rows * weights * kept[index, None]

    blocks = RowBlocks([A[:100], A[100:]], transform=transform)
    model, reference = estimator(method, 3), estimator(method, 3)
    H = model.fit_transform(blocks)
    expected = reference.fit_transform(A * weights * kept[:, None])
    assert torch.equal(H, expected)
    assert torch.equal(model.components_, reference.components_)
    assert torch.equal(model.transform(blocks), reference.transform(A * weights * kept[:, None]))


def test_of_runs_the_best_wins_and_of_those_that_end_alike_the_first() -> None:
    """Rounding, which another engine does otherwise, would make another of them the best."""
    energy = torch.tensor(100.0)
    losses = torch.tensor([5.0, 2.0001, 2.0, 2.1, 2.00015]) - energy
    assert start.stable_order(losses, energy).argsort().tolist() == [1, 2, 4, 3, 0]
    exact = torch.tensor([1.0, 3e-5, 0.0]) - energy  # rounding is all that is left
    assert start.stable_order(exact, energy).argsort().tolist() == [1, 2, 0]


def test_the_losses_of_a_race_are_what_runs_are_ordered_by() -> None:
    """‖B − HW‖² less ‖B‖², and so never above 0."""
    generator = torch.Generator().manual_seed(0)
    A = torch.rand(300, 20, generator=generator)
    basis = start.leading_subspace(A, 4, generator)
    B = start.projected(A, basis)
    W, losses = start.hals_runs(B, basis, A[:12].view(3, 4, 20).clone(), 20)
    for found, loss in zip(W, losses, strict=True):
        H = solve(torch.zeros(4, 300), found @ A.T, found @ found.T).T
        expected = (A - H @ found).square().sum() - A.square().sum()
        assert float(loss) == pytest.approx(float(expected), rel=0.01)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("method", ["nmf", "semi-nmf"])
def test_of_a_rank_below_k_transform_gives_the_h_of_the_fit(method: str, seed: int) -> None:
    """Many H are as good there: three columns, ten times each, and five factors."""
    A = np.repeat(np.random.default_rng(seed).random((100, 3)), 10, axis=1)
    model = METHODS[method](5, random_state=seed)
    H = model.fit_transform(A)
    assert np.abs(model.transform(A) - H).max() <= 1e-5 * H.max()


@pytest.mark.parametrize("signed", [False, True])
def test_of_many_solutions_the_order_of_components_does_not_choose(signed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    basis = torch.rand(3, 30, generator=generator)
    W = torch.nn.functional.normalize(torch.rand(6, 3, generator=generator) @ basis)
    A = torch.rand(200, 3, generator=generator) @ basis
    lengths = A.norm(dim=1)
    H, _ = CoefficientSolver(W, signed).solve(A, lengths)
    for _ in range(5):
        order = torch.randperm(6, generator=generator)
        again, _ = CoefficientSolver(W[order], signed).solve(A, lengths)
        assert torch.equal(again, H[order])
