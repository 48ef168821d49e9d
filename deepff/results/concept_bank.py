"""The concept bank: W with what is needed to apply it to new images."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from deepff.activations.activations import FeatureSource
from deepff.errors import InputError
from deepff.results.classifier import PixelClassifier
from deepff.results.factorization import FactorClasses
from deepff.results.histogram import Histogram
from deepff.results.known_instances import KnownInstances, Negatives
from deepff.runtime.files import save_tensors

FILE = "concepts.safetensors"
FORMAT = "deepff concept bank 3"
_READABLE = (FORMAT, "deepff concept bank 2")  # without kinds and known instances
# What tensors and metadata that do not belong together raise.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@dataclass(frozen=True)
class ConceptBank:
    """Components and the sources of the activations in which they are directions.

    Attributes
    ----------
    components : dict of int to Tensor
        For each k a W of shape (k, c). With several sources c is the sum of their channels: W has
        their channels side by side, and the sources' maps are fused.
    histograms : dict of int to Histogram
        For each k, how the maps' values are spread over the set that W comes from.
    method : str
        "nmf", "semi-nmf", "pca" or "kmeans".
    sources : tuple of FeatureSource
        One for each layer.
    channel_weights : Tensor, (c,), or (k, c) for kinds of objects, or None
        What activations are multiplied with before W applies to them.
    recipe : str
        "paper" or "contrast": how masks are made from the maps unless told otherwise.
    parts_of : str or None
        As of :class:`deepff.result.Result`.
    classifiers : dict of int to PixelClassifier
        By k, where the set's regions taught one; all of the same sources.
    classes : dict of int to FactorClasses
        By k, what the network takes the factors for, where that is known.
    known : KnownInstances or None
        Of objects by contrast, the instances that new ones are scored by.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> bank = deepff.discover([data.chelsea(), data.astronaut()], [2, 3], size=224).bank
    >>> {k: tuple(W.shape) for k, W in bank.components.items()}
    {2: (2, 1280), 3: (3, 1280)}
    >>> bank.save("concepts.safetensors")
    """

    components: dict[int, Tensor]
    histograms: dict[int, Histogram]
    method: str
    sources: tuple[FeatureSource, ...]
    channel_weights: Tensor | None = None
    recipe: str = "paper"
    parts_of: str | None = None
    classifiers: dict[int, PixelClassifier] = field(default_factory=dict)
    classes: dict[int, FactorClasses] = field(default_factory=dict)
    known: KnownInstances | None = None

    @property
    def of_kinds(self) -> "list[ConceptBank]":
        """A bank for each kind of thing that the set showed."""
        if self.channel_weights is None or self.channel_weights.ndim == 1:
            return [self]
        (k,) = self.components
        return [
            replace(
                self,
                components={1: self.components[k][kind : kind + 1]},
                histograms={1: self.histograms[k].alone(kind)},
                channel_weights=weights,
                classifiers={1: self.classifiers[k].alone(kind)} if self.classifiers else {},
                classes={1: self.classes[k].alone(kind)} if self.classes else {},
                known=self.known and self.known.alone(kind),
            )
            for kind, weights in enumerate(self.channel_weights)
        ]

    def at_size(self, size: int) -> "ConceptBank":
        """The bank for images whose longer side has another length, in pixels."""
        if any(source.square for source in self.sources):
            raise InputError("the bank's network takes images of one size only; leave out the size")

        def of_size(source: FeatureSource) -> FeatureSource:
            return replace(source, size=size)

        return replace(
            self,
            sources=tuple(map(of_size, self.sources)),
            classifiers={
                k: replace(each, sources=tuple(map(of_size, each.sources)))
                for k, each in self.classifiers.items()
            },
            known=self.known and replace(self.known, source=of_size(self.known.source)),
        )

    def marks_as(self, other: "ConceptBank") -> bool:
        """Whether it has the same components, classifiers and negatives as another, to the bit."""
        return _directions(self).keys() == _directions(other).keys() and all(
            torch.equal(tensor.cpu(), _directions(other)[name].cpu())
            for name, tensor in _directions(self).items()
        )

    def save(self, path: str | Path) -> None:
        """Write the bank as one safetensors file, whole or not at all."""
        tensors = _directions(self)
        for k, histogram in self.histograms.items():
            named = {"low": histogram.low, "high": histogram.high, "counts": histogram.counts}
            tensors |= {f"k{k}.{name}": tensor for name, tensor in named.items()}
        cell_sources = next((each.sources for each in self.classifiers.values()), ())
        known_sources: list[FeatureSource] = []
        if self.known is not None:
            tensors["known.features"] = self.known.features.half()
            tensors["known.backgrounds"] = self.known.backgrounds.half()
            tensors["known.factors"] = self.known.factors
            known_sources = [self.known.source]
        labels: tuple[str, ...] = ()
        scale: float | None = None
        for k, classes in self.classes.items():
            tensors[f"k{k}.class_scores"] = classes.scores
            labels, scale = classes.labels, classes.scale
        metadata = {
            "format": FORMAT,
            "method": self.method,
            "recipe": self.recipe,
            "parts_of": self.parts_of or "",
            "sources": json.dumps([asdict(source) for source in self.sources]),
            "classifier_sources": json.dumps([asdict(source) for source in cell_sources]),
            "by_hand": json.dumps(any(each.by_hand for each in self.classifiers.values())),
            "known_sources": json.dumps([asdict(source) for source in known_sources]),
            "class_labels": json.dumps(labels),
            "word_scale": json.dumps(scale),
            "factor_names": json.dumps({k: classes.names for k, classes in self.classes.items()}),
            "n_images": json.dumps(
                {k: histogram.n_images for k, histogram in self.histograms.items()}
            ),
        }
        contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        save_tensors(contiguous, path, metadata)


def _directions(bank: ConceptBank) -> dict[str, Tensor]:
    """The tensors that decide what a bank marks in an image, by their names in its file."""
    tensors = {f"k{k}": w for k, w in bank.components.items()}
    if bank.channel_weights is not None:
        tensors["channel_weights"] = bank.channel_weights
    for k, classifier in bank.classifiers.items():
        tensors[f"k{k}.classifier.weights"] = classifier.weights
        tensors[f"k{k}.classifier.bias"] = classifier.bias
    if bank.known is not None and bank.known.negatives is not None:
        negatives = bank.known.negatives
        tensors["negatives.features"] = negatives.features.half()
        tensors |= {"negatives.factors": negatives.factors, "negatives.images": negatives.images}
    return tensors


def load_concepts(path: str | Path) -> ConceptBank:
    """Read a concept bank written by :meth:`ConceptBank.save`.

    Raises
    ------
    InputError
        If the file is missing or is no concept bank.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> result = deepff.discover([data.chelsea(), data.astronaut()], n_components=2, size=224)
    >>> result.bank.save("concepts.safetensors")
    >>> bank = deepff.load_concepts("concepts.safetensors")
    >>> bank.method, bank.sources[0].layer
    ('nmf', 'bn2')
    """
    path = Path(path)
    if not path.is_file():
        fault = "is a folder, not a concept bank" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {fault}; {_advice(path)}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") not in _READABLE:
                raise ValueError("it has another format")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _bank(tensors, metadata)
    except (OSError, safetensors.SafetensorError, *_MALFORMED) as error:
        raise InputError(
            f"{path} is not a concept bank of this version of deepff, or is damaged; "
            f"{_advice(path)}"
        ) from error


def _bank(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> ConceptBank:
    """The bank of a file's content; ValueError or another error where it is damaged."""
    n_images = {int(k): n for k, n in json.loads(metadata["n_images"]).items()}
    bank = ConceptBank(
        components={k: tensors[f"k{k}"] for k in sorted(n_images)},
        histograms={
            k: Histogram(
                tensors[f"k{k}.low"], tensors[f"k{k}.high"], tensors[f"k{k}.counts"], n_images[k]
            )
            for k in sorted(n_images)
        },
        method=metadata["method"],
        sources=_sources(metadata["sources"]),
        channel_weights=tensors.get("channel_weights"),
        recipe=metadata["recipe"],
        parts_of=metadata["parts_of"] or None,
        classifiers=_classifiers(sorted(n_images), tensors, metadata),
        classes=_classes(tensors, metadata),
        known=_known(tensors, metadata),
    )
    channels, weights, known = _channels(bank.sources), bank.channel_weights, bank.known
    # Of several kinds each has weights of its own.
    of_kinds = [max(bank.components)] if weights is not None and weights.ndim == 2 else []
    shapes = [(weights, [*of_kinds, channels])]
    if known is not None:
        shape = [len(known.factors), known.source.channels]
        shapes += [(known.features, shape), (known.backgrounds, shape)]
        if known.negatives is not None:
            shape = [len(known.negatives.factors), known.source.channels]
            shapes += [(known.negatives.features, shape)]
    for k, w in bank.components.items():
        shapes += [(w, [k, channels])]
        shapes += [(ends, [k]) for ends in (bank.histograms[k].low, bank.histograms[k].high)]
    for classes in bank.classes.values():
        shapes += [(classes.scores, [len(classes.names), len(classes.labels)])]
    for k, classifier in bank.classifiers.items():
        shapes += [(classifier.weights, [k, _channels(classifier.sources)]), (classifier.bias, [k])]
    for tensor, shape in shapes:
        if tensor is not None and not (tensor.is_floating_point() and [*tensor.shape] == shape):
            raise ValueError(f"{tensor.dtype} {[*tensor.shape]} in place of {shape}")
    return bank


def _channels(sources: Sequence[FeatureSource]) -> int:
    return sum(source.channels for source in sources)


def _known(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> KnownInstances | None:
    # Older banks have none.
    if "known.features" not in tensors:
        return None
    (source,) = _sources(metadata["known_sources"])
    features, backgrounds = (
        tensors[f"known.{name}"].float() for name in ("features", "backgrounds")
    )
    negatives = None
    if "negatives.features" in tensors:
        negatives = Negatives(
            tensors["negatives.features"].float(),
            tensors["negatives.factors"],
            tensors["negatives.images"],
        )
    return KnownInstances(features, backgrounds, tensors["known.factors"], source, negatives)


def _classes(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> dict[int, FactorClasses]:
    # Older banks have no names.
    labels = tuple(json.loads(metadata.get("class_labels", "[]")))
    names = json.loads(metadata.get("factor_names", "{}"))
    scale = json.loads(metadata.get("word_scale", "null"))
    return {
        int(k): FactorClasses(labels, tensors[f"k{k}.class_scores"], tuple(of_k), scale)
        for k, of_k in names.items()
    }


def _classifiers(
    counts: Sequence[int], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> dict[int, PixelClassifier]:
    # Older banks have no classifiers.
    sources = _sources(metadata.get("classifier_sources", "[]"))
    by_hand = json.loads(metadata.get("by_hand", "false"))
    return {
        k: PixelClassifier(
            tensors[f"k{k}.classifier.weights"], tensors[f"k{k}.classifier.bias"], sources, by_hand
        )
        for k in counts
        if f"k{k}.classifier.weights" in tensors
    }


def _sources(text: str) -> tuple[FeatureSource, ...]:
    return tuple(map(FeatureSource.from_dict, json.loads(text)))


def _advice(path: Path) -> str:
    """What to name instead of ``path``."""
    bank = (path if path.is_dir() else path.parent) / FILE
    if bank == path and (path.parent / "manifest.json").is_file():
        return "run the command of its result again"
    if bank != path and bank.is_file():
        return f"the bank of that result is {bank}"
    return f"name the {FILE} of a result first, and then the images"
