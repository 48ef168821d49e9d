"""What the tests of this folder share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

Group = Callable[[str, int], list[Path]]


@pytest.fixture(scope="session")
def group(data_root: Path) -> Group:
    """A function: up to n images of an iCoseg group, spread over it."""

    def images_of(number: str, n: int) -> list[Path]:
        folder = next((data_root / "icoseg/images").glob(f"{number} *"))
        paths = sorted(folder.glob("*.jpg"))
        return paths[:: max(1, len(paths) // n)][:n]

    return images_of


class Linear(nn.Module):
    """Two classes, linear in the means of three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ReLU()
        self.head = nn.Linear(3, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[3.0, 4.0, 0.0], [0.0, -1.0, 2.0]]))
            self.head.bias.copy_(torch.tensor([0.3, -0.1]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean((2, 3)))


@pytest.fixture(scope="module")
def linear() -> Linear:
    return Linear()
