"""A function run by several processes at once, each a rank."""

from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

# Imported once, by the process that ranks are forked from: it is most of what starting one takes.
# What is not installed is left out.
mp.set_forkserver_preload(
    ["deepff.discovery.discover", "torchvision", "timm", "open_clip", "transformers"]
)


def run_ranks(function: Callable[..., None], arguments: tuple[Any, ...], n_ranks: int) -> None:
    """Call ``function(rank, *arguments)`` in each of so many processes, and wait for all."""
    mp.start_processes(function, arguments, nprocs=n_ranks, start_method="forkserver")
