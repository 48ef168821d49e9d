"""What the report says about one number of factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepff.regions.part_names import factor_names
from deepff.report.crops import Crop
from deepff.results.factorization import Factorization
from deepff.results.importance import Importance
from deepff.results.run import Run

N_CLASSES = 3
# Of the activations of a set at k = 1; below it the images have little in common.
_LITTLE = 0.2


def section(
    result: Run, k: int, colors: Sequence[str], crops: Sequence[Sequence[Crop]], folder: Path
) -> dict[str, Any]:
    """The facts of one k, for the page.

    Parameters
    ----------
    result : Run
    k : int
    colors : sequence of str
        Of the factors, as CSS has them.
    crops : sequence of sequence of Crop
        For each factor; pictures that ``folder`` lacks are left out.
    folder : Path
        Of the result.
    """
    found = result.factorizations[k]
    error = found.relative_error
    explained = None if math.isnan(error) else max(0.0, 1 - error**2)
    classes = None if found.classes is None else found.classes.best(N_CLASSES)
    names = [None] * k if found.classes is None else found.classes.names
    importance = result.importances.get(k)
    shares = found.energy_shares.tolist()
    likeness = _likeness(found)
    return {
        "k": k,
        "relative_error": None if math.isnan(error) else error,
        "explained": explained,
        "has_little_in_common": k == 1 and explained is not None and explained < _LITTLE,
        "by_words": any(likeness),
        "classes": [] if importance is None else list(importance.labels),
        "factors": [
            {
                "name": name,
                "color": colors[j],
                "share": shares[j],
                "called": names[j],
                "classes": [] if classes is None else classes[j],
                "likeness": likeness[j],
                "importance": [] if importance is None else _of_factor(importance, j),
                "crops": [crop for crop in crops[j] if (folder / crop.file).is_file()],
            }
            for j, name in enumerate(factor_names(k))
        ],
    }


def _likeness(found: Factorization) -> list[list[tuple[str, float]]]:
    """For each factor the words that it is most like, and the cosines."""
    k = len(found.components)
    if found.classes is None or found.classes.likeness is None:
        return [[]] * k
    cosines, words = found.classes.likeness, found.classes.labels
    values, places = cosines.topk(min(N_CLASSES, len(words)), dim=1)
    return [
        [(words[i], value) for i, value in zip(row, own, strict=True)]
        for row, own in zip(places.tolist(), values.tolist(), strict=True)
    ]


def _of_factor(importance: Importance, factor: int) -> list[dict[str, Any]]:
    """For each class the fall, beside the largest of the section, and the Sobol index."""
    falls = importance.mean_falls
    largest = max(float(falls.abs().max()), 1e-12)
    return [
        {
            "label": label,
            "fall": float(falls[factor, c]),
            "length": abs(float(falls[factor, c])) / largest,
            "sobol": float(importance.sobol[factor, c]),
        }
        for c, label in enumerate(importance.labels)
    ]
