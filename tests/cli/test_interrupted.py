"""Ctrl-C half-way: what is said, and what is left."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from planted import result_of

N_IMAGES = 8


def photographs(folder: Path) -> list[str]:
    folder.mkdir()
    names = [f"{i:02d}.png" for i in range(N_IMAGES)]
    pixels = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    for name in names:
        Image.fromarray(pixels).save(folder / name, compress_level=0)
    return names


def said_when_interrupted(half_way: Callable[[], bool], *arguments: str | Path) -> tuple[int, str]:
    """The exit status, and the last line on standard error."""
    command = [sys.executable, "-m", "deepff", *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not half_way():
            assert process.poll() is None, "the run ended before it was interrupted"
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    return process.returncode, errors.splitlines()[-1]


def test_a_command_with_a_cache_says_that_it_goes_on(tmp_path: Path) -> None:
    photographs(tmp_path / "photos")
    cache, out = tmp_path / "cache", tmp_path / "out"
    options = ["--size", "224", "--batch-size", "1", "--cache", cache, "--out", out]
    status, said = said_when_interrupted(
        lambda: any(file.stat().st_size for file in cache.glob("*/activations.f32")),
        *("discover", tmp_path / "photos", *options),
    )
    assert status == 130
    assert said == "deepff: interrupted; run the same command with --cache again to resume"
    assert not out.exists()


def test_a_command_without_one_says_that_it_begins_anew(tmp_path: Path) -> None:
    names = photographs(tmp_path / "photos")
    maps = torch.zeros(N_IMAGES, 1, 120, 160)
    maps[:, 0, :60, :80] = 1
    result_of(maps, names, tmp_path / "photos").save(tmp_path / "result")
    before = {file: file.read_bytes() for file in (tmp_path / "result").rglob("*.*")}
    status, said = said_when_interrupted(
        lambda: any((tmp_path / "result" / "masks").glob(".*/**/*.png")),
        *("segment", tmp_path / "result", "--refine", "dense-crf"),
    )
    assert status == 130
    assert said == (
        "deepff: interrupted; earlier results are unchanged, and the same command starts over"
    )
    after = {file: file.read_bytes() for file in (tmp_path / "result").rglob("*.*")}
    assert after == before
