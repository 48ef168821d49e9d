"""Rows spread over processes against the same rows in one: gloo on loopback, uneven shares."""

import functools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from deepff.errors import InputError
from deepff.factorization import NMF, PCA, KMeans, SemiNMF
from deepff.factorization.blocks import RowBlocks

K = 4
# Where rank 0's rows end and rank 1's begin, and so on: of two ranks one has fewer rows than k,
# and of three one has none.
SHARES = {"two": [1203], "three": [700, 700]}
MODELS = {
    "hals": functools.partial(NMF, K, random_state=0),
    "nndsvda": functools.partial(NMF, K, init="nndsvda"),
    "mu": functools.partial(NMF, K, solver="mu", random_state=0, max_iter=30),
    "unseeded": functools.partial(NMF, K, max_iter=50, tol=1e-6),
    "semi": functools.partial(SemiNMF, K, random_state=0, max_iter=30),
    "pca": functools.partial(PCA, K),
}


def matrix(scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    H = torch.rand(1205, K, generator=generator) ** 4
    W = torch.rand(K, 40, generator=generator) ** 4
    noise = 0.05 * torch.randn(1205, 40, generator=generator)
    A = (H @ W + noise).clamp_min(0) * scale
    A[::11] = 0
    return A


def matrix_for(label: str) -> Tensor:
    if label == "semi":
        A = matrix()
        return A - 1.5 * A.mean(0)
    return matrix(1e30 if label == "huge" else 1.0)


def own_share(A: Tensor, name: str, rank: int) -> Tensor:
    return A.tensor_split(SHARES[name])[rank]


def run_rank(rank: int, name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(SHARES[name]) + 1
    )
    # A small sample, so that not all rows are in it.
    from deepff.factorization import nmf, start

    nmf.SAMPLE_ROWS = start.SAMPLE_ROWS = 500
    start.WHOLE_ENTRIES = 0
    found = {}
    for label, build in MODELS.items():
        model = build()
        share = own_share(matrix_for(label), name, rank)
        H = model.fit_transform(share)
        fitted = (model.components_, model.relative_err_, model.n_iter_, model.n_reads_)
        found[label] = (H, *fitted, model.transform(share))
    huge = NMF(K, random_state=0)
    H = huge.fit_transform(own_share(matrix(1e30), name, rank))
    found["huge"] = (H, huge.components_, huge.relative_err_, huge.n_iter_, huge.n_reads_, H)
    messages = []
    share = own_share(matrix(), name, rank)
    bad = matrix()
    bad[0, 0] = -0.5  # in rank 0's rows only
    for model, A in [
        (NMF(K), own_share(bad, name, rank)),
        (NMF(41), share),
        (NMF(3), share[: 2 * (rank == 0)]),
        (KMeans(2), share),
    ]:
        try:
            model.fit(A)
        except InputError as error:
            messages.append(str(error))
    torch.save((found, messages), folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=SHARES)
def ranks(request, tmp_path_factory) -> list[tuple[dict, list[str]]]:
    folder = tmp_path_factory.mktemp("ranks")
    n_ranks = len(SHARES[request.param]) + 1
    run_ranks(run_rank, (request.param, folder), n_ranks)
    return [torch.load(folder / f"{rank}.pt") for rank in range(n_ranks)]


@pytest.mark.parametrize("label", [*MODELS, "huge"])
def test_ranks_find_what_one_process_finds(
    label: str, ranks: list[tuple[dict, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("nmf", "start"):
        monkeypatch.setattr(f"deepff.factorization.{module}.SAMPLE_ROWS", 500)
    monkeypatch.setattr("deepff.factorization.start.WHOLE_ENTRIES", 0)
    found = [results[label] for results, _ in ranks]
    A = matrix_for(label)
    H, W = torch.cat([one[0] for one in found]), found[0][1]
    for other in found[1:]:
        assert torch.equal(other[1], W)
        assert other[2:5] == found[0][2:5]
    error = float((A.double() - H.double() @ W.double()).norm() / A.double().norm())
    assert found[0][2] == pytest.approx(error, rel=1e-5)
    transformed = torch.cat([one[5] for one in found])
    torch.testing.assert_close(transformed, H, rtol=1e-4, atol=1e-4 * float(H.abs().max()))
    if label == "unseeded":
        return
    model = MODELS.get(label, MODELS["hals"])()
    expected = model.fit_transform(A)
    torch.testing.assert_close(W, model.components_, rtol=0, atol=1e-4)
    torch.testing.assert_close(H, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    assert found[0][2] == pytest.approx(model.relative_err_, rel=1e-4)
    assert found[0][3:5] == (model.n_iter_, model.n_reads_)


def test_mistakes_are_refused_by_every_rank(ranks: list[tuple[dict, list[str]]]) -> None:
    for _, messages in ranks:
        assert len(messages) == 4
        assert "-0.5" in messages[0]
        assert "1205 rows and 40 channels" in messages[1]
        assert "2 rows" in messages[2]
        assert "one process" in messages[3]


def test_one_process_needs_rows() -> None:
    with pytest.raises(InputError, match="0 rows"):
        RowBlocks(torch.zeros(0, 3))
