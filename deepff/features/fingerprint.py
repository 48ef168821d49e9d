"""What identifies code: a function of one's own, and how a network is built."""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = str | bytes | int | float | complex | bool | None | EllipsisType | slice


def function_fingerprint(function: Callable[..., Any]) -> str:
    """16 hexadecimal digits that change with what a function does.

    They are of its instructions, its defaults, and the values and functions that it refers to. What
    is none of these, such as an object of one's own, gives other digits each time: no two functions
    are taken for one.
    """
    return _digest(_described(function, set()))


def structure_fingerprint(network: nn.Module) -> str:
    """16 hexadecimal digits of a network as it is printed: its modules with their settings."""
    return _digest([_ADDRESS.sub("", repr(network))])


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _described(value: Any, seen: set[int]) -> Iterator[str]:
    yield type(value).__name__
    if id(value) in seen:
        return
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, Tensor | np.ndarray):
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        yield f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    elif isinstance(value, ModuleType | BuiltinFunctionType | type):
        yield f"{getattr(value, '__module__', None)}.{value.__name__}"
    elif (parts := _parts(value)) is not None:
        seen.add(id(value))
        for part in parts:
            yield from _described(part, seen)
        yield "end"
    else:
        yield uuid.uuid4().hex


def _parts(value: Any) -> list[Any] | None:
    """What a value is made of; None where that is not known."""
    if isinstance(value, FunctionType):
        if "site-packages" in value.__code__.co_filename:  # a library's: its name says what it does
            return [value.__module__, value.__qualname__]
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        names = [name for name in _names(value.__code__) if name in value.__globals__]
        refers = [value.__globals__[name] for name in names]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *cells, *refers]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_varnames, value.co_consts]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return [*value, *value.values()] if isinstance(value, dict) else None


def _names(code: CodeType) -> list[str]:
    """The names that instructions look up, those of functions within too."""
    within = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return [*code.co_names, *(name for names in within for name in names)]
