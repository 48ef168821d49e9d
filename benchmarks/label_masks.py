"""Masks of ``deepff label``, compared with the truth: at its first page, and as masks teach.

    OMP_NUM_THREADS=1 python benchmarks/label_masks.py DATA FOLDER
        [--kinds bear=19 elephant=15 ...]

DATA holds iCoseg as ``icoseg/{images,ground_truth}/<group>/``; FOLDER is made, with photographs and
results. Of each set of two kinds of animal: the IoU of the masks of the first page, whatever they
are called and as they are called; and what the true mask of the worst image teaches the others.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from label_truth import (
    Truths,
    iou,
    ious,
    of_each_kind,
    photographs,
    shown_masks,
    tell_ious,
)

import deepff
from deepff.app.kept_masks import NamedMask
from deepff.app.lessons import Lesson, known_to_teach, write_lesson
from deepff.app.masks import Masks
from deepff.app.workspace import Workspace
from deepff.discovery.teaching import classified, teach

SETS = (
    ["bear=19", "elephant=15"],
    ["elephant=15", "cheetah=25"],
    ["bear=19", "cheetah=21"],
)
KS = list(range(1, 7))  # as `deepff label photos/` has them


def labelled(photos: Path, folder: Path) -> Workspace:
    """What ``deepff label`` opens of photographs."""
    result = deepff.discover(photos, KS)
    result.object = deepff.find_object(result)
    result.save(folder)
    workspace = Workspace(folder)
    workspace.open()
    return workspace


def first_page(workspace: Workspace, truths: Truths) -> dict[str, NamedMask]:
    """Print the names, and how well the masks fit; gives the masks."""
    masks = shown_masks(workspace.folder)
    labels = workspace.store.labels
    factors = [labels.factor(number) for number in range(labels.settings.k)]
    called = [factor.name if factor.keep else "background" for factor in factors]
    print("factors:", ", ".join(called))
    tell_ious("of the object", {n: iou(masks[n].values > 0, truths[n]) for n in masks})
    tell_ious("by the names", ious(masks, truths))
    return masks


def taught(workspace: Workspace, masks: dict[str, NamedMask], truths: Truths) -> None:
    """Print what the true mask of the worst image teaches the others."""
    before = {name: iou(mask.values > 0, truths[name]) for name, mask in masks.items()}
    worst = min(before, key=lambda name: before[name])
    assert workspace.result.object is not None
    labels = workspace.store.labels
    run, *known = known_to_teach(workspace.result, labels, ())
    classifier = teach(run, {worst: truths[worst].astype(np.uint8)}, 1, *known)
    maps = classified(classifier, [image.item for image in run.images])
    lesson = write_lesson(Lesson(maps, classifier), workspace.folder)
    labels = replace(labels, settings=replace(labels.settings, lesson=lesson))
    made = Masks(workspace.result)
    others = [name for name in masks if name != worst]
    after = np.array([iou(made.made(labels, n).values > 0, truths[n]) for n in others])
    former = np.array([before[name] for name in others])
    gained, lost = (np.count_nonzero(sign * (after - former) > 0.01) for sign in (1, -1))
    print(
        f"taught by {worst} ({before[worst]:.3f}), the other {len(others)}: mean IoU "
        f"{former.mean():.3f}, then {after.mean():.3f}; {gained} gained more than 0.01, {lost} "
        "lost as much"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", nargs="+", action="append", help="again for another set")
    asked = parser.parse_args()
    for kinds in asked.kinds or SETS:
        folder = asked.folder / "-".join(kinds)
        print(" and ".join(kinds))
        truths = photographs(asked.data, folder / "photos", of_each_kind(kinds))
        workspace = labelled(folder / "photos", folder / "result")
        masks = first_page(workspace, truths)
        taught(workspace, masks, truths)


if __name__ == "__main__":
    main()
