"""Freed memory that is kept for a while, and results that are kept in bounded memory."""

import platform
import resource
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepff.runtime.parallel import Kept, freed_memory_kept

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
    # In a process of its own: what other tests left free would serve, too.
    process = get_context("spawn").Process(target=check_freed_memory)
    process.start()
    process.join()
    assert process.exitcode == 0


def check_freed_memory() -> None:
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


@dataclass(frozen=True)
class Outcome:
    of: int
    n_bytes: int


@given(asked=st.lists(st.integers(1, 12), max_size=60))
def test_each_key_has_its_own_outcome_and_the_bound_holds(asked: list[int]) -> None:
    kept: Kept[Outcome] = Kept(20)
    held: dict[int, Outcome] = {}
    for key in asked:
        found = kept.get(key, lambda key=key: Outcome(key, key))
        assert found.of == key
        held[key] = found
    in_memory = [
        outcome
        for key, outcome in held.items()
        if kept.get(key, lambda: Outcome(-1, 21)) is outcome  # too large to be kept
    ]
    assert sum(outcome.n_bytes for outcome in in_memory) <= 20
    assert not asked or asked[-1] in [outcome.of for outcome in in_memory]


def test_going_over_a_set_again_and_again_finds_many_though_not_all_fit() -> None:
    kept: Kept[Outcome] = Kept(80)
    made = []

    def make(key: int) -> Outcome:
        made.append(key)
        return Outcome(key, 1)

    for _ in range(10):
        for key in range(100):
            kept.get(key, lambda key=key: make(key))
    # Giving up what was asked for longest ago would make all 1000.
    assert len(made) < 600


def test_what_is_larger_than_all_of_the_memory_is_not_kept() -> None:
    kept: Kept[Outcome] = Kept(10)
    first = kept.get(0, lambda: Outcome(0, 11))
    assert kept.get(0, lambda: Outcome(0, 11)) is not first
