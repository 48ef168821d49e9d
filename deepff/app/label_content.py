"""`Labels` as the content of their file, and what is refused in them.

Pydantic would check types and ranges in fewer lines, but it comes with the extra `app`, and
``deepff export`` and ``deepff apply`` read labels without that.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepff.app.kept_masks import FOLDER, LESSON, MAX_CLASSES, has_file, is_name
from deepff.app.labels import (
    FACTORS,
    OBJECT,
    STATUSES,
    Entries,
    Entry,
    Factor,
    ImageLabel,
    KeptMask,
    Labels,
    Level,
    Settings,
)
from deepff.errors import InputError
from deepff.options import PART_REFINEMENTS, Refinement, Threshold, chosen
from deepff.regions.part_names import check_characters
from deepff.result import Result

FORMAT = 2
MAX_NAME_LENGTH = 80
# The least and the most that an image's level is, by kind.
_LEVELS = {
    OBJECT: (0.01, 0.99),
    Threshold.MAX_FRACTION: (0.01, 1.0),
    Threshold.PERCENTILE: (0.0, 100.0),
}


def content_of(labels: Labels) -> dict[str, Any]:
    """The labels as JSON holds them; keys that are numbers become strings there, tuples lists."""
    return {
        "deepff labels": FORMAT,
        "run": labels.run,
        "revision": labels.revision,
        "settings": vars(labels.settings),
        "factors": [
            {"k": k, "factor": number, **vars(factor)}
            for (k, number), factor in sorted(labels.factors.items())
        ],
        "images": {name: _image_content(label) for name, label in labels.images.items()},
        "history": _steps_content(labels.history),
        "future": _steps_content(labels.future),
    }


def _image_content(label: ImageLabel) -> dict[str, Any]:
    return {name: value for name, value in asdict(label).items() if value is not None}


def _steps_content(steps: Sequence[Entries]) -> list[list[dict[str, Any]]]:
    return [[_entry_content(key, entry) for key, entry in step.items()] for step in steps]


def _entry_content(key: Any, before: Entry) -> dict[str, Any]:
    if isinstance(before, ImageLabel):
        return {"image": key, "before": _image_content(before)}
    return {"factor" if isinstance(before, Factor) else "settings": key, "before": vars(before)}


def parsed(content: Mapping[str, Any], folder: Path) -> Labels:
    """The labels in a file; not checked yet."""
    return Labels(
        run=content["run"],
        settings=_parsed_settings(content["settings"]),
        factors={
            (entry.pop("k"), entry.pop("factor")): Factor(**entry)
            for entry in map(dict, content["factors"])
        },
        images={name: _parsed_image(entry) for name, entry in content["images"].items()},
        history=tuple(dict(map(_parsed_entry, step)) for step in content["history"]),
        future=tuple(dict(map(_parsed_entry, step)) for step in content.get("future", [])),
        revision=content["revision"],
        folder=folder,
    )


def _parsed_settings(entry: Mapping[str, Any]) -> Settings:
    return Settings(**{**entry, **{n: tuple(entry.get(n, ())) for n in ("classes", "taught")}})


def _parsed_image(entry: Mapping[str, Any]) -> ImageLabel:
    dropped = {int(k): tuple(numbers) for k, numbers in entry["dropped"].items()}
    level, mask = entry.get("level"), entry.get("mask")
    if mask is not None:
        mask = KeptMask(**{**mask, "names": tuple(mask["names"])})
    level = None if level is None else Level(**level)
    return ImageLabel(entry["status"], dropped, level, mask)


def _parsed_entry(entry: Mapping[str, Any]) -> tuple[Any, Entry]:
    before = entry["before"]
    if "image" in entry:
        return entry["image"], _parsed_image(before)
    if "factor" in entry:
        k, number = entry["factor"]
        return (k, number), Factor(**before)
    return None, _parsed_settings(before)


def check(labels: Labels, result: Result) -> None:
    """Raise InputError where labels, or those that `undo` leads to, do not fit the result."""
    if type(labels.revision) is not int or labels.revision < 0:
        raise InputError(f"the revision must be 0 or more, not {labels.revision!r}")
    lesson, folder = labels.settings.lesson, labels.folder
    if isinstance(lesson, str) and lesson and not has_file(lesson, folder):
        raise InputError(f"the lesson {folder / FOLDER / lesson} is missing")
    names = frozenset(result.names)
    for key, entry in labels.entries:
        if isinstance(entry, Settings):
            _check_settings(entry, result)
        elif isinstance(entry, Factor):
            _check_factor(key, entry, result)
        else:
            _check_image(key, entry, result, names)


def _check_settings(settings: Settings, result: Result) -> None:
    if settings.k not in result.factorizations:
        counts = ", ".join(map(str, result.factorizations))
        raise InputError(
            f"there is no factorization with {settings.k!r} factors; choose k = {counts}"
        )
    chosen(Threshold, settings.threshold, "threshold")
    chosen(Refinement, settings.refine, "refinement")
    if result.parts_of is not None and settings.refine not in PART_REFINEMENTS:
        raise InputError("parts of the object are refined by classifier, dense-crf, or by none")
    low, high = (0.01, 1) if settings.threshold == Threshold.MAX_FRACTION else (0, 100)
    if not isinstance(settings.value, int | float) or not low <= settings.value <= high:
        raise InputError(f"the value {settings.value!r} is not between {low} and {high}")
    if settings.masks not in (OBJECT, FACTORS):
        raise InputError(f"masks must be of the object or of factors, not {settings.masks!r}")
    if not isinstance(settings.cut, int | float) or not 0 < settings.cut < 1:
        raise InputError(f"the cut {settings.cut!r} is not between 0 and 1")
    if settings.lesson != "" and not is_name(settings.lesson, LESSON):
        raise InputError(f"no lesson has the name {settings.lesson!r}")
    for name in (*settings.classes, *settings.taught):
        _check_name(name)


def _check_factor(key: tuple[int, int], factor: Factor, result: Result) -> None:
    k, number = key
    if k not in result.factorizations or type(number) is not int or not 0 <= number < k:
        raise InputError(f"there is no factor {number!r} of {k!r}")
    if not isinstance(factor.name, str) or type(factor.keep) is not bool:
        raise InputError(f"factor {number} of {k} needs a name, and true or false")
    if type(factor.suggested) is not bool:
        raise InputError(f"whether factor {number} of {k} is suggested must be true or false")
    _check_name(factor.name)


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_LENGTH:
        raise InputError(f"a name has up to {MAX_NAME_LENGTH} characters, not {len(name)}")
    check_characters(name)  # not what is reserved, which earlier versions took


def _check_image(name: str, label: ImageLabel, result: Result, names: Collection[str]) -> None:
    if name not in names:
        raise InputError(f"there is no image {name!r}")
    if label.status not in STATUSES:
        raise InputError(f"an image must be accepted, skipped or neither, not {label.status!r}")
    for k, numbers in label.dropped.items():
        for number in numbers:
            _check_factor((k, number), Factor(), result)
    if label.level is not None:
        low, high = _LEVELS.get(label.level.kind, (0.0, 0.0))
        is_number = type(label.level.value) in (int, float)
        if not high or not is_number or not low <= label.level.value <= high:
            raise InputError(f"{label.level.value!r} is not a level of {label.level.kind!r}")
    if label.mask is not None:
        _check_mask(label.mask)


def _check_mask(mask: KeptMask) -> None:
    if not is_name(mask.file):
        raise InputError(f"no mask has the name {mask.file!r}")
    if len(mask.names) > MAX_CLASSES or not all(isinstance(name, str) for name in mask.names):
        raise InputError(f"a mask has up to {MAX_CLASSES} names, not {mask.names!r}")
    for name in mask.names:
        _check_name(name)
    kinds = (type(mask.k), type(mask.recipe), type(mask.mended))
    if kinds != (int, str, bool):
        raise InputError(f"what is said of the mask {mask.file} is not what it was made of")
