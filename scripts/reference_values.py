"""What the Python reference says of parameters: values for names of constants, each one's own type.

A Griffe extension (``mkdocs.yml``). Griffe shows a default as it is written, such as ``MODEL``, and
gives parameters that share a line of a docstring the type and the default of the first one.
"""

import inspect
from enum import Enum
from importlib import import_module
from typing import Any

from griffe import Class, DocstringSectionParameters, Extension, Function, Parameters

PRINTED = (str, int, float, bool, tuple, type(None))


class Values(Extension):
    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        _set_defaults(func.parameters, func.path)
        _mend(func)

    def on_class(self, *, cls: Class, **kwargs: Any) -> None:
        _mend(cls)


def _set_defaults(parameters: Parameters, path: str) -> None:
    signature = inspect.signature(_imported(path)).parameters
    for parameter in parameters:
        known = signature.get(parameter.name)
        if parameter.default is None or known is None or known.kind is known.VAR_KEYWORD:
            continue
        value = known.default.value if isinstance(known.default, Enum) else known.default
        if isinstance(value, PRINTED):
            parameter.default = repr(value)


def _imported(path: str) -> Any:
    """The object at a dotted path: the longest part that is a module, and names in it."""
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for name in parts[n:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


def _mend(documented: Function | Class) -> None:
    """Give each parameter of a docstring its own default, and its own type if none is written."""
    if documented.docstring is None:
        return
    parameters = documented.parameters
    types = {parameter.name: parameter.annotation for parameter in parameters}
    sections = documented.docstring.parse("numpy")
    for section in sections:
        if not isinstance(section, DocstringSectionParameters):
            continue
        for described in section.value:
            name = described.name.lstrip("*")
            if name not in types:
                continue
            described.value = parameters[name].default
            if any(described.annotation is other for other in types.values()):
                described.annotation = types[name]
    documented.docstring.parsed = sections
