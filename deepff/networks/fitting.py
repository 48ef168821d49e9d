"""Tensors of a file fitted to a network: which of them, under which names, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor, nn

from deepff.errors import InputError
from deepff.networks.checkpoints import StateDicts

# Where training keeps averaged weights beside the last ones, which are there to be used.
_AVERAGED = ("ema", "teacher", "averag", "shadow", "swa")
# Heads and parameters that training alone uses.
_AUXILIARY = ("aux",)
_TRAINING_PARAMETERS = ("mask_token",)


@dataclass(frozen=True)
class Fit:
    """How a file's tensors fill a network.

    Attributes
    ----------
    where : str
        Where in the file the tensors were, as `read_state_dicts` names it.
    equals : tuple of str
        Where else there are tensors that would have filled as much of the network.
    missing : tuple of str
        The network's parameters and buffers that the file does not fill; they are NaN, so that no
        layer that needs them can be used by mistake.
    left_out : tuple of str
        The tensors beside those used, by their names in the file.
    other_shapes : tuple of str
        Those of ``missing`` that the file has in another shape.
    prefix : str
        What was taken off the names.
    """

    where: str
    equals: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    other_shapes: tuple[str, ...]
    prefix: str

    def note(self, file: Path) -> str | None:
        """One line on what was left out and what is missing; None where nothing was."""
        parts = []
        if self.equals:
            parts.append(f"taken rather than {_some(self.equals)}")
        if self.left_out:
            parts.append(f"left out {_some(self.left_out)}")
        if self.missing:
            shaped = " (there in another shape; num_classes builds a head to fit)"
            parts.append(
                f"missing is {_some(self.missing)}{shaped if self.other_shapes else ''}, so that "
                f"layers which need this cannot be used"
            )
        if not parts:
            return None
        taken = f", names without {self.prefix!r}" if self.prefix else ""
        where = f" from {self.where!r}" if self.where else ""
        return f"weights {file.name}{where}{taken}: {'; '.join(parts)}"


def fit_state_dicts(
    network: nn.Module, states: StateDicts, name: str, file: Path, *, whole: bool = False
) -> Fit:
    """Load into a network those of a file's tensors that fit it best.

    Of several state dicts the one that fills most of the network is taken, of equal ones that of
    averaged weights; names lose the prefix, or get the one, that makes them fit (``module.``,
    ``model.``, ``module.encoder_q.``). What the file may lack is the network's end (its last
    children that hold parameters) and auxiliary heads; what it may have more is parts that
    the network does not have.

    Parameters
    ----------
    network : nn.Module
    states : dict
        As `read_state_dicts` gives them.
    name, file
        For messages.
    whole : bool
        Nothing may be missing or of another shape.

    Raises
    ------
    InputError
        They do not fit or are not finite; the message names the first key that is at fault.
    """
    own = {key: t for key, t in network.state_dict().items() if isinstance(t, Tensor)}
    where, renaming, equals = _best(own, states)
    given, outside = renaming.applied(states[where])
    problem = _misfit(own, given, name, file, whole, renaming)
    if problem is not None:
        raise InputError(problem)

    fitting = {key: given[key] for key in own if _fits(own, given, key)}
    for key, tensor in fitting.items():
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise InputError(f"the weights in {file} hold NaN or infinity, first in '{key}'")
    absent = tuple(_absent(own, given))
    network.load_state_dict(fitting, strict=False)
    with torch.no_grad():
        for key in absent:
            own[key].fill_(float("nan"))
    unknown = [renaming.original(key) for key in given if key not in own]
    return Fit(
        where,
        equals=tuple(equals),
        missing=absent,
        left_out=(*outside, *unknown),
        other_shapes=tuple(key for key in absent if key in given),
        prefix=renaming.strip,
    )


@dataclass(frozen=True)
class _Renaming:
    """From a file's names to a network's: one prefix off, or one on."""

    strip: str = ""
    add: str = ""

    def applied(self, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """The tensors by the network's names, and the names of those without the prefix."""
        renamed, outside = {}, []
        for key, tensor in state.items():
            plain = _without_compilation(key)
            if plain.startswith(self.strip):
                renamed[self.add + plain.removeprefix(self.strip)] = tensor
            else:
                outside.append(key)
        return renamed, outside

    def original(self, key: str) -> str:
        return self.strip + key.removeprefix(self.add)


def _without_compilation(key: str) -> str:
    """A name without what torch.compile puts before a module's own."""
    return key.replace("_orig_mod.", "")


def _best(own: Mapping[str, Tensor], states: StateDicts) -> tuple[str, _Renaming, list[str]]:
    """Which state dict, and by which names, fills most of the network; and which fill as much."""

    def filled(where: str, renaming: _Renaming) -> tuple[int, int]:
        given, _ = renaming.applied(states[where])
        n_filled = sum(_fits(own, given, key) for key in own)
        return n_filled, sum(key in given for key in own) if n_filled else 0

    # Of equals, max takes the first: names as they are go before others.
    chosen = {
        where: max(_renamings(own, state), key=lambda renaming: filled(where, renaming))
        for where, state in states.items()
    }
    counts = {where: filled(where, renaming) for where, renaming in chosen.items()}
    most = max(counts.values())
    equals = [where for where, count in counts.items() if count == most]
    best = max(equals, key=lambda where: any(word in where.lower() for word in _AVERAGED))
    return best, chosen[best], [where for where in equals if where != best]


def _renamings(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Iterator[_Renaming]:
    """As they are, then the prefixes that make most names fit."""
    yield _Renaming()
    keys = dict.fromkeys(map(_without_compilation, state))
    off = Counter(key[:i] for key in keys for i in _starts(key) if key[i:] in own)
    on = Counter(key[:i] for key in own for i in _starts(key) if key[i:] in keys)
    yield from (_Renaming(strip=prefix) for prefix, _ in off.most_common(4))
    yield from (_Renaming(add=prefix) for prefix, _ in on.most_common(2))


def _starts(key: str) -> list[int]:
    """Where the parts of a name after its first begin."""
    return [i + 1 for i, character in enumerate(key) if character == "."]


def _fits(own: Mapping[str, Tensor], given: Mapping[str, Tensor], key: str) -> bool:
    return key in given and given[key].shape == own[key].shape


def _absent(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """What is not filled; counters and tables of indices are the network's own anyway."""
    return [
        key
        for key, tensor in own.items()
        if not _fits(own, given, key) and (key in given or tensor.is_floating_point())
    ]


@dataclass(frozen=True)
class _Children:
    """The network's children that hold tensors, in order, and those that lack some."""

    common: str  # prefix of all of the network's names
    names: list[str]
    incomplete: set[str]

    @classmethod
    def of(cls, own: Mapping[str, Tensor], absent: list[str]) -> _Children:
        levels = zip(*(key.split(".")[:-1] for key in own), strict=False)
        shared = takewhile(lambda level: len(set(level)) == 1, levels)
        common = "".join(f"{level[0]}." for level in shared)
        names = dict.fromkeys(key.removeprefix(common).partition(".")[0] for key in own)
        incomplete = {key.removeprefix(common).partition(".")[0] for key in absent}
        return cls(common, list(names), incomplete)

    def may_lack(self, key: str, has_other_shape: bool) -> bool:
        """Whether a tensor is of the network's end: the file fills nothing after it.

        Of another shape may be only what is in the head: elsewhere that is another network.
        """
        child = key.removeprefix(self.common).partition(".")[0]
        after = [child] if _is_auxiliary(child) else self.names[self.names.index(child) :]
        at_end = all(other in self.incomplete or _is_auxiliary(other) for other in after)
        return at_end and (not has_other_shape or self.is_head(child))

    def may_have(self, key: str) -> bool:
        """Whether a tensor of the file is of a part that the network lacks, or of another head."""
        child, _, inner = key.removeprefix(self.common).partition(".")
        if not inner:  # a parameter of the network itself
            return child in _TRAINING_PARAMETERS
        return child not in self.names or (child in self.incomplete and self.is_head(child))

    def is_head(self, child: str) -> bool:
        return _is_auxiliary(child) or child == [n for n in self.names if not _is_auxiliary(n)][-1]


def _is_auxiliary(child: str) -> bool:
    return child.lower().startswith(_AUXILIARY)


def _misfit(
    own: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    name: str,
    file: Path,
    whole: bool,
    renaming: _Renaming,
) -> str | None:
    """Why the tensors are not the network's, as a sentence; None where they are."""
    absent = _absent(own, given)
    children = _Children.of(own, absent)
    fault = next((key for key in absent if whole or not children.may_lack(key, key in given)), None)
    n_filled = sum(_fits(own, given, key) and own[key].is_floating_point() for key in own)
    if fault is None and len(absent) > n_filled:
        fault = absent[0]
    unexpected = next(
        (key for key in given if key not in own and (not n_filled or not children.may_have(key))),
        None,
    )
    if fault is None and unexpected is None:
        return None

    start = f"the weights in {file} do not fit {name}: "
    advice = f"; give a file saved from {name}, or choose the network that this file was saved from"
    if fault is None:
        assert unexpected is not None
        return f"{start}the network has no {_named(unexpected, given, renaming)}{advice}"
    if fault in given:
        shapes = f"{tuple(given[fault].shape)} in the file and {tuple(own[fault].shape)}"
        lengths = {(given[k].shape[:1], own[k].shape[:1]) for k in absent if k in given}
        only_length = all(k in given and given[k].shape[1:] == own[k].shape[1:] for k in absent)
        if only_length and len(lengths) == 1:
            n = given[fault].shape[0]
            advice = f"; build it with {n} classes (--num-classes {n})"
        return f"{start}'{fault}' is {shapes} in the network{advice}"
    instead = next((key for key in given if key not in own), None)
    has = "" if instead is None else f" and has {_named(instead, given, renaming)} instead"
    return f"{start}the file lacks '{fault}' {tuple(own[fault].shape)}{has}{advice}"


def _named(key: str, given: Mapping[str, Tensor], renaming: _Renaming) -> str:
    return f"'{renaming.original(key)}' {tuple(given[key].shape)}"


def _some(keys: tuple[str, ...]) -> str:
    shown = ", ".join(repr(key) for key in keys[:2])
    return shown if len(keys) <= 2 else f"{shown} and {len(keys) - 2} more"
