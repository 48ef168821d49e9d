"""One run over several processes, started by torchrun as a user would."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

import deepff
from deepff.evaluation.datasets.mask_folders import load_icoseg
from deepff.runtime import distributed

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def photos(data_root: Path, folder: Path, n: int) -> Path:
    folder.mkdir()
    for path in sorted((data_root / "VOCdevkit/VOC2007/JPEGImages").glob("*.jpg"))[:n]:
        (folder / path.name).symlink_to(path)
    return folder


def same(shared: deepff.Result, alone: deepff.Result) -> None:
    """What several processes found is what one finds, but for rounding."""
    assert shared.names == alone.names
    assert shared.separation == pytest.approx(alone.separation, abs=1e-4)
    assert [file.name for file in shared.skipped] == ["broken.jpg"]
    for k, found in alone.factorizations.items():
        other = shared.factorizations[k]
        assert other.relative_error == pytest.approx(found.relative_error, abs=1e-4)
        scale = found.heatmaps.scale
        # Sums in another order, over the iterations of a fit.
        assert ((other.coefficients - found.coefficients).abs() / scale).max() < 5e-4
        torch.testing.assert_close(other.components, found.components, atol=1e-4, rtol=0)
        if found.probabilities is not None:
            # What it was taught by differs by rounding.
            assert other.probabilities.grids == found.probabilities.grids
            difference = other.probabilities.coefficients - found.probabilities.coefficients
            assert difference.abs().mean() < 5e-3
        if found.scores is not None:
            assert torch.equal(other.known.factors, found.known.factors)
            torch.testing.assert_close(
                other.known.features, found.known.features, atol=2e-3, rtol=0
            )
            assert (shared.scores() - alone.scores()).abs().max() < 0.02


def test_two_processes_give_what_one_gives(data_root, tmp_path):
    """By the command; six kites and five cheetahs in turns, and an image that is broken."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, group in enumerate(load_icoseg(data_root / "icoseg", ["033", "028"])):
        for place, item in enumerate(group.images[: 6 - number]):
            (folder / f"{place}{number}.jpg").symlink_to(item.image.path.resolve())
    (folder / "broken.jpg").write_bytes(b"")
    out, cache = tmp_path / "out", tmp_path / "cache"
    command = ["-m", "deepff", "discover", str(folder), "--size", "224", "--recipe", "contrast"]
    outcome = subprocess.run(
        [*TORCHRUN, "--nproc-per-node=2", *command, "--out", str(out), "--cache", str(cache)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("report.html") == 1
    alone = deepff.discover(folder, size=224, recipe="contrast")
    assert alone.factorization().probabilities is not None
    assert (alone.scores() > 0).tolist() == [[True, False], [False, True]] * 5 + [[True, False]]
    same(deepff.load(out), alone)
    caches = sorted(path.name for path in cache.iterdir())
    assert caches == [f"rank-{rank}-of-2" for rank in range(2)]


RUNS = {"factors": {"n_components": [1, 3]}, "contrast": {"recipe": "contrast"}}


def run_rank(rank: int, folder: Path) -> None:
    """As a program of one's own: two runs, one after the other."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=3)
    distributed.join()  # which they have done already
    for name, options in RUNS.items():
        cache = folder / "cache"
        result = deepff.discover(folder / "photos", size=224, cache=cache, **options)
        if distributed.rank() == 0:
            result.save(folder / name)
    distributed.leave()


def test_more_processes_than_images_give_what_one_gives(data_root, tmp_path):
    folder = photos(data_root, tmp_path / "photos", 2)
    (folder / "broken.jpg").write_bytes(b"")
    run_ranks(run_rank, (tmp_path,), 3)
    for name, options in RUNS.items():
        alone = deepff.discover(folder, size=224, **options)
        assert (alone.factorizations[1].probabilities is not None) == (name == "contrast")
        same(deepff.load(tmp_path / name), alone)
    caches = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert caches == [f"rank-{rank}-of-3" for rank in range(3)]


def test_a_process_that_dies_brings_the_run_down(data_root, tmp_path):
    folder = photos(data_root, tmp_path / "photos", 60)
    run = ["-m", "deepff", "discover", str(folder), "-k", "2", "--out", str(tmp_path / "out")]
    command = [*TORCHRUN, "--nproc-per-node=2", *run, "--cache", str(tmp_path / "cache")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as launcher:
        index = tmp_path / "cache/rank-1-of-2"
        while not list(index.glob("*/activations.f32")) and launcher.poll() is None:
            time.sleep(0.1)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        ranks = [int(child) for child in children if "RANK=1" in environment(child)]
        os.kill(ranks[0], signal.SIGKILL)
        killed = time.monotonic()
        _, errors = launcher.communicate(timeout=60)
        assert time.monotonic() - killed < 60
    assert launcher.returncode != 0
    assert "SIGKILL" in errors or "exitcode" in errors
    assert not (tmp_path / "out/manifest.json").exists()


def environment(process: str) -> list[str]:
    return Path(f"/proc/{process}/environ").read_text().split("\0")
