"""Items taken ahead, and one thread of PyTorch in the thread that asks for it alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from deepff.runtime.parallel import ahead, one_thread


@pytest.mark.parametrize(("n", "taken"), [(0, [1, 2, 3, 4]), (2, [3, 4, 4, 4]), (9, [4, 4, 4, 4])])
def test_so_many_items_are_taken_before_each_is_given(n, taken):
    started: list[str] = []

    def items():
        for item in "abcd":
            started.append(item)
            yield item

    assert [(item, len(started)) for item in ahead(items(), n)] == list(
        zip("abcd", taken, strict=True)
    )


def test_one_thread_is_for_the_thread_that_asks_alone():
    before = torch.get_num_threads()

    def elsewhere() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    torch.set_num_threads(3)
    try:
        with one_thread():
            assert (torch.get_num_threads(), elsewhere()) == (1, 3)
        assert (torch.get_num_threads(), elsewhere()) == (3, 3)
    finally:
        torch.set_num_threads(before)
