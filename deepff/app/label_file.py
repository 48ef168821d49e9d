"""The labels of a result in its folder: ``labels.json``, written whole after each edit."""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from deepff.app.labels import STATUSES, Factor, ImageLabel, Labels, Settings, Step
from deepff.errors import InputError
from deepff.export.formats import ExportSummary, export
from deepff.options import RECIPE_OPTIONS, ExportOptions, Refinement, Threshold, chosen
from deepff.results.result import Result
from deepff.runtime.files import atomic_path

FILE = "labels.json"
FORMAT = 1
MAX_NAME_LENGTH = 80


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

    Raises
    ------
    InputError
        The folder's ``labels.json`` cannot be read or belongs to another result.
    """

    def __init__(self, folder: str | Path, result: Result) -> None:
        self._folder, self._result, self._lock = Path(folder), result, Lock()
        self._labels = self._read()

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
                _check(changed, self._result)
                _save(changed, self._folder)
                self._labels = changed
            return changed

    def _read(self) -> Labels:
        if (self._folder / FILE).exists():
            return load_labels(self._folder, self._result)
        options = RECIPE_OPTIONS[self._result.recipe]
        settings = Settings(self._result.n_components).with_threshold(options.threshold)
        return Labels(run_digest(self._result), replace(settings, refine=options.refine))


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
    if not isinstance(content, dict) or content.get("deepff labels") != FORMAT:
        raise InputError(f"{path} holds no labels of this version of deepff; move it away")
    if content.get("run") != run_digest(result):
        raise InputError(
            f"{path} belongs to another result than the one in {folder}, whose factors or images "
            "are others; move it away to label this one"
        )
    try:
        labels = _parsed(content)
        _check(labels, result)
    except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it or move it away") from error
    return labels


def carry_over(labels: Labels, folder: str | Path, result: Result) -> None:
    """Label a saved result that has the same factors in other images: names and settings.

    Raises
    ------
    InputError
        The result has other factors.
    """
    carried = Labels(run_digest(result), labels.settings, labels.factors)
    _check(carried, result)
    _save(carried, Path(folder))


def export_labelled(
    result: Result,
    labels: Labels,
    formats: str | Sequence[str],
    folder: str | Path,
    settings: ExportOptions | None = None,
    progress: bool = False,
) -> ExportSummary:
    """Write what the labels say in the formats of labelling tools.

    Factors of one name are one class, kept ones without a name are called "factor 3" (one factor
    alone "object", see :func:`deepff.regions.part_names.factor_names`). In an image where a factor
    was dropped, its pixels are background; skipped images are left out.

    Parameters
    ----------
    labels : Labels
        From :func:`load_labels`.
    result, formats, folder, settings, progress
        See :func:`deepff.export.formats.export`.

    Raises
    ------
    InputError
        Every factor is background, or see :func:`deepff.export.formats.export`.
    """
    if not labels.parts:
        raise InputError("every factor is background, so nothing is left to export; keep one")
    return export(
        result,
        formats,
        folder,
        labels.settings.k,
        labels.region_options,
        settings,
        labels.image_edits,
        progress,
    )


def run_digest(result: Result) -> str:
    """What tells a result from another: its factors and the names of its images."""
    digest = sha256("\n".join(result.names).encode("utf-8", "surrogatepass"))
    for k, found in sorted(result.factorizations.items()):
        digest.update(f"\n{k}\n".encode())
        digest.update(found.components.cpu().numpy().tobytes())
    return digest.hexdigest()


def _save(labels: Labels, folder: Path) -> None:
    content = {
        "deepff labels": FORMAT,
        "run": labels.run,
        "revision": labels.revision,
        "settings": asdict(labels.settings),
        "factors": [
            {"k": k, "factor": number, **asdict(factor)}
            for (k, number), factor in sorted(labels.factors.items())
        ],
        "images": {name: _image_content(label) for name, label in labels.images.items()},
        "history": [_step_content(step) for step in labels.history],
    }
    with atomic_path(folder / FILE) as temporary:
        temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")


def _image_content(label: ImageLabel) -> dict[str, Any]:
    dropped = {str(k): list(numbers) for k, numbers in label.dropped.items()}
    return {"status": label.status, "dropped": dropped}


def _step_content(step: Step) -> dict[str, Any]:
    if isinstance(step.before, ImageLabel):
        return {"image": step.key, "before": _image_content(step.before)}
    if isinstance(step.before, Factor):
        return {"factor": list(step.key), "before": asdict(step.before)}
    return {"settings": None, "before": asdict(step.before)}


def _parsed(content: Mapping[str, Any]) -> Labels:
    return Labels(
        run=content["run"],
        settings=Settings(**content["settings"]),
        factors={
            (entry["k"], entry["factor"]): Factor(entry["name"], entry["keep"])
            for entry in content["factors"]
        },
        images={name: _parsed_image(entry) for name, entry in content["images"].items()},
        history=tuple(_parsed_step(entry) for entry in content["history"]),
        revision=content["revision"],
    )


def _parsed_image(entry: Mapping[str, Any]) -> ImageLabel:
    dropped = {int(k): tuple(numbers) for k, numbers in entry["dropped"].items()}
    return ImageLabel(entry["status"], dropped)


def _parsed_step(entry: Mapping[str, Any]) -> Step:
    before = entry["before"]
    if "image" in entry:
        return Step(entry["image"], _parsed_image(before))
    if "factor" in entry:
        k, number = entry["factor"]
        return Step((k, number), Factor(**before))
    return Step(None, Settings(**before))


def _check(labels: Labels, result: Result) -> None:
    """Refuse labels that don't fit the result, the states that `undo` leads to included."""
    if type(labels.revision) is not int or labels.revision < 0:
        raise InputError(f"there is no revision {labels.revision!r}; it counts from 0")
    _check_settings(labels.settings, result)
    for key, factor in labels.factors.items():
        _check_factor(key, factor, result)
    for name, label in labels.images.items():
        _check_image(name, label, result)
    for step in labels.history:
        if isinstance(step.before, Settings):
            _check_settings(step.before, result)
        elif isinstance(step.before, Factor):
            _check_factor(step.key, step.before, result)
        else:
            _check_image(step.key, step.before, result)


def _check_settings(settings: Settings, result: Result) -> None:
    if settings.k not in result.factorizations:
        held = ", ".join(map(str, result.factorizations))
        raise InputError(
            f"there is no factorization with {settings.k!r} factors; choose k = {held}"
        )
    chosen(Threshold, settings.threshold, "threshold")
    chosen(Refinement, settings.refine, "refinement")
    if result.parts_of is not None and settings.refine == Refinement.GUIDED_CRF:
        raise InputError("parts of the object are refined by classifier, dense-crf, or by none")
    low, high = (0.01, 1) if settings.threshold == Threshold.MAX_FRACTION else (0, 100)
    if not isinstance(settings.value, int | float) or not low <= settings.value <= high:
        raise InputError(f"the value {settings.value!r} is not between {low} and {high}")


def _check_factor(key: tuple[int, int], factor: Factor, result: Result) -> None:
    k, number = key
    if k not in result.factorizations or type(number) is not int or not 0 <= number < k:
        raise InputError(f"there is no factor {number!r} of {k!r}")
    if not isinstance(factor.name, str) or type(factor.keep) is not bool:
        raise InputError(f"what is said of factor {number} of {k} is no name and true or false")
    if len(factor.name) > MAX_NAME_LENGTH:
        raise InputError(f"a name has up to {MAX_NAME_LENGTH} characters, not {len(factor.name)}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in factor.name):
        raise InputError(f"the name {factor.name!r} has a control character; leave it out")


def _check_image(name: str, label: ImageLabel, result: Result) -> None:
    if name not in result.names:
        raise InputError(f"there is no image {name!r}")
    if label.status not in STATUSES:
        raise InputError(f"an image is accepted, skipped or neither, not {label.status!r}")
    for k, numbers in label.dropped.items():
        for number in numbers:
            _check_factor((k, number), Factor(), result)
