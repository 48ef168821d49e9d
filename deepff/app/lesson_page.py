"""The part of the page in which masks teach the set: what they would change, before it is taken."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from deepff.app.labels import Labels
from deepff.app.lessons import agreements
from deepff.app.page import render
from deepff.app.pictures import data_uris
from deepff.app.teachers import can_be_taught, pupils, teachers
from deepff.app.workspace import Workspace

# IoU from which an image counts as unchanged, and how many that change are shown.
_UNCHANGED, _SHOWN = 0.98, 6


def lesson(workspace: Workspace, labels: Labels) -> str:
    """What masks could teach, are teaching, or would change; "" where there is nothing to teach."""
    result, teaching = workspace.result, workspace.teaching
    if not can_be_taught(result, labels.settings):
        return ""
    n_teachers, others = len(teachers(labels, result.names)), pupils(labels, result.names)
    if teaching is None and not (n_teachers and others):
        return ""
    changed: list[int] = []
    agreement = np.ones(len(result.names))
    if teaching is not None and teaching.lesson:
        folder = workspace.folder
        agreement = agreements(result, labels.settings, teaching.lesson, folder)
        others.sort(key=lambda index: agreement[index])
        changed = [index for index in others if agreement[index] < _UNCHANGED]
    return render(
        "lesson.html",
        teaching=teaching,
        n_teachers=n_teachers,
        n_pupils=len(others),
        n_changed=len(changed),
        changed=_changes(workspace, labels, changed[:_SHOWN], agreement),
    )


def _changes(
    workspace: Workspace, labels: Labels, indices: Sequence[int], agreement: np.ndarray
) -> list[dict[str, Any]]:
    """Images before and after the lesson that waits to be taken."""
    pictures, teaching = workspace.pictures, workspace.teaching
    if teaching is None:
        return []
    settings = replace(labels.settings, lesson=teaching.lesson)
    before, after = (
        data_uris(partial(pictures.masks, those), indices)
        for those in (labels, replace(labels, settings=settings))
    )
    return [
        {
            "name": pictures.names[index],
            "before": one,
            "after": other,
            "agreement": round(100 * agreement[index]),
        }
        for index, one, other in zip(indices, before, after, strict=True)
    ]
