"""The names of a network's classes, or words instead of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepff.errors import InputError, first_line
from deepff.networks.available import LITE, OPTIONAL
from deepff.networks.backbone import Backbone, WordHead

_IMAGENET = 1000


def class_labels(backbone: Backbone) -> tuple[str, ...] | None:
    """The names of a network's outputs, in order: those that the user gave, else ImageNet's; None
    where they are not known."""
    if backbone.labels is not None:
        return backbone.labels
    library = backbone.name.partition("/")[0]
    if library in OPTIONAL or getattr(backbone.network, "num_classes", None) == 0:
        raise InputError(f"{backbone.name} has no classes, so factors have no names")
    if backbone.weights == "random":
        raise InputError("the network's weights are random, so factors have no names")
    if library == "timm":
        return _timm_labels(backbone)
    return _torchvision_labels("vgg19" if backbone.name in LITE else backbone.name)


def checked_labels(labels: tuple[str, ...] | None, n_classes: int, name: str) -> tuple[str, ...]:
    """The labels, or "output 0", "output 1" and so on where they are not known. Raises InputError
    where there are not as many as the network has outputs."""
    if labels is None:
        return tuple(f"output {i}" for i in range(n_classes))
    if len(labels) != n_classes:
        raise InputError(
            f"{len(labels)} labels are given, but {name} has {n_classes} outputs; give one label "
            "per class"
        )
    return labels


def read_labels(path: str | Path) -> tuple[str, ...]:
    """The lines of a text file, one label per line in the order of the network's outputs."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file; it should have one label per line") from error
    labels = tuple(line.strip() for line in text.rstrip().splitlines())
    if not labels or not all(labels):
        raise InputError(f"{path} should have one label per line, without empty lines")
    return labels


def read_words(text: str) -> tuple[str, ...]:
    """Comma-separated words, or the lines of a text file."""
    if Path(text).is_file():
        return read_labels(text)
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise InputError(f"{text!r} should be a file, or words with commas between: cat,dog")
    return words


def word_head(model: nn.Module | None, name: str, words: Sequence[str]) -> WordHead:
    """The head for words by the text tower of a network ``open_clip/NAME`` or ``…/TAG``."""
    if model is None:
        raise InputError(
            f"words need a network with a text encoder, and {name} has none; use a network from "
            "open_clip, such as open_clip/ViT-B-32"
        )
    if not words or not all(word.strip() for word in words):
        raise InputError("give words that are not empty, such as cat,dog")
    import open_clip

    network: Any = model
    try:
        tokenizer = open_clip.get_tokenizer(name.split("/")[1])
    except Exception as error:  # tokenizers of other libraries raise errors of many kinds
        raise InputError(
            f"the tokenizer of {name} is not available ({first_line(error)})"
        ) from error
    with torch.no_grad():
        embeddings = network.eval().encode_text(tokenizer([*words]), normalize=True)
        return WordHead(embeddings.float(), float(network.logit_scale.exp()))


def _torchvision_labels(name: str) -> tuple[str, ...] | None:
    import torchvision

    if name not in torchvision.models.list_models(module=torchvision.models):
        return None
    return tuple(torchvision.models.get_model_weights(name).DEFAULT.meta["categories"])


def _timm_labels(backbone: Backbone) -> tuple[str, ...] | None:
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(backbone.network)
    if subset is None:
        return None
    if getattr(backbone.network, "num_classes", 0) == _IMAGENET:
        return _torchvision_labels("vgg19")  # shorter than WordNet's, and the same order
    descriptions = ImageNetInfo(subset).label_descriptions()
    return tuple(description.partition(",")[0] for description in descriptions)
