"""Words as the classes of a network of open_clip, by its text tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepff.errors import InputError, first_line


@dataclass(frozen=True)
class WordHead:
    """What makes one number a word of an image's embedding, as zero-shot classification does.

    Radford et al. 2021, "Learning transferable visual models from natural language supervision",
    section 3.1.2: the cosine with the word's embedding, times the network's scale.

    Attributes
    ----------
    embeddings : Tensor, (words, d)
        Of the words, of length 1.
    scale : float
        The exponential of what the network has learnt as ``logit_scale``.
    """

    embeddings: Tensor
    scale: float

    def __call__(self, images: Tensor) -> Tensor:
        """From embeddings of images, (n, d), to logits, (n, words)."""
        return self.scale * functional.normalize(images, dim=1) @ self.embeddings.to(images).T


def word_head(model: nn.Module | None, name: str, words: Sequence[str]) -> WordHead:
    """The words' embeddings by the text tower of a network.

    Parameters
    ----------
    model : nn.Module or None
        Of open_clip, with both towers; None where the network has no text tower.
    name : str
        ``open_clip/ViT-B-32`` or ``open_clip/ViT-B-32/TAG``.
    words : sequence of str
        As the tower is to read them: "cat" or "a photo of a cat".

    Raises
    ------
    InputError
        There is no text tower, its tokenizer cannot be had, or no words are given.
    """
    if model is None:
        raise InputError(
            f"words need a network with a text tower, and {name} has none; take one of open_clip, "
            "such as open_clip/ViT-B-32"
        )
    if not words or not all(word.strip() for word in words):
        raise InputError("give words that are not empty, such as cat,dog")
    import open_clip

    network: Any = model
    try:
        tokenizer = open_clip.get_tokenizer(name.split("/")[1])
    except Exception as error:  # tokenizers of other libraries raise errors of many kinds
        raise InputError(f"the tokenizer of {name} cannot be had ({first_line(error)})") from error
    with torch.no_grad():
        embeddings = network.eval().encode_text(tokenizer([*words]), normalize=True)
        return WordHead(embeddings.float(), float(network.logit_scale.exp()))
