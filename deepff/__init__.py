"""Deep Feature Factorization: what a deep CNN sees as alike in a set of images.

The public names are loaded when first used, so that ``import deepff`` does not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepff.application import apply
    from deepff.concepts import ConceptBank, load_concepts
    from deepff.discovery import discover, find_object
    from deepff.errors import InputError
    from deepff.factorization import NMF, PCA, KMeans
    from deepff.heatmaps import HeatMaps
    from deepff.part_discovery import discover_parts
    from deepff.result import Result, load

__version__ = "0.1.0"

_MODULES = {
    "NMF": "deepff.factorization",
    "PCA": "deepff.factorization",
    "KMeans": "deepff.factorization",
    "ConceptBank": "deepff.concepts",
    "HeatMaps": "deepff.heatmaps",
    "InputError": "deepff.errors",
    "Result": "deepff.result",
    "apply": "deepff.application",
    "discover": "deepff.discovery",
    "discover_parts": "deepff.part_discovery",
    "find_object": "deepff.discovery",
    "load": "deepff.result",
    "load_concepts": "deepff.concepts",
}

__all__ = [
    "NMF",
    "PCA",
    "ConceptBank",
    "HeatMaps",
    "InputError",
    "KMeans",
    "Result",
    "apply",
    "discover",
    "discover_parts",
    "find_object",
    "load",
    "load_concepts",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'deepff' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
