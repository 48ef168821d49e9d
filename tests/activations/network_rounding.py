"""How far the values of a network may differ where only the order of sums does."""

import torch

# Of the largest value: 50 layers in a row that each sum about 1,000 products in float32, whose
# rounding errors add up like a random walk. That is 2e-4; a mistake makes more than 1e-2.
ROUNDING = 50 * 1000**0.5 * torch.finfo(torch.float32).eps


def assert_equal_but_for_rounding(values: torch.Tensor, expected: torch.Tensor) -> None:
    """Values of a network that another order of sums gave."""
    assert values.shape == expected.shape
    assert (values - expected).abs().max() <= ROUNDING * expected.abs().max()
