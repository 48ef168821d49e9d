"""The factorizations on a GPU agree with the CPU; and the GPU benchmark's small size on the CPU."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from matrices import noisy_product

from deepff.factorization import NMF, PCA

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@needs_gpu
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("solver", ["hals", "mu"])
def test_nmf_on_a_gpu_agrees_with_the_cpu(solver: str, resident: bool) -> None:
    A = noisy_product(rows=20_000)
    cpu = NMF(4, solver=solver, random_state=0)
    expected = cpu.fit_transform(A)
    gpu = NMF(4, solver=solver, random_state=0, device="cuda")
    H = gpu.fit_transform(A.cuda() if resident else A)
    assert H.device.type == gpu.components_.device.type == "cuda"
    assert gpu.relative_err_ == pytest.approx(cpu.relative_err_, rel=1e-4)
    torch.testing.assert_close(gpu.components_.cpu(), cpu.components_, rtol=0, atol=1e-2)
    torch.testing.assert_close(H.cpu(), expected, rtol=0, atol=1e-2 * float(expected.max()))
    torch.testing.assert_close(gpu.transform(A), H, rtol=0, atol=1e-4 * float(expected.max()))


@needs_gpu
def test_pca_on_a_gpu_agrees_with_the_cpu() -> None:
    A = noisy_product(rows=20_000)
    H = PCA(3).fit_transform(A)
    torch.testing.assert_close(PCA(3).fit_transform(A.cuda()).cpu(), H, rtol=0, atol=1e-3)


@needs_gpu
def test_half_precision_is_read_as_it_is_on_a_gpu() -> None:
    A = noisy_product(rows=20_000).half().cuda()
    half, single = NMF(4, random_state=0).fit(A), NMF(4, random_state=0).fit(A.float())
    assert torch.equal(half.components_, single.components_)


def test_the_gpu_benchmark_says_what_a_cpu_cannot_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments = ["--device", "cpu", "--images", "3", "--size", "32", "--stream", "0.002"]
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), *arguments, "--skip-tests"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert not done.value.code
    lines = capsys.readouterr().out.splitlines()
    assert any("the GPU is unmeasured" in line for line in lines)
    tables = [line.split("|") for line in lines if line.startswith("|")]
    kinds = [cells[1].strip() for cells in tables]
    for kind in ("dense", "80 % zeros"):
        for dtype in ("float32", "float16"):
            assert f"{kind}, {dtype}" in kinds
    shares = {cells[1].strip(): cells[3] for cells in tables if len(cells) == 5}
    total = sum(float(shares[stage].split("%")[0]) for stage in ("forward", "factorization"))
    assert total == pytest.approx(100, abs=1.1)
    streamed = next(line for line in lines if "streamed" in line)
    assert "0.002 GB" in streamed
