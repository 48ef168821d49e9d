"""NMF by several tools on one matrix, the activations of the sample photographs.

usage: OMP_NUM_THREADS=1 python benchmarks/sample_nmf.py
Tools that are missing are left out: pip install grad-cam overcomplete 'matplotlib<3.9'
(overcomplete 0.3.0 does not import with later ones).
"""

import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn import decomposition

import deepff
from deepff.images.samples import sample_images

K, REPEATS = 4, 5
Fit = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # A (n, c) to H (n, K), W (K, c)


def by_deepff(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nmf = deepff.NMF(K, random_state=0)
    return nmf.fit_transform(A), nmf.components_


def by_scikit_learn(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nmf = decomposition.NMF(K, random_state=0)
    return nmf.fit_transform(A), nmf.components_


def by_grad_cam(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from pytorch_grad_cam.feature_factorization import deep_feature_factorization

    concepts, maps = deep_feature_factorization.dff(A.T[None, :, :, None].copy(), K)
    return maps.reshape(K, -1).T, concepts.T


def by_overcomplete(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from overcomplete.optimization import NMF

    codes, dictionary = NMF(K).fit(torch.from_numpy(A.copy()))
    return codes.numpy(), dictionary.numpy()


def main() -> None:
    warnings.simplefilter("ignore")
    activations = deepff.discover(sample_images(), K).activations
    assert activations is not None
    A = torch.cat(list(activations.blocks)).numpy()
    print(f"A is {A.shape[0]} × {A.shape[1]}, k = {K}; CPU seconds, medians of {REPEATS}")
    for fit in (by_deepff, by_scikit_learn, by_grad_cam, by_overcomplete):
        measure(fit, A)


def measure(fit: Fit, A: np.ndarray) -> None:
    try:
        fit(A)  # what is imported, and what is compiled at first
    except (ImportError, AttributeError) as error:
        print(f"{fit.__name__}: not run, {error}")
        return
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        H, W = (np.asarray(each) for each in fit(A))
        seconds.append(time.process_time() - started)
    error = np.linalg.norm(A - H @ W) / np.linalg.norm(A)
    print(f"{fit.__name__}: {sorted(seconds)[REPEATS // 2]:.2f} s, relative error {error:.4f}")


if __name__ == "__main__":
    main()
