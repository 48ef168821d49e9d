"""Files of weights downloaded, and the digest of a network's weights."""

import hashlib
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from deepff.errors import InputError, first_line

TIMEOUT = 10.0  # seconds without an answer; left alone, the libraries wait and retry for minutes


@contextmanager
def downloading(name: str, file: Path) -> Iterator[None]:
    """Any failure of a download to ``file`` inside is one sentence, and comes soon."""
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
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
            f"downloaded ({first_line(error)}); download the file on another machine and pass it "
            "with --weights FILE, or use efficientnet_lite0, which works offline"
        ) from error
    finally:
        socket.setdefaulttimeout(previous)


def find_in_hub(name: str, repository: str, file_name: str | None) -> Path:
    """The file of a network's weights in Hugging Face's cache; if absent, the hub must answer.
    ``repository`` is ``owner/name`` or ``owner/name@revision``. Without a name timm's are tried."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = repository.partition("@")
    file_names = [file_name] if file_name else ["model.safetensors", "pytorch_model.bin"]
    for candidate in file_names:
        cached = try_to_load_from_cache(repository, candidate, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    target = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", file_names[0])
    with downloading(name, target):
        url = hf_hub_url(repository, file_names[0], revision=revision or None)
        # The hub answers that there is no such file: timm knows the other names to try.
        with suppress(EntryNotFoundError):
            # One request, unlike a download, which retries for a minute when there is no network.
            get_hf_file_metadata(url, timeout=TIMEOUT)
    return target


def weights_digest(network: nn.Module) -> str:
    """SHA-256 (hex) over the sorted names, types, shapes and values of a network's state dict."""
    digest = hashlib.sha256()
    for key, tensor in sorted(network.state_dict().items()):
        if not isinstance(tensor, Tensor):  # a module's extra state can be anything
            continue
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(values.numpy().data)
    return digest.hexdigest()


def structure_fingerprint(network: nn.Module) -> str:
    """16 hexadecimal digits of a network as it is printed: its modules with their settings."""
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(network))
    return hashlib.sha256(printed.encode()).hexdigest()[:16]
