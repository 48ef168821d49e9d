"""Freed memory that is kept for a while."""

import platform
import resource
from pathlib import Path

import pytest
import torch

from deepff.runtime.memory import freed_memory_kept

with_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back at once"
)

SIDE = 4096  # 64 MiB of float32
N_TIMES = 20


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def allocate_and_free() -> None:
    torch.ones(SIDE, SIDE)


@with_glibc
def test_what_was_freed_is_used_again_inside_and_given_back_after() -> None:
    allocate_and_free()
    before = page_faults()
    for _ in range(N_TIMES):
        allocate_and_free()
    unkept = page_faults() - before
    held = resident_bytes()
    with freed_memory_kept():
        allocate_and_free()
        before = page_faults()
        for _ in range(N_TIMES):
            with freed_memory_kept():  # as what calls another may
                allocate_and_free()
        kept = page_faults() - before
        assert resident_bytes() - held > 4 * SIDE**2 / 2
    # One or another may not fit into what lies between two that are in use.
    assert kept < unkept / 3
    assert resident_bytes() - held < 4 * SIDE**2 / 4
    before = page_faults()
    allocate_and_free()
    assert page_faults() - before > unkept / N_TIMES / 2
