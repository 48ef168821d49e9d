"""Files of weights, read: whatever tensors by name there are in them, and nothing run."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError, first_line

StateDicts = dict[str, dict[str, Tensor]]

_DEEPEST = 4  # mappings within each other, as {"state": {"ema": {"model": {...}}}}
_NUMPY_DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "U", "S")
_ADVICE = "save the network's weights by torch.save(network.state_dict(), FILE) or safetensors"
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save before version 1.6
# What a file starts with that is taken for one of weights.
_SIGNATURES = {
    b"version https://git-lfs": "a Git LFS pointer and not the file itself; run git lfs pull",
    b"\x89HDF": f"an HDF5 file, as Keras writes; {_ADVICE} from PyTorch",
    b"GGUF": f"a GGUF file of a language model; {_ADVICE}",
    b"\x93NUMPY": f"a NumPy array; {_ADVICE}",
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"7z\xbc\xaf": "a 7z archive; unpack it first",
    b"\xfd7zXZ": "an xz archive; unpack it first",
    b"BZh": "a bzip2 archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd archive; unpack it first",
}


def read_state_dicts(path: Path) -> StateDicts:
    """Read every mapping of names to tensors in a file of safetensors or of ``torch.save``.

    The bytes tell which of the two it is, whatever the suffix. Only tensors and plain values are
    unpickled (``weights_only=True``): objects of other classes, such as the options and loggers
    of training or a whole pickled network, become empty stand-ins whose code never runs, and the
    parameters that they hold are found.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict of str to dict of str to Tensor
        By where in the file they are: "" at its top, "state_dict", "ema/model".

    Raises
    ------
    InputError
        No such file, or it is not one that holds tensors by name; where it is something else that
        is known, the message says what.
    """
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"weights file {path} {problem}; give a .pth, .pt or .safetensors file")
    with open(path, "rb") as stream:
        head = stream.read(512)
    if (kind := _other_kind(path, head)) is not None:
        raise InputError(f"{path} is {kind}")
    try:
        content = _safetensors(path) if _is_safetensors(path, head) else _unpickled(path)
    # Bytes that are no checkpoint make the readers fail in any way whatever.
    except Exception as error:
        # PyTorch's own words on pickles advise to load unsafely.
        unpickling = isinstance(error, pickle.UnpicklingError)
        reason = "damaged, or pickled objects of unknown kinds" if unpickling else first_line(error)
        if "Unsupported operand" in str(error):
            reason = "damaged, or pickled by another protocol than torch.save's own"
        raise InputError(
            f"{path} cannot be read as weights ({reason}); give a whole file "
            f"saved by torch.save(network.state_dict(), FILE) or by safetensors"
        ) from (None if unpickling else error)

    found = dict(_tensor_mappings(content, set()))
    if not found:
        holds = f"a {type(content).__name__}"
        if isinstance(content, Mapping) and content:
            holds = f"the keys {', '.join(str(key) for key in list(content)[:5])}"
        raise InputError(f"{path} holds no state dict but {holds}; give one with tensors by name")
    return found


def _other_kind(path: Path, head: bytes) -> str | None:
    """What a file is that is not one of weights, as the rest of a sentence; None if unknown."""
    for signature, kind in _SIGNATURES.items():
        if head.startswith(signature):
            return kind
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page and not the file itself; download it again with the address of the file"
    if text.startswith((b"{", b"[")) and head.isascii():
        if path.name.endswith(".index.json"):
            return "the index of weights in several files; join these into one file of safetensors"
        return f"a JSON file; {_ADVICE}"
    # An ONNX file is a protocol buffer: its version, then who made it.
    if path.suffix.lower() == ".onnx" or (head[:1] == b"\x08" and b"pytorch" in head[:32]):
        return f"an ONNX graph, whose weights have lost their names; {_ADVICE}"
    if head.startswith(b"PK"):
        return _kind_of_zip(path)
    if head.startswith(b"\x80") and not head.startswith(_LEGACY):
        return f"a pickle that torch.save did not write, which could run any code; {_ADVICE}"
    return None


def _kind_of_zip(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return None
    if any(name.endswith("/constants.pkl") for name in names):
        return f"a TorchScript archive, a program and not weights; {_ADVICE}"
    if any(name.endswith(".pt2") or "models/model.json" in name for name in names):
        return f"an archive of torch.export, a program and not weights; {_ADVICE}"
    if names and all(name.endswith(".npy") for name in names):
        return f"an archive of NumPy arrays; {_ADVICE}"
    if any(name.endswith("/data.pkl") for name in names):
        return None
    return "a ZIP archive; unpack it first, and give the file of weights in it"


def _is_safetensors(path: Path, head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    starts = head[8:9] == b"{" and length <= path.stat().st_size - 8
    return starts or path.suffix == ".safetensors"


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _unpickled(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on other protocols: these fail, or do not
        return _without_unknown_classes(path)


def _without_unknown_classes(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported global" not in str(error) or not zipfile.is_zipfile(path):
            raise
    known = {**_numpy_globals(), "collections.deque": _ListStandIn}
    unknown = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    known |= {name: _StandIn for name in unknown if name not in known}
    with torch.serialization.safe_globals([(value, name) for name, value in known.items()]):
        return torch.load(path, map_location="cpu", weights_only=True)


class _StandIn:
    """Called or instantiated in place of whatever a pickle names: gives an empty mapping.

    An OrderedDict is what PyTorch's unpickler lets items and attributes be set on.
    """

    def __new__(cls, *arguments: object) -> Any:
        return OrderedDict()


class _ListStandIn:
    def __new__(cls, *arguments: object) -> Any:
        return []


def _numpy_globals() -> dict[str, Any]:
    """What unpickling NumPy's scalars and arrays of plain numbers takes, by NumPy 1's names too."""
    multiarray = np.ndarray(0).__reduce__()[0].__module__
    functions = {
        "scalar": np.float64(0).__reduce__()[0],
        "_reconstruct": np.ndarray(0).__reduce__()[0],
    }
    named: dict[str, Any] = {"numpy.ndarray": np.ndarray, "numpy.dtype": np.dtype}
    for module in {multiarray, "numpy.core.multiarray", "numpy._core.multiarray"}:
        named |= {f"{module}.{name}": function for name, function in functions.items()}
    for kind in (type(np.dtype(code)) for code in _NUMPY_DTYPES):
        named[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return named


def _tensor_mappings(
    content: Any, seen: set[int], where: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every mapping of names to tensors within what a file holds, once, an outer one first."""
    if id(content) in seen:
        return
    seen.add(id(content))
    attributes = getattr(content, "__dict__", {})
    if "_parameters" in attributes and "_modules" in attributes:  # a pickled nn.Module
        if state := dict(_module_tensors(attributes)):
            yield "/".join(where), state
        return
    if isinstance(content, list | tuple):
        content = {str(i): v for i, v in enumerate(content[:8]) if not isinstance(v, Tensor)}
    if not isinstance(content, Mapping):
        return
    tensors = {str(key): tensor for key, v in content.items() if (tensor := _tensor(v)) is not None}
    if tensors:
        yield "/".join(where), tensors
    if len(where) < _DEEPEST:
        for key, value in content.items():
            yield from _tensor_mappings(value, seen, (*where, str(key)))


def _module_tensors(
    attributes: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Tensor]]:
    """The state dict of a pickled module, from its attributes."""
    for kind in ("_parameters", "_buffers"):
        for name, value in (attributes.get(kind) or {}).items():
            if (tensor := _tensor(value)) is not None:
                yield prefix + name, tensor
    for name, module in attributes["_modules"].items():
        inner = getattr(module, "__dict__", {})
        if "_parameters" in inner and "_modules" in inner:
            yield from _module_tensors(inner, f"{prefix}{name}.")


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        if value.is_meta:  # has no values
            return None
        return value.detach() if value.layout == torch.strided else value.detach().to_dense()
    is_numbers = isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "fiu"
    return torch.from_numpy(value) if is_numbers else None
