"""Which factor is which part: the names that a person gives."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from deepff.errors import InputError

# What formats call pixels of no class, and what LabelMe ignores.
RESERVED = ("background", "_background_", "__ignore__")
# Control characters, line breaks, halves of characters, and what XML cannot hold.
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def factor_names(n_factors: int) -> list[str]:
    """What factors are called until a person names them: "factor 0", …; one alone is "object"."""
    if n_factors == 1:
        return ["object"]
    return [f"factor {j}" for j in range(n_factors)]


def told_apart(names: Sequence[str | None]) -> list[str | None]:
    """Names of factors, equal ones numbered in their order: "panda 1", "panda 2"."""
    return [
        name if name is None or names.count(name) == 1 else f"{name} {names[: j + 1].count(name)}"
        for j, name in enumerate(names)
    ]


def read_parts(path: str | Path, n_factors: int) -> dict[int, str]:
    """Part names by factor number, from a small YAML or JSON file that a person wrote. One line per
    factor (``0: head``) or the same in braces (``{0: head, 2: torso}``). Two factors may have one
    name. Raises InputError where the file or a factor number doesn't fit."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        root, content = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is neither YAML nor JSON; it should hold lines such as 0: head"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no names; it should hold lines such as 0: head")

    names = {int(key) if str(key).isdecimal() else key: name for key, name in content.items()}
    # In a dict, the second of two equal keys wins.
    if len(names) < len(root.value):
        raise InputError(f"{path} names a factor twice; give each factor one name")
    try:
        check_parts(names, n_factors)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return names


def check_parts(parts: Mapping[int, str], n_factors: int) -> None:
    """Raise InputError where a key of ``parts`` is no factor, or a name no name."""
    for factor, name in parts.items():
        if not isinstance(factor, int) or isinstance(factor, bool) or not 0 <= factor < n_factors:
            raise InputError(
                f"there is no factor {factor!r}; the {n_factors} factors are numbered "
                f"0 to {n_factors - 1}"
            )
        if not isinstance(name, str) or not name.strip():
            raise InputError(
                f"the name of factor {factor} is {name!r}; it should be a non-empty string"
            )
        check_name(name)


def check_name(name: str) -> None:
    """Raise InputError where a class or part cannot be called so in every format."""
    check_characters(name)
    if name.casefold() in RESERVED:
        raise InputError(
            f"the name {name!r} is reserved for pixels without a class; choose another name"
        )


def check_characters(name: str) -> None:
    """Raise InputError where a name has characters that break files in some format."""
    if _UNFIT.search(name) or name != name.strip():
        raise InputError(
            f"the name {name!r} has a line break or another control character, or a space at an "
            "end, which formats can't hold; leave it out"
        )


def part_masks(masks: Tensor, parts: Mapping[int, str], names: Sequence[str]) -> Tensor:
    """Masks of factors (k, H, W) as those of the named parts: on where a factor of the name is."""
    factors = [[factor for factor, part in parts.items() if part == name] for name in names]
    return torch.stack([masks[of_part].any(0) for of_part in factors])


def part_map(label_map: Tensor, parts: Mapping[int, str], names: Sequence[str]) -> Tensor:
    """A label map of factors (H, W) as one of the named parts; others are background."""
    labels = label_map.long()
    n_labels = max(max(parts, default=-1) + 2, int(labels.max()) + 1 if labels.numel() else 1)
    part_of_label = torch.zeros(n_labels, dtype=label_map.dtype, device=label_map.device)
    for factor, name in parts.items():
        part_of_label[factor + 1] = names.index(name) + 1
    return part_of_label[labels]
