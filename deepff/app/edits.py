"""Edits of `Labels`: each returns new ones, and notes what it replaced, for `undo`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepff.app.labels import (
    ACCEPTED,
    Factor,
    ImageLabel,
    Labels,
    Level,
    OwnMask,
    Settings,
    Step,
)

HISTORY_LENGTH = 200
# Steps that replace much at once count by what they hold, as all are written after each edit.
HISTORY_ENTRIES = 20_000

Entry = Settings | Factor | ImageLabel


def set_settings(labels: Labels, **changes: Any) -> Labels:
    """Change k or how masks are made; a new threshold brings its default value.

    Moves of the level alone, one after the other, are taken back by one `undo`.
    """
    settings = replace(labels.settings, **changes)
    if settings.threshold != labels.settings.threshold and "value" not in changes:
        settings = settings.with_threshold(settings.threshold)
    last = labels.history[-1].before.get(None) if labels.history else None
    if (
        isinstance(last, Settings)
        and _moved(last, labels.settings)
        and _moved(labels.settings, settings)
    ):
        labels = replace(_put(labels, {None: last}), history=labels.history[:-1])
    return _edit(labels, {None: settings})


def _moved(before: Settings, after: Settings) -> bool:
    """Whether the level alone was changed."""
    return before != after and replace(before, value=after.value, cut=after.cut) == after


def name_factor(labels: Labels, number: int, name: str) -> Labels:
    """Name a factor of the chosen k; white space around and inside is evened out.

    Where no other factor has the name that it had, images' own masks follow.
    """
    before = labels.factor(number)
    factor = replace(before, name=" ".join(name.split()), suggested=False)
    return _edit(labels, _renamed(labels, {number: factor}))


def keep_factor(labels: Labels, number: int, keep: bool) -> Labels:
    """Keep a factor of the chosen k, or take it for background."""
    factor = replace(labels.factor(number), keep=keep, suggested=False)
    return _edit(labels, {(labels.settings.k, number): factor})


def suggested(names: Mapping[int, Sequence[str | None]]) -> dict[tuple[int, int], Factor]:
    """What the network calls factors, by k and number; None: they are background."""
    return {
        (k, number): Factor(name or "", name is not None, suggested=True)
        for k, of_k in names.items()
        for number, name in enumerate(of_k)
    }


def agree(labels: Labels, suggestions: Mapping[tuple[int, int], Factor]) -> Labels:
    """Agree with what is suggested for factors of the chosen k, where nobody said otherwise."""
    k = labels.settings.k
    open_ones = {
        key: factor
        for key, factor in {**suggestions, **labels.factors}.items()
        if key[0] == k and factor.suggested
    }
    agreed = {number: replace(factor, suggested=False) for (_, number), factor in open_ones.items()}
    return _edit(labels, _renamed(labels, agreed))


def set_status(labels: Labels, image: str, status: str, mask: OwnMask | None = None) -> Labels:
    """Accept or skip an image, or neither ("").

    Parameters
    ----------
    mask : OwnMask, optional
        What the settings make, which an image that is accepted keeps. One that was mended keeps its
        own; any other loses it when it is accepted no longer.
    """
    label = labels.image(image)
    held = label.mask
    if held is None or not held.mended:
        held = mask if status == ACCEPTED else None
    return _edit(labels, {image: replace(label, status=status, mask=held)})


def set_masks(labels: Labels, masks: Mapping[str, OwnMask | None]) -> Labels:
    """Give images masks of their own, or with None what the settings make; one step for all."""
    return _edit(
        labels,
        {image: replace(labels.image(image), mask=mask) for image, mask in masks.items()},
    )


def set_level(labels: Labels, image: str, value: float | None) -> Labels:
    """Give an image a level of its own, or with None that of all."""
    level = None if value is None else Level(labels.settings.level_kind, value)
    return _edit(labels, {image: replace(labels.image(image), level=level)})


def drop_factors(labels: Labels, image: str, numbers: Collection[int], drop: bool) -> Labels:
    """Take factors of the chosen k for background in one image, or no longer."""
    label, before = labels.image(image), {*labels.dropped(image)}
    after = before.union(numbers) if drop else before.difference(numbers)
    dropped = {k: held for k, held in label.dropped.items() if k != labels.settings.k}
    if after:
        dropped[labels.settings.k] = tuple(sorted(after))
    return _edit(labels, {image: replace(label, dropped=dropped)})


def undo(labels: Labels) -> Labels:
    """Take the last edit back; nothing changes where there is none."""
    if not labels.history:
        return labels
    put = _put(labels, labels.history[-1].before)
    return replace(put, history=labels.history[:-1], revision=labels.revision + 1)


def _renamed(labels: Labels, factors: Mapping[int, Factor]) -> dict[Any, Entry]:
    """The entries of factors of the chosen k, and of images whose own masks follow their names."""
    k = labels.settings.k
    entries: dict[Any, Entry] = {(k, number): factor for number, factor in factors.items()}
    after = _put(labels, entries).parts
    names = {
        name: after[number]
        for number, name in labels.parts.items()
        if number in after and after[number] != name and name not in after.values()
    }
    for image, label in labels.images.items() if names else ():
        mask = label.mask
        if mask is not None and mask.k == k and not names.keys().isdisjoint(mask.names):
            called = tuple(names.get(name, name) for name in mask.names)
            entries[image] = replace(label, mask=replace(mask, names=called))
    return entries


def _edit(labels: Labels, entries: Mapping[Any, Entry]) -> Labels:
    before = {key: _entry(labels, key) for key in entries}
    changed = {key: entry for key, entry in before.items() if entry != entries[key]}
    if not changed:
        return labels
    history = _bounded((*labels.history, Step(changed)))
    put = _put(labels, entries)
    return replace(put, history=history, revision=labels.revision + 1)


def _bounded(history: tuple[Step, ...]) -> tuple[Step, ...]:
    """The last steps: the last in any case."""
    kept = held = 0
    for step in reversed(history):
        held += len(step.before)
        if kept == HISTORY_LENGTH or (kept and held > HISTORY_ENTRIES):
            break
        kept += 1
    return history[-kept:]


def _entry(labels: Labels, key: Any) -> Entry:
    if key is None:
        return labels.settings
    return labels.image(key) if isinstance(key, str) else labels.factors.get(key, Factor())


def _put(labels: Labels, entries: Mapping[Any, Entry]) -> Labels:
    """The labels with entries replaced; those that say nothing are not kept."""
    settings, factors, images = labels.settings, {**labels.factors}, {**labels.images}
    for key, entry in entries.items():
        if isinstance(entry, Settings):
            settings = entry
            continue
        held: dict[Any, Any] = images if isinstance(key, str) else factors
        held[key] = entry
        if entry == type(entry)():
            del held[key]
    return replace(labels, settings=settings, factors=factors, images=images)
