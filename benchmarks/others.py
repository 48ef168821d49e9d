"""What a researcher writes with deepff and with other tools to study one small network.

usage: OMP_NUM_THREADS=1 python benchmarks/others.py
A convolutional network that was trained on scikit-learn's digits, and 100 digits that are new to
it: maps of six concepts, and what these have to do with its classes. Prints the lines of code, the
CPU seconds (median of 5, after one run), and the error of A ≈ H W on the layer of all 100 images.
Tools that are missing are left out: pip install grad-cam overcomplete 'matplotlib<3.9' xplique
tensorflow tensorflow-probability tf-keras
"""

import inspect
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import deepff

K, REPEATS, CLASS = 6, 5, 3
Factors = tuple[np.ndarray, np.ndarray]  # H (rows, K), W (K, c)


def trained(images: Tensor, labels: Tensor) -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(5):
        for some in torch.randperm(len(images)).split(100):
            loss = nn.functional.cross_entropy(network(images[some]), labels[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


# In each function the lines before the last are what a user writes.
def by_deepff(network: nn.Sequential, images: Tensor) -> Factors:
    backbone = deepff.load_backbone(network, channels=1, mean=[0], std=[1], device="cpu")
    result = deepff.discover(images, K, model=backbone, layer=network[3])
    result.importance(classes=[CLASS]), result.heatmaps[0]
    return result.coefficients.numpy(), result.components.numpy()


def by_grad_cam(network: nn.Sequential, images: Tensor) -> Factors:
    from pytorch_grad_cam import DeepFeatureFactorization

    dff = DeepFeatureFactorization(network, network[3])
    concepts, _ = dff(images, K)
    # Its maps are scaled to [0, 1] each, so H of least error is computed for its concepts.
    return nonnegative(rows_of(network, images), concepts.T), concepts.T


def by_overcomplete(network: nn.Sequential, images: Tensor) -> Factors:
    from overcomplete.optimization import NMF

    with torch.no_grad():
        maps = network[:4](images)
    codes, dictionary = NMF(K).fit(maps.permute(0, 2, 3, 1).flatten(0, 2))
    codes.view(len(maps), *maps.shape[2:], K)
    return codes.numpy(), dictionary.numpy()


def by_xplique(network: nn.Sequential, images: Tensor) -> Factors:
    from xplique.concepts import CraftTorch

    craft = CraftTorch(network[:4], network[4:], K, patch_size=4, device="cpu")
    craft.fit(images, class_id=CLASS)
    craft.estimate_importance(nb_design=32)
    maps = craft.transform(images)
    return maps.reshape(-1, K), craft.factorization.concept_bank_w


def rows_of(network: nn.Sequential, images: Tensor) -> np.ndarray:
    with torch.no_grad():
        return network[:4](images).permute(0, 2, 3, 1).flatten(0, 2).numpy()


def nonnegative(A: np.ndarray, W: np.ndarray) -> np.ndarray:
    nmf = deepff.NMF(K)
    nmf.components_ = np.ascontiguousarray(W, np.float32)
    return nmf.transform(A)


def main() -> None:
    warnings.simplefilter("ignore")
    digits = load_digits()
    images = torch.tensor(digits.images / 16).float()[:, None]
    network = trained(images[:1500], torch.tensor(digits.target[:1500]))
    for tool in (by_deepff, by_grad_cam, by_overcomplete, by_xplique):
        measure(tool, network, images[1500:1600])


def measure(
    tool: Callable[[nn.Sequential, Tensor], Factors], network: nn.Sequential, images: Tensor
) -> None:
    try:
        tool(network, images)  # what is imported, and what is compiled at first
    except (ImportError, AttributeError) as error:
        print(f"{tool.__name__}: not run, {error}")
        return
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        H, W = tool(network, images)
        seconds.append(time.process_time() - started)
    A = rows_of(network, images)
    error = np.linalg.norm(A - H @ W) / np.linalg.norm(A)
    source = inspect.getsource(tool).splitlines()[1:-1]
    lines = [line for line in source if line.strip() and not line.strip().startswith("#")]
    print(
        f"{tool.__name__}: {len(lines)} lines, {sorted(seconds)[REPEATS // 2]:.2f} CPU s, "
        f"relative error {error:.3f}"
    )


if __name__ == "__main__":
    main()
