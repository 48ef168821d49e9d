"""What a person decided about a result: names of factors, and images accepted, skipped or mended.

`Labels` never change: :mod:`deepff.app.edits` makes new ones.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from deepff.options import THRESHOLD_VALUES, Refinement, RegionOptions, Threshold, threshold_value
from deepff.regions.part_names import factor_names

ACCEPTED, SKIPPED = "accepted", "skipped"
STATUSES = ("", ACCEPTED, SKIPPED)
# Masks are of the object, each piece named after a factor, or of the factors.
OBJECT, FACTORS = "object", "factors"


@dataclass(frozen=True)
class Settings:
    """Which factorization, and how its heat maps become masks."""

    k: int
    # For masks of the factors, as in RegionOptions.
    threshold: str = Threshold.PERCENTILE
    value: float = THRESHOLD_VALUES[Threshold.PERCENTILE][0]
    refine: str = Refinement.NONE
    masks: str = FACTORS
    cut: float = 0.5  # for masks of the object: the least probability of its pixels, in (0, 1)
    # The file of what mended masks taught (deepff.app.lessons), and the classes that it makes in
    # place of factors; none where it is of the object.
    lesson: str = ""
    taught: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()  # that a person added, whether or not a factor has the name

    @property
    def region_options(self) -> RegionOptions:
        """The settings for :func:`deepff.regions.regions.find_regions`, without names."""
        value = self.value if self.threshold in THRESHOLD_VALUES else None
        return RegionOptions(self.threshold, value, self.refine)

    @property
    def level_kind(self) -> str:
        """What an image may replace: the object's cut, or a threshold's value; "" for nothing."""
        if self.taught:
            return ""
        if self.masks == OBJECT:
            return OBJECT
        takes_one = self.refine != Refinement.CLASSIFIER and self.threshold in THRESHOLD_VALUES
        return self.threshold if takes_one else ""

    @property
    def level(self) -> float | None:
        """The number of that kind, for all images that have no level of their own."""
        if not self.level_kind:
            return None
        return self.cut if self.level_kind == OBJECT else self.value

    def at_level(self, level: "Level | None") -> "Settings":
        """These settings with an image's level, if that is of their kind."""
        if level is None or level.kind != self.level_kind:
            return self
        of_object = level.kind == OBJECT
        return replace(self, cut=level.value) if of_object else replace(self, value=level.value)

    def with_threshold(self, threshold: str) -> "Settings":
        """These settings with another threshold, at its default value where it takes one. The
        classifier has no threshold, so the dense CRF replaces it."""
        value = threshold_value(threshold)
        by_classifier = self.refine == Refinement.CLASSIFIER
        return replace(
            self,
            threshold=threshold,
            value=self.value if value is None else value,
            refine=Refinement.DENSE_CRF if by_classifier else self.refine,
        )


@dataclass(frozen=True)
class Level:
    """What one image has in place of a number of the settings."""

    kind: str  # Settings.level_kind
    value: float


@dataclass(frozen=True)
class Factor:
    """What a person says of one factor."""

    name: str = ""
    keep: bool = True  # False: it is background
    suggested: bool = False  # the network said so, and nobody has agreed yet


@dataclass(frozen=True)
class KeptMask:
    """A mask that an image keeps, accepted or mended, whatever the settings are by now."""

    file: str  # see deepff.app.kept_masks
    names: tuple[str, ...]  # of its values 1, 2, …
    k: int  # the factorization that the names are from
    recipe: str  # Labels.recipe of the settings that it was made with
    mended: bool = False  # a person changed pixels of it


@dataclass(frozen=True)
class ImageLabel:
    """What a person says of one image."""

    status: str = ""
    # For each k the factors that count as background in this image, ascending.
    dropped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    level: Level | None = None
    mask: KeptMask | None = None

    @property
    def shows_nothing(self) -> bool:
        """Whether it was accepted as an image without any class."""
        return self.status == ACCEPTED and self.mask is not None and not self.mask.names


# What an edit may replace, by None (the settings), (k, factor) or an image's name.
Entry = Settings | Factor | ImageLabel
Entries = Mapping[Any, Entry]


@dataclass(frozen=True)
class Labels:
    """All that a person decided about a result."""

    run: str  # a digest of the result
    settings: Settings
    folder: Path = field(compare=False)  # of the result
    # The factors, by (k, factor), and the images, by name, that something was said of.
    factors: Mapping[tuple[int, int], Factor] = field(default_factory=dict)
    images: Mapping[str, ImageLabel] = field(default_factory=dict)
    history: tuple[Entries, ...] = ()  # what each edit replaced, the latest last, for `undo`
    future: tuple[Entries, ...] = ()  # what each `undo` took back, the latest last, for `redo`
    revision: int = 0  # one more with each edit, undo and redo

    def factor(self, number: int) -> Factor:
        """What is said of a factor of the chosen k."""
        return self.factors.get((self.settings.k, number), Factor())

    def region(self, number: int) -> list[int]:
        """The factors of the chosen k that share a name with this one, itself included."""
        name = self.parts.get(number)
        return [factor for factor, other in self.parts.items() if other == name] or [number]

    def image(self, name: str) -> ImageLabel:
        """What is said of an image."""
        return self.images.get(name, ImageLabel())

    def dropped(self, image: str) -> tuple[int, ...]:
        """The factors of the chosen k that are dropped in an image."""
        return self.image(image).dropped.get(self.settings.k, ())

    @property
    def default_names(self) -> list[str]:
        """What the factors of the chosen k are called until they are named, such as "factor 3"."""
        return factor_names(self.settings.k)

    @property
    def parts(self) -> dict[int, str]:
        """The class of each kept factor of the chosen k: the name it was given, or its default."""
        factors = [self.factor(j) for j in range(self.settings.k)]
        defaults = self.default_names
        return {j: factor.name or defaults[j] for j, factor in enumerate(factors) if factor.keep}

    @property
    def made(self) -> dict[int, str]:
        """What the settings make: the classes that were taught, or those of factors, by number."""
        return dict(enumerate(self.settings.taught)) or self.parts

    def settings_of(self, image: str) -> Settings:
        """The settings that make the image's mask, with its level."""
        return replace(self.settings, classes=()).at_level(self.image(image).level)

    def recipe(self, image: str) -> str:
        """A digest of what makes the image's mask, except names, which a kept mask follows."""
        return _recipe(self.settings_of(image), tuple(sorted(self.parts)), self.dropped(image))

    def differs(self, image: str) -> bool:
        """Whether the image keeps a mask, not mended, that was made with other settings."""
        mask = self.image(image).mask
        return mask is not None and not mask.mended and mask.recipe != self.recipe(image)

    @property
    def class_names(self) -> list[str]:
        """The names of the classes that the settings make, by their first numbers."""
        return list(dict.fromkeys(self.made.values()))

    def class_names_in(self, images: Collection[str]) -> list[str]:
        """The names of the classes that images may hold, those of factors and added ones first.
        Where all of them keep a mask, only those factors' that are in one."""
        masks = [self.image(name).mask for name in images]
        kept = {name for mask in masks if mask is not None for name in mask.names}
        some_follow = any(mask is None for mask in masks)
        first = [name for name in self.class_names if some_follow or name in kept]
        others = sorted(kept.difference(first), key=str.casefold)
        return list(dict.fromkeys([*first, *self.settings.classes, *others]))

    @property
    def all_classes(self) -> list[str]:
        """Every class, whatever it is of; the first nine have the keys 1 to 9."""
        return list(dict.fromkeys([*self.class_names, *self.class_names_in(self.images)]))

    def name_suggestions(self) -> list[str]:
        """The names given so far, for any k, even those replaced since, in alphabetical order."""
        names = {entry.name for _, entry in self.entries if isinstance(entry, Factor)}
        return sorted(names - {""}, key=str.casefold)

    @property
    def entries(self) -> list[tuple[Any, Entry]]:
        """All that is said, by what it is said of, and all that `undo` and `redo` bring back."""
        now: list[Entries] = [{None: self.settings}, self.factors, self.images]
        return [
            entry for entries in [*now, *self.history, *self.future] for entry in entries.items()
        ]

    def count(self, status: str, names: Sequence[str]) -> int:
        """How many of the images have a status."""
        return sum(self.image(name).status == status for name in names)


@lru_cache(256)
def _recipe(settings: Settings, kept: tuple[int, ...], dropped: tuple[int, ...]) -> str:
    used: list[Any] = [settings.masks, settings.k, kept, dropped, settings.level]
    if settings.taught:
        used = [settings.lesson]
    elif settings.masks == FACTORS:
        used += [settings.threshold, settings.refine]
    elif settings.lesson:
        used.append(settings.lesson)
    return sha256(json.dumps(used).encode()).hexdigest()[:16]
