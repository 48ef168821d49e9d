"""Table 1: co-segmentation of objects and of parts on iCoseg."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from deepff.errors import InputError
from deepff.evaluation.datasets import load_icoseg, load_label_folder
from deepff.evaluation.discovered_parts import PartScores, part_scores, part_tables
from deepff.evaluation.objects import Scores, common_notes, object_scores, object_table
from deepff.evaluation.predictions import (
    Features,
    Network,
    attempt,
    collect,
    failure_notes,
    require_success,
    to_stderr,
)
from deepff.evaluation.tables import Table
from deepff.images.image_files import natural_key

PAPER_SETS = {
    "021": "Elephants",
    "017": "Taj Mahal",
    "018": "Taj Mahal",
    "020": "Pyramids",
    "036": "Gymnastics",
    "042": "Statue of Liberty",
}
"""Groups of iCoseg with the paper's five sets, by number; which Taj Mahal it used is not known."""

PART_FACTORS = (2, 3, 4)


def table1(
    network: Network,
    root: str | Path,
    *,
    groups: Sequence[str] = tuple(PAPER_SETS),
    parts: Path | None = None,
    crf: bool = True,
    seeds: int = 1,
    report: Callable[[str], None] = to_stderr,
) -> dict[str, Table]:
    """Set-wide IoU on groups of iCoseg: the object with k = 1, and parts with k = 2, 3, 4.

    Parameters
    ----------
    network : Network
    root : path
        As for `deepff.evaluation.datasets.load_icoseg`.
    groups : sequence of str
        Numbers or pieces of names; ``["all"]`` for every group there is.
    parts : path, optional
        Part masks: a folder with one folder a group, named as the group is, each as
        `deepff.evaluation.datasets.load_label_folder` takes it. Without it there is no bottom of
        the table.
    crf : bool
        Whether there are rows for DFF-CRF, and for parts inside the object, which are refined too.
    seeds : int
        How many seeds, from 0, the values are means over.
    report : callable
        Told of each group that is done or failed.

    Returns
    -------
    dict of str to Table
        "table1-top"; with part masks "table1-bottom" and "table1-bottom-factors" as well.

    Raises
    ------
    InputError
        No group could be evaluated, or there is no folder `parts`.
    """
    if parts is not None and not parts.is_dir():
        raise InputError(f"no folder of part masks {parts}")
    if list(groups) == ["all"]:
        groups = _all_groups(Path(root) / "images")
    failures: dict[str, str] = {}
    part_failures: dict[str, str] = {}
    scores: dict[str, Scores | None] = {}
    of_parts: dict[str, PartScores | None] = {}
    for group, label in zip(groups, column_names(groups), strict=True):
        job = partial(_evaluate, network, root, group, crf, seeds)
        evaluated = attempt(label, job, failures, report)
        scores[label] = evaluated and evaluated[1]
        if evaluated is not None and parts is not None:
            part_job = partial(_part_scores, evaluated[0], network, parts, crf, seeds)
            of_parts[label] = attempt(f"{label}, parts", part_job, part_failures, report)
    require_success(scores, failures)
    notes = [
        "Set-wide IoU of the object with the mask of the 75th percentile",
        "The paper has five sets; its Taj Mahal is shown beside both groups of iCoseg that fit",
        *common_notes(seeds, scores),
        *failure_notes(part_failures),
    ]
    title = "Table 1: iCoseg, whole object, k = 1 (IoU)"
    tables = {"table1-top": object_table("table1-top", title, network, scores, failures, notes)}
    if any(score is not None for score in of_parts.values()):
        title = "Table 1, bottom: iCoseg, parts labelled automatically (IoU)"
        tables |= part_tables("table1-bottom", title, network, of_parts, part_failures, seeds)
    return tables


def column_names(groups: Sequence[str]) -> list[str]:
    """A name of each group's own: the paper's where it has one, with iCoseg's number in brackets.

    Groups that would be called alike ("036 Gymnastics-1" and "036 Gymnastics-2") keep their own
    names.

    Raises
    ------
    InputError
        A group is named twice.
    """
    repeated = [group for group, count in Counter(groups).items() if count > 1]
    if repeated:
        raise InputError(f"the group {repeated[0]!r} is named twice; name each once")
    short = [_short_name(group) for group in groups]
    counts = Counter(short)
    return [name if counts[name] == 1 else group for name, group in zip(short, groups, strict=True)]


def _short_name(group: str) -> str:
    number, _, rest = group.partition(" ")
    if number in PAPER_SETS:
        return f"{PAPER_SETS[number]} ({number})"
    return f"{re.split('-', rest)[0]} ({number})" if number.isdecimal() and rest else group


def _all_groups(folder: Path) -> list[str]:
    names = sorted((path.name for path in folder.glob("*/")), key=natural_key)
    if not names:
        raise InputError(f"iCoseg is laid out as images/ and ground_truth/: no group in {folder}")
    return names


def _evaluate(
    network: Network, root: str | Path, group: str, crf: bool, seeds: int
) -> tuple[Features, Scores]:
    (truth,) = load_icoseg(root, [group])
    features = collect(truth, network)
    return features, object_scores(features, crf, seeds)


def _part_scores(
    features: Features, network: Network, folder: Path, crf: bool, seeds: int
) -> PartScores:
    """The same activations against the group's part masks."""
    images = [item.image for item in features.truth]
    labelled = load_label_folder(folder / features.name, images)
    of_parts = replace(features, truth=labelled.images, part_names=labelled.part_names)
    return part_scores(of_parts, PART_FACTORS, crf, seeds, network)
