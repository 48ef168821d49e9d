"""The labels of a result in its folder: ``labels.json``, written whole after each edit."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Lock

import numpy as np

from deepff.app.kept_masks import is_lost, remove_unnamed
from deepff.app.label_content import FORMAT, check, content_of, parsed
from deepff.app.labels import ACCEPTED, OBJECT, STATUSES, Factor, ImageLabel, Labels, Settings
from deepff.app.lessons import carried, save_bank
from deepff.app.masks import Masks, is_gone
from deepff.errors import InputError
from deepff.export.formats import ExportSummary, export_maps
from deepff.export.instances import LabelMaps
from deepff.images.image_set import SetImage, warn_unreadable
from deepff.networks.backbone import Backbone
from deepff.options import RECIPE_OPTIONS, ExportOptions, Refinement, Which, chosen
from deepff.report.save import LABELS
from deepff.result import Result
from deepff.results.run import Run
from deepff.runtime.files import atomic_path
from deepff.runtime.parallel import in_parallel

FILE = LABELS
# What finding the mask of an image takes: a photograph, components, and bands of maps.
_BYTES_PER_PIXEL = 24


class StaleLabelsError(Exception):
    """The labels were changed elsewhere since the revision that an edit was made on."""


class LabelStore:
    """The labels of a saved result, kept in its folder; threads may share a store. Edits come with
    the revision that they were made on, so that of two people who edit, neither overwrites unseen
    changes. New labels begin with what the network suggests of factors."""

    def __init__(
        self,
        folder: str | Path,
        result: Result,
        suggestions: Mapping[tuple[int, int], Factor] | None = None,
    ) -> None:
        self._folder, self._result, self._lock = Path(folder), result, Lock()
        self.suggestions = suggestions or {}
        self._seen: tuple[int, ...] | None = None
        self.labels = self._read()  # as last read or written here
        remove_unnamed(_named_files(self.labels), self._folder)

    def refresh(self) -> Labels:
        """Read the file again, which another process may have written."""
        with self._lock:
            self.labels = self._read()
            return self.labels

    def edit(self, revision: int, change: Callable[[Labels], Labels]) -> Labels:
        """Change the labels and save them; nothing changes where an error is raised.
        StaleLabelsError: the labels are not of `revision` any more, on which the change was
        decided. InputError: the change is not possible."""
        with self._lock:
            self.labels = self._read()
            if self.labels.revision != revision:
                raise StaleLabelsError
            changed = change(self.labels)
            if changed != self.labels:
                check(changed, self._result)
                before, after = self.labels.settings, changed.settings
                if (before.lesson, before.taught) != (after.lesson, after.taught):
                    save_bank(self._result, after, self._folder)
                _save(changed)
                self.labels, self._seen = changed, self._stamp()
            return changed

    def _stamp(self) -> tuple[int, ...] | None:
        """Numbers that change whenever the file is written; None where there is none."""
        try:
            status = os.stat(self._folder / FILE)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> Labels:
        stamp = self._stamp()
        if stamp is None:
            return self._new_labels()
        if stamp != self._seen:
            self.labels, self._seen = load_labels(self._folder, self._result), stamp
        return self.labels

    def _new_labels(self) -> Labels:
        result, options = self._result, RECIPE_OPTIONS[self._result.recipe]
        settings = Settings(result.n_components).with_threshold(options.threshold)
        settings = replace(settings, refine=options.refine)
        if result.object is not None and result.parts_of is None:
            settings = replace(settings, masks=OBJECT)
        return Labels(run_digest(result), settings, self._folder, self.suggestions)


def load_labels(folder: str | Path, result: Result) -> Labels:
    """Read the labels that ``deepff label`` left in the folder of a result."""
    path = Path(folder) / FILE
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no {FILE}; name its factors with `deepff label {folder}` first"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON; restore it or move it away") from error
    if not isinstance(content, dict) or content.get("deepff labels") != FORMAT:
        raise InputError(f"{path} was not written by this version of deepff; move it away")
    if content.get("run") != run_digest(result):
        raise InputError(
            f"{path} belongs to another result: the factors or images in {folder} are different; "
            "move the file away to label this result"
        )
    try:
        labels = parsed(content, Path(folder))
        check(labels, result)
    except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it or move it away") from error
    return labels


def relearn(folder: Path, result: Result, images: Sequence[SetImage]) -> None:
    """Let the lesson that the labels of a result name, if any, find its classes in more images."""
    if (folder / FILE).exists():
        labels = load_labels(folder, result)
        settings = replace(labels.settings, lesson=carried(labels, images, folder))
        _save(replace(labels, settings=settings))


def carry_over(
    labels: Labels, folder: str | Path, result: Result, model: Backbone | None = None
) -> None:
    """Label a saved result that has the same factors in other images: names and settings."""
    lesson = carried(labels, [image.item for image in result.images], Path(folder), model)
    settings = replace(labels.settings, lesson=lesson)
    other = Labels(run_digest(result), settings, Path(folder), labels.factors)
    check(other, result)
    _save(other)


def run_digest(result: Result) -> str:
    """A digest of the result's factors."""
    digest = sha256()
    for k, factorization in sorted(result.factorizations.items()):
        digest.update(f"\n{k}\n".encode())
        digest.update(factorization.components.cpu().numpy().tobytes())
    return digest.hexdigest()


def export_labelled(
    result: Result,
    labels: Labels,
    formats: str | Sequence[str],
    folder: str | Path,
    settings: ExportOptions | None = None,
    progress: bool = False,
    which: str | None = None,
) -> ExportSummary:
    """Write what the labels say in the formats of labeling tools; see
    :func:`deepff.export.formats.export` and :class:`deepff.options.Which`. Images that keep a mask,
    accepted or mended, have that; the others what the settings make. Factors of one name are one
    class; kept ones without a name are called "factor 3" (one factor alone "object")."""
    settings = settings or ExportOptions()
    maps = labelled_maps(result, labels, which, settings.memory)
    return export_maps(result, maps, formats, folder, settings, progress)


def chosen_images(
    labels: Labels, run: Run, which: str | None = None
) -> tuple[list[int], dict[str, str]]:
    """The indices of the images to export, and which others have no mask to export, and why."""
    names = run.names
    if which is None:
        accepted = labels.count(ACCEPTED, names)
        which = Which.ACCEPTED if accepted else Which.NOT_SKIPPED
    statuses = {
        Which.ACCEPTED: (ACCEPTED,),
        Which.NOT_SKIPPED: (ACCEPTED, ""),
        Which.ALL: STATUSES,
    }[chosen(Which, which, "choice of images")]
    indices = [index for index, name in enumerate(names) if labels.image(name).status in statuses]
    left_out = {names[i]: why for i in indices if (why := _lacks(labels, run, i))}
    warn_unreadable(left_out, "left out")
    indices = [index for index in indices if names[index] not in left_out]
    if not indices and not left_out:
        raise InputError(
            "there is nothing to export, because no image is accepted; accept some, or export all"
            if which == Which.ACCEPTED
            else "there is nothing to export, because every image is skipped; accept some or "
            "export all"
        )
    return indices, left_out


def _lacks(labels: Labels, run: Run, index: int) -> str:
    """Why there is no mask of an image; "" where there is one."""
    settings, name = labels.settings, run.names[index]
    if is_lost(labels, name):
        return "its mask file is missing"
    is_refined = settings.masks == OBJECT or settings.taught or settings.refine != Refinement.NONE
    needs_photo = is_refined and labels.image(name).mask is None
    return "its photograph is missing" if needs_photo and is_gone(run, index) else ""


def labelled_maps(
    run: Run, labels: Labels, which: str | None = None, memory: int | None = None
) -> LabelMaps:
    """The label maps of the images to export; InputError where they have no class."""
    images, _ = chosen_images(labels, run, which)
    image_names = [run.names[index] for index in images]
    names = labels.class_names_in(image_names) or labels.class_names
    if not names:
        raise InputError("there is nothing to export, because every factor is background; keep one")
    masks = Masks(run)
    costs = [_BYTES_PER_PIXEL * math.prod(run.images[index].size) for index in images]

    def label_map(position: int) -> np.ndarray:
        mask = masks.current(labels, image_names[position])
        return mask.renumbered([names.index(name) + 1 for name in mask.names])

    def maps() -> Iterator[np.ndarray]:
        yield from in_parallel(label_map, costs, memory)

    return LabelMaps(names, images, maps())


def _named_files(labels: Labels) -> set[str]:
    """The masks and lessons that the labels name, or would name after some `undo`."""
    files = set()
    for _, entry in labels.entries:
        if isinstance(entry, Settings):
            files.add(entry.lesson)
        elif isinstance(entry, ImageLabel) and entry.mask is not None:
            files.add(entry.mask.file)
    return files


def _save(labels: Labels) -> None:
    with atomic_path(labels.folder / FILE) as temporary:
        content = json.dumps(content_of(labels), ensure_ascii=False, indent=1)
        temporary.write_text(content, "utf-8")
