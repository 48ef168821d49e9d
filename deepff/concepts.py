"""The concept bank: W with what is needed to apply it to new images."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from deepff.errors import InputError
from deepff.feature_source import FeatureSource
from deepff.files import atomic_path

FORMAT = "deepff concept bank 1"


@dataclass(frozen=True)
class ConceptBank:
    """Components and the source of the activations in which they are directions.

    Attributes
    ----------
    components : dict of int to Tensor
        For each k a W of shape (k, c).
    method : str
        "nmf", "pca" or "kmeans".
    source : FeatureSource
    """

    components: dict[int, Tensor]
    method: str
    source: FeatureSource

    def save(self, path: str | Path) -> None:
        """Write the bank as one safetensors file, whole or not at all."""
        tensors = {f"k{k}": w.cpu().contiguous() for k, w in self.components.items()}
        metadata = {
            "format": FORMAT,
            "method": self.method,
            "source": json.dumps(asdict(self.source)),
        }
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata)


def load_concepts(path: str | Path) -> ConceptBank:
    """Read a concept bank written by :meth:`ConceptBank.save`.

    Raises
    ------
    InputError
        If the file is missing or is no concept bank.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(f"{path} is a safetensors file but not a concept bank of deepff")
            components = {int(name[1:]): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"there is no concept bank at {path}") from None
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} cannot be read as a concept bank: {error}") from error
    source = FeatureSource.from_dict(json.loads(metadata["source"]))
    return ConceptBank(dict(sorted(components.items())), metadata["method"], source)
