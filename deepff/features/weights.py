"""Files of weights: read, fitted to a network, downloaded; and their digest."""

from __future__ import annotations

import hashlib
import pickle
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepff.errors import InputError

_NESTED_UNDER = ("state_dict", "model", "model_state_dict")
_TIMEOUT = 10.0  # seconds without an answer; left alone, the libraries wait and retry for minutes


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict from ``.safetensors``, or from a file that ``torch.save`` wrote.

    A state dict under ``state_dict``, ``model`` or ``model_state_dict`` is found. Only tensors are
    unpickled (``weights_only=True``).

    Raises
    ------
    InputError
        No such file, or it is not one that holds a state dict.
    """
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"weights file {path} {problem}; give a .pth, .pt or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    # Bytes that are no checkpoint make the readers fail in any way whatever.
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and "Unsupported global" in str(error):
            raise InputError(
                f"{path} holds a pickled Python object, which could run any code when loaded; "
                f"save the tensors alone with torch.save(network.state_dict(), FILE)"
            ) from None
        raise InputError(
            f"{path} cannot be read as weights ({first_line(error)}); give a whole file "
            f"saved by torch.save(network.state_dict(), FILE) or by safetensors"
        ) from error

    while isinstance(content, Mapping):
        nested = [key for key in _NESTED_UNDER if isinstance(content.get(key), Mapping)]
        if not nested:
            break
        content = content[nested[0]]
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    if not tensors:
        found = f"a {type(content).__name__}"
        if isinstance(content, Mapping) and content:
            found = f"the keys {', '.join(str(key) for key in list(content)[:5])}"
        raise InputError(
            f"{path} holds no state dict but {found}; give one with the tensors by name, "
            f"at its top or under {', '.join(_NESTED_UNDER)}"
        )
    return tensors


def fit_state_dict(network: nn.Module, state: Mapping[str, Tensor], name: str, file: Path) -> None:
    """Load a state dict into a network, without the prefix ``module.`` of a parallel one.

    Raises
    ------
    InputError
        They do not fit or are not finite; the message names the first key that is at fault.
    """
    own = network.state_dict()
    prefix = "module."
    if all(key.startswith(prefix) for key in state) and not any(k.startswith(prefix) for k in own):
        state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(_misfit(own, state, name, file)) from error
    for key, tensor in state.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(f"the weights in {file} hold NaN or infinity, first in '{key}'")


def _misfit(own: Mapping[str, Tensor], state: Mapping[str, Tensor], name: str, file: Path) -> str:
    shapes = {key: tuple(tensor.shape) for key, tensor in own.items()}
    given = {key: tuple(tensor.shape) for key, tensor in state.items()}
    # PyTorch fills in the counters that old files lack.
    missing = [k for k in shapes if k not in given and not k.endswith("num_batches_tracked")]
    unexpected = [key for key in given if key not in shapes]
    other_shape = [key for key in shapes if key in given and given[key] != shapes[key]]

    if other_shape:
        key = other_shape[0]
        problem = f"'{key}' is {given[key]} in the file and {shapes[key]} in the network"
        lengths = {(given[k][:1], shapes[k][:1]) for k in other_shape}
        only_length = all(given[k][1:] == shapes[k][1:] for k in other_shape)
        if not missing and not unexpected and only_length and len(lengths) == 1:
            classes = given[key][0]
            return (
                f"the weights in {file} do not fit {name}: {problem}; "
                f"build it with {classes} classes (--num-classes {classes})"
            )
    elif missing:
        problem = f"the file lacks '{missing[0]}' {shapes[missing[0]]}"
        if unexpected:
            problem += f" and has '{unexpected[0]}' {given[unexpected[0]]} instead"
    else:
        problem = f"the network has no '{unexpected[0]}' {given[unexpected[0]]}"
    return (
        f"the weights in {file} do not fit {name}: {problem}; give a file saved from {name}, "
        f"or choose the network that this file was saved from"
    )


@contextmanager
def downloading(name: str, file: Path) -> Iterator[None]:
    """Make a download inside fail soon, and with a sentence.

    Parameters
    ----------
    name : str
        The network.
    file : Path
        Where its weights are kept once downloaded.

    Raises
    ------
    InputError
        Whatever went wrong inside.
    """
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        # torch.hub announces a download on stdout, where it would mix with results.
        with redirect_stdout(sys.stderr):
            yield
    except InputError:
        raise
    # huggingface_hub's versions use different HTTP clients, whose errors share no base class.
    except Exception as error:
        if file.is_file():
            raise InputError(
                f"the weights of {name} at {file} cannot be read ({first_line(error)}); "
                f"delete that file and download it again"
            ) from error
        raise InputError(
            f"the weights of {name}, {file.name}, are not in {file.parent} and could not be "
            f"downloaded ({first_line(error)}); fetch the file on a machine with a network and "
            f"give it with --weights FILE, or use efficientnet_lite0, which works offline"
        ) from error
    finally:
        socket.setdefaulttimeout(previous)


def find_in_hub(name: str, repository: str, file_name: str | None) -> Path:
    """Look a network's weights up in Hugging Face's cache; if absent, see that the hub answers.

    Parameters
    ----------
    name : str
        The network.
    repository : str
        ``owner/name``, with ``@revision`` where one is fixed.
    file_name : str or None
        None: what timm calls its files.

    Returns
    -------
    Path
        The cached file; where it is to be downloaded, and can be, a path that does not exist yet.

    Raises
    ------
    InputError
        It is not cached, and the hub does not answer.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = repository.partition("@")
    file_names = [file_name] if file_name else ["model.safetensors", "pytorch_model.bin"]
    for candidate in file_names:
        cached = try_to_load_from_cache(repository, candidate, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    place = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", file_names[0])
    with downloading(name, place):
        url = hf_hub_url(repository, file_names[0], revision=revision or None)
        # The hub answers that there is no such file: timm knows the other names to try.
        with suppress(EntryNotFoundError):
            # One request, unlike a download, which retries for a minute when there is no network.
            get_hf_file_metadata(url, timeout=_TIMEOUT)
    return place


def weights_digest(network: nn.Module) -> str:
    """SHA-256 (hex) over the names, types, shapes and values of a network's state dict.

    It depends neither on the device nor on the order of the state dict.
    """
    digest = hashlib.sha256()
    for key, tensor in sorted(network.state_dict().items()):
        if not isinstance(tensor, Tensor):  # a module's extra state can be anything
            continue
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(values.numpy().data)
    return digest.hexdigest()


def first_line(error: BaseException) -> str:
    """An error's first line, without full stops, to be put inside a sentence."""
    # urllib wraps the reason in brackets.
    lines = str(getattr(error, "reason", error)).strip().splitlines()
    return lines[0].rstrip(".:").replace(". ", "; ") if lines else type(error).__name__
