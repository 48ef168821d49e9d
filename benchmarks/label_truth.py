"""Photographs of two kinds of animal for ``deepff label``, and how well masks fit the animals."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from deepff.app.kept_masks import NamedMask
from deepff.app.workspace import Workspace

GROUPS = {"bear": "002", "elephant": "021", "goose": "022", "cheetah": "028"}
Masks = dict[str, NamedMask]
Truths = dict[str, np.ndarray]


def of_each_kind(kinds: Sequence[str]) -> dict[str, int]:
    """How many photographs of which kind, of KIND=NUMBER each."""
    return {kind: int(count) for kind, _, count in (one.partition("=") for one in kinds)}


def photographs(data: Path, folder: Path, kinds: dict[str, int]) -> Truths:
    """Copy photographs, as KIND_NAME, drawn evenly; gives the truth of each."""
    folder.mkdir(parents=True)
    truths = {}
    for kind, count in kinds.items():
        [group] = (data / "icoseg" / "images").glob(f"{GROUPS[kind]}*")
        photos = sorted(group.glob("*.jpg"))
        for index in np.linspace(0, len(photos) - 1, count).round().astype(int):
            name = f"{kind}_{photos[index].name}"
            shutil.copy(photos[index], folder / name)
            truth = data / "icoseg" / "ground_truth" / group.name / f"{photos[index].stem}.png"
            truths[name] = np.asarray(Image.open(truth)) > 0
    return truths


def shown_masks(result: Path) -> Masks:
    """The masks at the images' own sizes, as an export would have them now."""
    workspace = Workspace(result)
    workspace.open()
    labels = workspace.store.labels
    return {name: workspace.masks.current(labels, name) for name in workspace.result.names}


def kind_of(name: str) -> str:
    return name.partition("_")[0]


def ious(masks: Masks, truths: Truths) -> dict[str, float]:
    """IoU of each image's mask, as far as it is called after its kind of animal, with the truth."""
    found = {}
    for name, mask in masks.items():
        right = [i + 1 for i, called in enumerate(mask.names) if kind_of(name) in called]
        found[name] = iou(np.isin(mask.values, right), truths[name])
    return found


def iou(one: np.ndarray, other: np.ndarray) -> float:
    return np.count_nonzero(one & other) / np.count_nonzero(one | other)


def tell_ious(when: str, scores: dict[str, float]) -> None:
    mean = float(np.mean(list(scores.values())))
    kinds = {
        kind: round(float(np.mean([v for n, v in scores.items() if kind_of(n) == kind])), 3)
        for kind in dict.fromkeys(map(kind_of, scores))
    }
    above = sum(score >= 0.8 for score in scores.values())
    print(f"mean IoU {when}: {mean:.3f} {kinds}, {above} of {len(scores)} at 0.8 or more")
