"""Files of weights: reading any tensors by name, and fitting them to a network."""

import hashlib
import json
import pickle
import re
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from deepff.errors import InputError

StateDicts = dict[str, dict[str, Tensor]]

_DEEPEST = 4  # nested mappings, as {"state": {"ema": {"model": {...}}}}
# In the path or prefix of averaged weights, which are used rather than the last ones next to them.
_AVERAGED = re.compile(r"(?<![a-z])(ema|swa)(?![a-z])|teacher|averag|shadow", re.IGNORECASE)
# What parallel, compiled and checkpointed modules put before the names inside them, at any depth.
_WRAPPERS = {
    "module",
    "_forward_module",
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
}
# Old spellings: torchvision's DenseNet before 0.2.1, and weight norm before it was parametrized.
_RESPELLED = (
    (re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)"), r"\1"),
    (re.compile(r"\bweight_g$"), "parametrizations.weight.original0"),
    (re.compile(r"\bweight_v$"), "parametrizations.weight.original1"),
)
# Files of weights in a folder, as transformers saves them; the first of these that is there.
_IN_FOLDERS = ("*.safetensors.index.json", "*.bin.index.json", "*model*.safetensors", "*model*.bin")
# Heads and parameters that are only used in training.
_AUXILIARY = "aux"
_TRAINING_PARAMETERS = ("mask_token",)


def read_state_dicts(path: Path) -> StateDicts:
    """Every mapping of names to tensors in a file of weights, or an index of several, by where it
    is: "" at the top, "state_dict", "ema/model". No code runs: pickled objects become stand-ins."""
    if path.is_dir():
        path = _file_in(path)
    if not path.is_file():
        raise InputError(
            f"weights file {path} does not exist; give a .pth, .pt or .safetensors file"
        )
    if path.name.endswith(".index.json"):
        return {"": _sharded(path)}
    try:
        content = load_file(path) if _is_safetensors(path) else _unpickled(path)
    except Exception:  # the readers fail in any way on other bytes
        # Not from that error: PyTorch's message on pickles advises to load unsafely.
        raise InputError(
            f"{path} cannot be read as weights: it is damaged or another kind of file, such as a "
            "Git LFS pointer, an archive, a web page, TorchScript or ONNX; give a whole file saved "
            "by torch.save(network.state_dict(), FILE) or by safetensors"
        ) from None
    states = dict(_tensor_mappings(content, set()))
    meta = content.get("meta") if isinstance(content, Mapping) else None
    if isinstance(meta, Mapping) and "mmengine_version" in meta:
        # MMEngine swaps them: the averaged weights are in "state_dict".
        states.pop("ema_state_dict", None)
    if not states:
        is_named = isinstance(content, Mapping) and content
        keys = f" under {', '.join(str(key) for key in list(content)[:5])}" if is_named else ""
        raise InputError(
            f"{path} holds no plain tensors by name{keys}; give a file saved by "
            "torch.save(network.state_dict(), FILE)"
        )
    return states


def _file_in(folder: Path) -> Path:
    """The one file of weights in a folder, or the index of its shards."""
    files = next((files for p in _IN_FOLDERS if (files := sorted(folder.glob(p)))), [])
    if len(files) == 1:
        return files[0]
    names = f"several files of weights ({_some([file.name for file in files])})"
    raise InputError(
        f"the folder {folder} holds {names if files else 'no model.safetensors'}; name the file of "
        "weights"
    )


def _sharded(index: Path) -> dict[str, Tensor]:
    """The tensors of all files that an index names, which are next to it."""
    try:
        files = json.loads(index.read_text("utf-8"))["weight_map"].values()
        names = sorted({Path(file).name for file in files})
    except (ValueError, LookupError, TypeError, AttributeError):
        names = []
    if not names or not all(name.endswith((".safetensors", ".bin")) for name in names):
        raise InputError(f"{index} is not an index of weight files; pass a file of weights")
    shards = [read_state_dicts(index.parent / name).get("", {}) for name in names]
    return {key: tensor for shard in shards for key, tensor in shard.items()}


def _is_safetensors(path: Path) -> bool:
    with open(path, "rb") as stream:
        head = stream.read(9)
    length = int.from_bytes(head[:8], "little")
    starts = head[8:] == b"{" and length <= path.stat().st_size - 8
    return starts or path.suffix == ".safetensors"


class _StandIn:
    """In place of any class or function in a pickle: an empty mapping that may get attributes."""

    def __new__(cls, *arguments: object) -> Any:
        return OrderedDict()


# What unpickling NumPy's scalars and arrays of plain numbers takes; a queue becomes a list.
_NUMPY_DTYPES = [type(np.dtype(code)) for code in "?bBhHiIlLqQefdUS"]
_REPLACEMENTS: dict[str, Any] = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "numpy.core.multiarray.scalar": np.float64(0).__reduce__()[0],
    "numpy.core.multiarray._reconstruct": np.ndarray(0).__reduce__()[0],
    "collections.deque": lambda *arguments: [],
}


def _unpickled(path: Path) -> Any:
    """What `torch.save` saved, with stand-ins for objects of unknown classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on other protocols, which may be readable
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if "Unsupported global" not in str(error) or not zipfile.is_zipfile(path):
                raise
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        replaced = [
            # The module is numpy._core since NumPy 2.
            (_REPLACEMENTS.get(name.replace("numpy._core.", "numpy.core."), _StandIn), name)
            for name in unknown
        ]
        with torch.serialization.safe_globals([*replaced, *_NUMPY_DTYPES]):
            return torch.load(path, map_location="cpu", weights_only=True)


def _tensor_mappings(
    content: Any, seen: set[int], where: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Every mapping of names to tensors in a file's content, once, an outer one first."""
    if id(content) in seen:
        return
    seen.add(id(content))
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


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        is_plain = value.layout == torch.strided and not value.is_quantized and not value.is_meta
        return value.detach() if is_plain else None
    is_numbers = isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "fiu"
    return torch.from_numpy(value) if is_numbers else None


@dataclass(frozen=True)
class _Match:
    """One state dict of a file under one renaming, next to the network's own tensors."""

    network: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]  # the file's, by the network's names
    keys: Mapping[str, str]  # from these names to the keys in the file

    @classmethod
    def best(cls, network: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> "_Match":
        """The renaming that fills most of the network; of equals averaged weights, or the plainest.
        Names are compared without what wraps modules, on either side."""
        names, plain = ({_bare(name): name for name in of} for of in (network, state))
        if len(names) < len(network) or len(plain) < len(state):
            names, plain = ({name: name for name in of} for of in (network, state))
        off = Counter(name[:i] for name in plain for i in _starts(name) if name[i:] in names)
        on = Counter(name[:i] for name in names for i in _starts(name) if name[i:] in plain)
        renamings = [plain]
        renamings += [
            {n.removeprefix(prefix): k for n, k in plain.items() if n.startswith(prefix)}
            for prefix, _ in off.most_common(4)
        ]
        renamings += [
            {prefix + name: key for name, key in plain.items()} for prefix, _ in on.most_common(2)
        ]
        matches = []
        for renaming in renamings:
            keys = {names.get(name, name): key for name, key in renaming.items()}
            matches.append(cls(network, {name: state[key] for name, key in keys.items()}, keys))
        return max(matches, key=lambda x: (x.filled, _AVERAGED.search(x.prefix) is not None))

    @property
    def prefix(self) -> str:
        """What the keys in the file have before the network's names, if anything."""
        name = next(filter(self.fits, self.network), "")
        key = self.keys.get(name, "")
        return key.removesuffix(name) if key.endswith(name) else ""

    def fits(self, name: str) -> bool:
        return name in self.tensors and self.tensors[name].shape == self.network[name].shape

    @cached_property
    def filled(self) -> tuple[int, int]:
        """How many of the network's tensors are filled, and how many names are known."""
        n_filled = sum(map(self.fits, self.network))
        return n_filled, sum(name in self.tensors for name in self.network) if n_filled else 0

    @cached_property
    def missing(self) -> list[str]:
        """What is not filled, except counters and tables of indices, which need no file. Of names
        that share a tensor, which safetensors saves once, one is enough."""
        filled = {self.network[name].data_ptr() for name in self.network if self.fits(name)}
        return [
            name
            for name, tensor in self.network.items()
            if not self.fits(name)
            and (name in self.tensors or tensor.is_floating_point())
            and not (tensor.numel() and tensor.data_ptr() in filled)
        ]

    @cached_property
    def reshaped(self) -> list[str]:
        """What is missing because the file has it in another shape."""
        return [name for name in self.missing if name in self.tensors]

    @cached_property
    def unknown(self) -> list[str]:
        """The file's names that the network does not have."""
        return [name for name in self.tensors if name not in self.network]

    def described(self, name: str) -> str:
        return f"'{self.keys[name]}' {tuple(self.tensors[name].shape)}"


def _bare(name: str) -> str:
    """A name without what wraps modules, in today's spelling."""
    name = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
    for old, new in _RESPELLED:
        name = old.sub(new, name)
    return name


def _starts(name: str) -> list[int]:
    """Where the parts of a name after its first begin."""
    return [i + 1 for i, character in enumerate(name) if character == "."]


def fit_state_dicts(
    network: nn.Module, states: StateDicts, name: str, file: Path, *, whole: bool = False
) -> tuple[tuple[str, ...], str | None]:
    """Load the state dict that fills most of the network, the averaged one of equals. Returns what
    is missing, which becomes NaN, and a line on that and what is left out, or None. ``whole``: the
    head must not be missing."""
    tensors = {key: t for key, t in network.state_dict().items() if isinstance(t, Tensor)}
    matches = {where: _Match.best(tensors, state) for where, state in states.items()}
    most = max(match.filled for match in matches.values())
    equals = [where for where, match in matches.items() if match.filled == most]
    where = max(equals, key=lambda where: _AVERAGED.search(where) is not None)
    match = matches[where]
    if (problem := _misfit(match, name, whole)) is not None:
        raise InputError(f"the weights in {file} do not fit {name}: {problem}")

    fitting = {key: match.tensors[key] for key in tensors if match.fits(key)}
    for key, tensor in fitting.items():
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise InputError(f"the weights in {file} hold NaN or infinity, first in '{key}'")
    network.load_state_dict(fitting, strict=False)
    with torch.no_grad():
        for key in match.missing:
            tensors[key].fill_(float("nan"))

    known = set(match.keys.values())
    left_out = [key for key in states[where] if key not in known]
    left_out += [match.keys[key] for key in match.unknown]
    facts = []
    if len(equals) > 1:
        facts.append(f"used instead of {_some([other for other in equals if other != where])}")
    if left_out:
        facts.append(f"left out {_some(left_out)}")
    if match.missing:
        shape = " (there in another shape; num_classes builds a head to fit)"
        facts.append(
            f"missing is {_some(match.missing)}{shape if match.reshaped else ''}, so that layers "
            f"which need this cannot be used"
        )
    taken = f", names without {match.prefix!r}" if match.prefix else ""
    source = f"weights {file.name}{f' from {where!r}' if where else ''}{taken}"
    return tuple(match.missing), f"{source}: {'; '.join(facts)}" if facts else None


def _misfit(match: _Match, name: str, whole: bool) -> str | None:
    """Why the tensors are not the network's, as the rest of a sentence; None where they are."""
    network, tensors, missing = match.network, match.tensors, match.missing
    levels = zip(*(name.split(".")[:-1] for name in network), strict=False)
    shared = takewhile(lambda level: len(set(level)) == 1, levels)
    common = "".join(f"{level[0]}." for level in shared)  # before all of the network's names

    def child(name: str) -> str:
        return name.removeprefix(common).partition(".")[0]

    children = list(dict.fromkeys(map(child, network)))
    auxiliary = {one for one in children if one.lower().startswith(_AUXILIARY)}
    incomplete = set(map(child, missing))
    # The end: what is after the last child that the file fills.
    end = auxiliary | {*takewhile(lambda c: c in incomplete | auxiliary, reversed(children))}
    head = auxiliary | {*[one for one in children if one not in auxiliary][-1:]}

    def may_lack(name: str) -> bool:
        # Of another shape may be only what is in the head: elsewhere that is another network.
        return child(name) in end and (name not in tensors or child(name) in head)

    def may_have(name: str) -> bool:
        if not match.keys[name].startswith(match.prefix):  # next to the network, as a counter
            return True
        if "." not in name.removeprefix(common):  # a parameter of the network itself
            return child(name) in _TRAINING_PARAMETERS
        return child(name) not in children or child(name) in incomplete & head

    n_filled = sum(match.fits(key) and network[key].is_floating_point() for key in network)
    fault = next((key for key in missing if whole or not may_lack(key)), None)
    if fault is None and len(missing) > n_filled:
        fault = missing[0]
    advice = (
        f"; give a plain state dict of {name} (adapters merged, nothing quantized or sparse), or "
        "choose the network that this file was saved from"
    )
    if fault is None:
        excess = next((key for key in match.unknown if not (n_filled and may_have(key))), None)
        return None if excess is None else f"the network has no {match.described(excess)}{advice}"
    if fault not in tensors:
        unknown = match.unknown
        has = f" and has {match.described(unknown[0])} instead" if unknown else ""
        return f"the file lacks '{fault}' {tuple(network[fault].shape)}{has}{advice}"
    # Where all differ in their length alone, and by the same, it is the number of classes.
    same_rows = all(k in tensors and tensors[k].shape[1:] == network[k].shape[1:] for k in missing)
    lengths = {(tensors[k].shape[:1], network[k].shape[:1]) for k in match.reshaped}
    if same_rows and len(lengths) == 1:
        n = tensors[fault].shape[0]
        advice = f"; build it with {n} classes (--num-classes {n})"
    shapes = f"{tuple(tensors[fault].shape)} in the file and {tuple(network[fault].shape)}"
    return f"'{fault}' is {shapes} in the network{advice}"


def _some(keys: Sequence[str]) -> str:
    shown = ", ".join(repr(key) for key in keys[:2])
    return shown if len(keys) <= 2 else f"{shown} and {len(keys) - 2} more"


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
