"""What is kept of what was worked out before."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from deepff.runtime.memory import Kept


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
