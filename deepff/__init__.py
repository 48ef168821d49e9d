"""Deep Feature Factorization: what a deep CNN sees as alike in a set of images.

The public names are loaded when first used, so that ``import deepff`` does not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepff.discovery.apply import apply
    from deepff.discovery.discover import discover, find_object
    from deepff.discovery.discover_parts import discover_parts
    from deepff.errors import InputError
    from deepff.factorization import NMF, PCA, KMeans, SemiNMF
    from deepff.layers.layer_map import list_layers
    from deepff.networks.loading import load_backbone
    from deepff.report.load import load
    from deepff.result import Result
    from deepff.results.concept_bank import ConceptBank, load_concepts
    from deepff.results.heatmaps import HeatMaps

__version__ = "0.1.0"

_MODULES = {
    "NMF": "deepff.factorization",
    "PCA": "deepff.factorization",
    "KMeans": "deepff.factorization",
    "SemiNMF": "deepff.factorization",
    "ConceptBank": "deepff.results.concept_bank",
    "HeatMaps": "deepff.results.heatmaps",
    "InputError": "deepff.errors",
    "Result": "deepff.result",
    "apply": "deepff.discovery.apply",
    "discover": "deepff.discovery.discover",
    "discover_parts": "deepff.discovery.discover_parts",
    "find_object": "deepff.discovery.discover",
    "list_layers": "deepff.layers.layer_map",
    "load": "deepff.report.load",
    "load_backbone": "deepff.networks.loading",
    "load_concepts": "deepff.results.concept_bank",
}

__all__ = [
    "NMF",
    "PCA",
    "ConceptBank",
    "HeatMaps",
    "InputError",
    "KMeans",
    "Result",
    "SemiNMF",
    "apply",
    "discover",
    "discover_parts",
    "find_object",
    "list_layers",
    "load",
    "load_backbone",
    "load_concepts",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'deepff' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
