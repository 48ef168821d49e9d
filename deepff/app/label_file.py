"""The labels of a result in its folder: ``labels.json``, written whole after each edit."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Lock

from deepff.app.edits import suggested
from deepff.app.label_content import FIRST_FORMAT, FORMAT, check, content_of, parsed
from deepff.app.labels import FACTORS, OBJECT, Labels, Settings
from deepff.app.mask_files import forget_others
from deepff.app.masks import labelled_maps
from deepff.errors import InputError
from deepff.export.formats import ExportSummary, export_maps
from deepff.options import RECIPE_OPTIONS, ExportOptions
from deepff.result import Result
from deepff.runtime.files import atomic_path

FILE = "labels.json"


class StaleLabelsError(Exception):
    """The labels were changed elsewhere since the revision that an edit was made on."""


class LabelStore:
    """The labels of a saved result, kept in its folder.

    Edits come with the revision that they were made on, so that of two who edit, neither overwrites
    what the other did unseen. Threads may share a store.

    Parameters
    ----------
    folder : path
        The folder of the saved result.
    result : Result
    names : mapping, optional
        What the network calls the factors, by k; None: they are background. Labels that begin now
        begin with these.

    Attributes
    ----------
    suggested : dict of (k, factor) to Factor
        What the network calls them.

    Raises
    ------
    InputError
        The folder's ``labels.json`` cannot be read or belongs to another result.
    """

    def __init__(
        self,
        folder: str | Path,
        result: Result,
        names: Mapping[int, Sequence[str | None]] | None = None,
    ) -> None:
        self._folder, self._result, self._lock = Path(folder), result, Lock()
        self.suggested = suggested(names or {})
        self._seen: tuple[int, ...] | None = None
        self._labels = self._read()
        forget_others(_files(self._labels), self._folder)

    @property
    def labels(self) -> Labels:
        """The labels as last read or written here."""
        return self._labels

    def refresh(self) -> Labels:
        """Read the file again, which another process may have written."""
        with self._lock:
            self._labels = self._read()
            return self._labels

    def edit(self, revision: int, change: Callable[[Labels], Labels]) -> Labels:
        """Change the labels and save them.

        Parameters
        ----------
        revision : int
            Of the labels that the change was decided on.
        change : callable
            An edit of :mod:`deepff.app.labels`.

        Raises
        ------
        StaleLabelsError
            The labels have another revision by now; nothing was changed.
        InputError
            The change is not possible; nothing was changed.
        """
        with self._lock:
            self._labels = self._read()
            if self._labels.revision != revision:
                raise StaleLabelsError
            changed = change(self._labels)
            if changed != self._labels:
                check(changed, self._result)
                _save(changed, self._folder)
                self._labels, self._seen = changed, self._stamp()
            return changed

    def _stamp(self) -> tuple[int, ...] | None:
        """What changes whenever the file is written anew; None where there is none."""
        try:
            found = os.stat(self._folder / FILE)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> Labels:
        stamp = self._stamp()
        if stamp is not None:
            if stamp != self._seen:
                self._labels, self._seen = load_labels(self._folder, self._result), stamp
            return self._labels
        result, options = self._result, RECIPE_OPTIONS[self._result.recipe]
        settings = Settings(result.n_components).with_threshold(options.threshold)
        of_object = result.object is not None and result.parts_of is None
        masks = OBJECT if of_object else FACTORS
        return Labels(
            run_digest(result),
            replace(settings, refine=options.refine, masks=masks),
            self.suggested,
            folder=self._folder,
        )


def load_labels(folder: str | Path, result: Result) -> Labels:
    """Read the labels that ``deepff label`` left in the folder of a result.

    Raises
    ------
    InputError
        There are none, the file is damaged, or it belongs to another result.
    """
    path = Path(folder) / FILE
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no {FILE}; name its factors with `deepff label {folder}` first"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON; restore it or move it away") from error
    format = content.get("deepff labels") if isinstance(content, dict) else None
    if format not in (FIRST_FORMAT, FORMAT):
        raise InputError(f"{path} holds no labels of this version of deepff; move it away")
    digest = run_digest(result)
    if content.get("run") != (_first_digest(result) if format == FIRST_FORMAT else digest):
        raise InputError(
            f"{path} belongs to another result than the one in {folder}, whose factors or images "
            "are others; move it away to label this one"
        )
    try:
        labels = replace(parsed(content, Path(folder)), run=digest)
        check(labels, result)
    except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it or move it away") from error
    return labels


def upgrade(folder: str | Path, result: Result) -> None:
    """Write the labels of a result, if there are any, in this version's format.

    Then they stay valid when images are added to the result.

    Raises
    ------
    InputError
        See :func:`load_labels`.
    """
    if (Path(folder) / FILE).exists():
        _save(load_labels(folder, result), Path(folder))


def carry_over(labels: Labels, folder: str | Path, result: Result) -> None:
    """Label a saved result that has the same factors in other images: names and settings.

    Raises
    ------
    InputError
        The result has other factors.
    """
    settings = replace(labels.settings, lesson="")
    carried = Labels(run_digest(result), settings, labels.factors)
    check(carried, result)
    _save(carried, Path(folder))


def export_labelled(
    result: Result,
    labels: Labels,
    formats: str | Sequence[str],
    folder: str | Path,
    settings: ExportOptions | None = None,
    progress: bool = False,
    which: str | None = None,
) -> ExportSummary:
    """Write what the labels say in the formats of labelling tools.

    Images with a mask of their own, accepted or mended, have that; the others what the settings
    make. Factors of one name are one class, kept ones without a name are called "factor 3" (one
    factor alone "object", see :func:`deepff.regions.part_names.factor_names`).

    Parameters
    ----------
    labels : Labels
        From :func:`load_labels`.
    result, formats, folder, settings, progress
        See :func:`deepff.export.formats.export`.
    which : {"accepted", "not-skipped", "all"}, optional
        The images to write; by default those that are accepted, or all but skipped ones where none
        is.

    Raises
    ------
    InputError
        Every factor is background, there is no such image, or see
        :func:`deepff.export.formats.export`.
    """
    settings = settings or ExportOptions()
    maps = labelled_maps(result, labels, which, settings.memory)
    return export_maps(result, maps, formats, folder, settings, progress)


def _files(labels: Labels) -> set[str]:
    """The files of masks that images have and of the lesson, or that `undo` gives back."""
    every = [labels.images, *(step.before for step in labels.history)]
    entries = [labels.settings, *(entry for held in every for entry in held.values())]
    masks = [getattr(entry, "mask", None) for entry in entries]
    lessons = {getattr(entry, "lesson", "") for entry in entries} - {""}
    return lessons.union(mask.file for mask in masks if mask is not None)


def run_digest(result: Result) -> str:
    """What tells a result from another: its factors. Images may be added to it."""
    digest = sha256()
    for k, found in sorted(result.factorizations.items()):
        digest.update(f"\n{k}\n".encode())
        digest.update(found.components.cpu().numpy().tobytes())
    return digest.hexdigest()


def _first_digest(result: Result) -> str:
    """As in files of before images could be added."""
    digest = sha256("\n".join(result.names).encode("utf-8", "surrogatepass"))
    for k, found in sorted(result.factorizations.items()):
        digest.update(f"\n{k}\n".encode())
        digest.update(found.components.cpu().numpy().tobytes())
    return digest.hexdigest()


def _save(labels: Labels, folder: Path) -> None:
    with atomic_path(folder / FILE) as temporary:
        content = json.dumps(content_of(labels), ensure_ascii=False, indent=1)
        temporary.write_text(content, "utf-8")
