"""How far total Sobol indices from few rows are from the exact ones, for linear functions.

    python benchmarks/sobol.py [--rows 32 256] [--functions 1000]

f(m) = Σ wⱼ mⱼ, m drawn evenly from [0, 1], w from [0, 1] anew for each function: the index of
factor j is wⱼ² / Σ w².
"""

import argparse
import sys

import torch

from deepff.meaning.importance import sobol_indices, sobol_masks

FACTORS = (2, 4, 8)


def main() -> None:
    """Print the mean error of an index, and of the worst index of a function."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256], help="of a design")
    parser.add_argument("--functions", type=int, default=1000)
    options = parser.parse_args()
    print("| rows of a design | factors | mean error | of the worst factor |\n|--:|--:|--:|--:|")
    for rows in options.rows:
        for k in FACTORS:
            weights = torch.rand(k, options.functions, generator=torch.Generator().manual_seed(0))
            exact = weights.square() / weights.square().sum(0)
            errors = (sobol_indices(sobol_masks(k, rows) @ weights, k) - exact).abs()
            print(f"| {rows} | {k} | {errors.mean():.3f} | {errors.amax(0).mean():.3f} |")


if __name__ == "__main__":
    sys.exit(main())
