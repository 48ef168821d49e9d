"""Edits of `Labels`: each returns new labels, which remember what it replaced, for `undo`."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from deepff.app.labels import (
    ACCEPTED,
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
from deepff.regions.part_names import check_name

HISTORY_LENGTH = 200
# Entries that the steps hold together, as all are written after each edit.
HISTORY_ENTRIES = 20_000


def set_settings(labels: Labels, **changes: Any) -> Labels:
    """Change k or how masks are made; a new threshold brings its default value. That is by factors
    again where it was by classes that were taught. One `undo` takes back a series of moves of the
    level."""
    settings = replace(labels.settings, **changes)
    if (
        settings.taught
        and settings != labels.settings
        and not changes.keys() & {"classes", "taught"}
    ):
        settings = replace(settings, lesson="", taught=())
    if settings.threshold != labels.settings.threshold and "value" not in changes:
        settings = settings.with_threshold(settings.threshold)
    last = labels.history[-1].get(None) if labels.history else None
    if (
        isinstance(last, Settings)
        and _moved(last, labels.settings)
        and _moved(labels.settings, settings)
    ):
        labels = replace(_put(labels, {None: last}), history=labels.history[:-1])
    return _edit(labels, {None: settings})


def _moved(before: Settings, after: Settings) -> bool:
    """Whether only the level was changed."""
    return before != after and replace(before, value=after.value, cut=after.cut) == after


def name_factor(labels: Labels, number: int, name: str) -> Labels:
    """Name a factor of the chosen k, with single spaces between words. Where no other factor has
    the old name, masks that images keep follow. What was only suggested as background is so no
    longer."""
    own = labels.parts.get(number, "")
    name = _spelled(labels, name, own if len(labels.region(number)) == 1 else "")
    before = labels.factor(number)
    keep = before.keep or (before.suggested and bool(name))
    factor = replace(before, name=name, keep=keep, suggested=False)
    return _edit(labels, _renamed(labels, {number: factor}))


def _spelled(labels: Labels, name: str, own: str = "") -> str:
    """A name as the class has it that differs in capitals alone, unless that is renamed itself."""
    name = " ".join(name.split())
    check_name(name)
    classes = [other for other in labels.all_classes if other.casefold() == name.casefold()]
    return next((other for other in classes if other != own), name)


def set_class(labels: Labels, old: str, text: str) -> Labels:
    """Rename a class that no factor has, take it away (""), or add some ("" to "door, wheel").
    InputError where images keep masks with a class that should go."""
    settings = labels.settings
    if not old:
        added = {name.casefold(): name for name in labels.all_classes}
        for name in filter(str.strip, text.split(",")):
            added.setdefault(" ".join(name.split()).casefold(), _spelled(labels, name))
        new = [name for name in added.values() if name not in labels.all_classes]
        if not new and text.strip():
            raise InputError(
                f"{text} is already a class (in upper or lower case); use another name"
            )
        return set_settings(labels, classes=(*settings.classes, *new))
    name = _spelled(labels, text, own=old)
    entries = _followed(labels, {old: name})
    if entries and not name:
        raise InputError(
            f"{len(entries)} masks hold {old}; first give its pieces another class or delete them"
        )
    renamed = dict.fromkeys(name if other == old else other for other in settings.classes)
    classes = tuple(other for other in renamed if other)
    followed = entries.get(None, settings)
    assert isinstance(followed, Settings)
    return _edit(labels, {**entries, None: replace(followed, classes=classes)})


def keep_factor(labels: Labels, number: int, keep: bool) -> Labels:
    """Keep a factor of the chosen k, or make it background."""
    factor = replace(labels.factor(number), keep=keep, suggested=False)
    return _edit(labels, {(labels.settings.k, number): factor})


def open_suggestions(
    labels: Labels, suggestions: Mapping[tuple[int, int], Factor]
) -> dict[int, Factor]:
    """What is suggested for factors of the chosen k, by number, where nobody said otherwise."""
    factors = {**suggestions, **labels.factors}
    k = labels.settings.k
    return {j: factor for (of, j), factor in factors.items() if of == k and factor.suggested}


def agree(labels: Labels, suggestions: Mapping[tuple[int, int], Factor]) -> Labels:
    """Agree with all suggestions that are open."""
    factors = open_suggestions(labels, suggestions)
    agreed = {j: replace(factor, suggested=False) for j, factor in factors.items()}
    return _edit(labels, _renamed(labels, agreed))


def set_status(labels: Labels, image: str, status: str, mask: KeptMask | None = None) -> Labels:
    """Accept or skip an image, or neither (""). An accepted image keeps `mask`, which the settings
    make, unless it keeps a mended one. It loses the mask when it is accepted no longer, but not a
    mended one in which something is left."""
    label = labels.image(image)
    kept = label.mask
    if mask is not None or kept is None or not kept.mended:
        kept = mask if status == ACCEPTED else None
    elif label.shows_nothing and status != ACCEPTED:
        kept = None
    return _edit(labels, {image: replace(label, status=status, mask=kept)})


def set_masks(
    labels: Labels, masks: Mapping[str, KeptMask | None], status: str | None = None
) -> Labels:
    """Make images keep masks, or with None follow the settings; one step for all."""
    entries = {
        image: replace(label, mask=mask, status=label.status if status is None else status)
        for image, mask in masks.items()
        for label in (labels.image(image),)
    }
    return _edit(labels, entries)


def set_level(labels: Labels, image: str, value: float | None) -> Labels:
    """Give an image its own level, or with None the level of all images."""
    level = None if value is None else Level(labels.settings.level_kind, value)
    return _edit(labels, {image: replace(labels.image(image), level=level)})


def drop_factors(labels: Labels, image: str, numbers: Collection[int], drop: bool) -> Labels:
    """Drop factors of the chosen k in one image, so that they are background there, or undrop."""
    label, before = labels.image(image), {*labels.dropped(image)}
    after = before.union(numbers) if drop else before.difference(numbers)
    dropped = {k: factors for k, factors in label.dropped.items() if k != labels.settings.k}
    if after:
        dropped[labels.settings.k] = tuple(sorted(after))
    return _edit(labels, {image: replace(label, dropped=dropped)})


def undo(labels: Labels) -> Labels:
    """Take the last edit back; nothing changes where there is none."""
    if not labels.history:
        return labels
    *history, step = labels.history
    future = (*labels.future, _now(labels, step))
    return replace(
        _put(labels, step), history=tuple(history), future=future, revision=labels.revision + 1
    )


def redo(labels: Labels) -> Labels:
    """Make the edit again that was last taken back; nothing changes where there is none."""
    if not labels.future:
        return labels
    *future, step = labels.future
    return replace(_edit(labels, step), future=tuple(future))


def steps(labels: Labels) -> dict[str, str]:
    """What `undo` and `redo` do, for people; "" where that is nothing."""
    last, following = (step[-1] if step else {} for step in (labels.history, labels.future))
    return {
        "undo": _told(last, _now(labels, last)),
        "redo": _told(_now(labels, following), following),
    }


def _now(labels: Labels, step: Entries) -> Entries:
    return {key: _entry(labels, key) for key in step}


def _told(before: Entries, after: Entries) -> str:
    """An edit, such as "mask: bear.jpg"."""
    if not after:
        return ""
    images = [key for key in after if isinstance(key, str)]
    factors = [key for key in after if isinstance(key, tuple)]
    if None in after:
        is_same = len({getattr(step[None], "classes", ()) for step in (before, after)}) == 1
        return "settings" if is_same else "classes"
    if factors:
        number = f"factor {factors[0][1]}" if len(factors) == 1 else f"{len(factors)} factors"
        is_name = any(vars(before[key])["name"] != vars(after[key])["name"] for key in factors)
        return f"{'name' if is_name else 'use'} of {number}"
    old, new = before[images[0]], after[images[0]]
    assert isinstance(old, ImageLabel) and isinstance(new, ImageLabel)
    what = next(
        name
        for name in ("status", "level", "dropped", "mask")
        if getattr(old, name) != getattr(new, name)
    )
    what = {"status": new.status or "undecided", "level": "threshold", "dropped": "classes"}.get(
        what, what
    )
    return f"{what}: {images[0] if len(images) == 1 else f'{len(images)} images'}"


def _renamed(labels: Labels, factors: Mapping[int, Factor]) -> dict[Any, Entry]:
    """Entries for factors of the chosen k, and for images whose kept masks follow their names."""
    k = labels.settings.k
    entries: dict[Any, Entry] = {(k, number): factor for number, factor in factors.items()}
    after = _put(labels, entries).parts
    names = {
        name: after[number]
        for number, name in labels.parts.items()
        if number in after and after[number] != name and name not in after.values()
    }
    return {**entries, **_followed(labels, names, k)}


def _followed(labels: Labels, names: Mapping[str, str], k: int | None = None) -> dict[Any, Entry]:
    """Entries for kept masks, of one k if given, and a lesson with classes that are renamed."""
    entries: dict[Any, Entry] = {}
    for image, label in labels.images.items() if names else ():
        mask = label.mask
        if mask is not None and k in (None, mask.k) and not names.keys().isdisjoint(mask.names):
            renamed = tuple(names.get(name, name) for name in mask.names)
            entries[image] = replace(label, mask=replace(mask, names=renamed))
    if not names.keys().isdisjoint(labels.settings.taught):
        taught = tuple(names.get(name, name) for name in labels.settings.taught)
        entries[None] = replace(labels.settings, taught=taught)
    return entries


def _edit(labels: Labels, entries: Entries) -> Labels:
    before = _now(labels, entries)
    changed = {key: entry for key, entry in before.items() if entry != entries[key]}
    if not changed:
        return labels
    history = _bounded((*labels.history, changed))
    put = _put(labels, entries)
    return replace(put, history=history, future=(), revision=labels.revision + 1)


def _bounded(history: tuple[Entries, ...]) -> tuple[Entries, ...]:
    """The last steps, at least one."""
    n_steps = n_entries = 0
    for step in reversed(history):
        n_entries += len(step)
        if n_steps == HISTORY_LENGTH or (n_steps and n_entries > HISTORY_ENTRIES):
            break
        n_steps += 1
    return history[-n_steps:]


def _entry(labels: Labels, key: Any) -> Entry:
    if key is None:
        return labels.settings
    return labels.image(key) if isinstance(key, str) else labels.factors.get(key, Factor())


def _put(labels: Labels, entries: Entries) -> Labels:
    """The labels with entries replaced; entries that equal the default are left out."""
    settings, factors, images = labels.settings, {**labels.factors}, {**labels.images}
    for key, entry in entries.items():
        if isinstance(entry, Settings):
            settings = entry
            continue
        entries_of: dict[Any, Any] = images if isinstance(key, str) else factors
        entries_of[key] = entry
        if entry == type(entry)():
            del entries_of[key]
    return replace(labels, settings=settings, factors=factors, images=images)
