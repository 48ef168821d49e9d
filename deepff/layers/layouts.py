"""From a module's output to a map (batch, channels, height, width), whatever its layout."""

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from deepff.errors import InputError
from deepff.networks.backbone import Reshape, Tokens

Kind = Literal["channels first", "channels last", "tokens", "own"]

# Three equal shares of one linear layer's channels, in this order: timm's and DINO's `qkv`, and
# the input projection of `nn.MultiheadAttention`.
QKV = ("queries", "keys", "values")
# Parameters with tokens before those of the grid, in timm, torchvision, open_clip, transformers
# and DINO: one token each, but registers have one per row.
_SINGLE_TOKENS = {"cls_token", "class_token", "class_embedding", "dist_token", "distillation_token"}
_REGISTERS = {"reg_token", "register_tokens", "storage_tokens"}
_MOST_GUESSED = 16  # prefix tokens


@dataclass(frozen=True)
class Layout:
    """How a module's output holds a map."""

    # Channels first (b, c, h, w), last (b, h, w, c), tokens (b, t, c); "own" by `reshape`.
    kind: Kind = "channels first"
    prefix: int = 0  # tokens before those of the grid: class, distillation, registers
    is_guessed: bool = False  # whether the prefix is only what is left of a square
    part: str | None = None  # which of `QKV` that the module gives next to each other
    reshape: Reshape | None = None  # the user's function
    by_sign: bool = False  # every channel's positive part, and then every negative part

    def __str__(self) -> str:
        if self.kind != "tokens" or not self.prefix:
            return self.kind
        return f"tokens after {self.prefix}{' (guessed)' if self.is_guessed else ''}"

    @property
    def identity(self) -> str:
        """Text that differs between layouts with other maps of the same output."""
        return str(replace(self, is_guessed=False))

    def to_map(self, output: Any, shape: tuple[int, int], stride: int) -> Tensor | None:
        """The map (b, c, h, w), a view where possible; None where the output has another layout. By
        sign it is (b, 2c, h, w). ``shape`` is the input's (height, width), ``stride`` per cell."""
        values = self._signed_map(output, shape, stride)
        if values is None or not self.by_sign:
            return values
        return torch.cat([values.clamp_min(0), (-values).clamp_min(0)], dim=1)

    def _signed_map(self, output: Any, shape: tuple[int, int], stride: int) -> Tensor | None:
        if self.kind == "own":
            return None if self.reshape is None else self.reshape(output, shape)
        values = tensor_of(output)
        if values is None or values.ndim != (3 if self.kind == "tokens" else 4):
            return None
        if self.kind == "tokens":
            grid = _grid(values.shape[1] - self.prefix, shape, stride)
            if grid is None:
                return None
            values = values[:, self.prefix :].unflatten(1, grid)
        if self.kind != "channels first":
            values = values.permute(0, 3, 1, 2)
        if self.part is not None:
            values = values.chunk(len(QKV), dim=1)[QKV.index(self.part)]
        return values

    def to_output(self, maps: Tensor, output: Any) -> Any:
        """The module's output if its map (b, c, h, w) were another: the inverse of `to_map`."""
        if self.kind == "own":
            raise InputError(
                "the layer's map was made by your own function, which cannot be undone; name a "
                "layer whose output is a map or tokens"
            )
        if self.by_sign:
            positive, negative = maps.chunk(2, dim=1)
            maps = positive - negative
        values = tensor_of(output)
        assert values is not None, "the layer was found by such an output"
        new = maps.to(values.dtype)
        channel_axis = 1 if self.kind == "channels first" else -1
        parts = [values] if self.part is None else list(values.chunk(len(QKV), channel_axis))
        index = 0 if self.part is None else QKV.index(self.part)
        if self.kind != "channels first":
            new = new.permute(0, 2, 3, 1)
        if self.kind == "tokens":
            before = parts[index][:, : self.prefix]
            new = torch.cat([before.expand(len(new), -1, -1), new.flatten(1, 2)], dim=1)
        if self.part is not None:
            parts = [part.expand(len(new), *part.shape[1:]) for part in parts]
            parts[index] = new
            new = torch.cat(parts, channel_axis)
        return with_tensor(output, new)


CHANNELS_FIRST = Layout()


def layouts_of(
    module: nn.Module,
    path: str,
    inputs: tuple[Any, ...],
    output: Any,
    prefix: int | None,
    tokens: Tokens | None,
) -> list[Layout] | str:
    """The layouts of a module's output for one square image, or the rest of a sentence why not.
    One, and also those of the queries, keys and values; ``tokens`` overrules ``prefix``."""
    if callable(tokens):
        return [Layout("own", reshape=tokens)]
    values = tensor_of(output)
    no_map = "not a map (batch, channels, height, width)"
    if values is None:
        return f"gives a {type(output).__name__}, {no_map}"
    shape = f"gives shape {tuple(values.shape)}"
    if is_of_windows(values):
        return f"{shape} for one image, window by window without their positions"
    if values.shape[:1] != (1,) or not values.is_floating_point() or not values.numel():
        return f"{shape}, {no_map}"
    if values.ndim == 3 and values.shape[2] > 1:
        layout = _token_layout(values.shape[1], tokens if tokens is not None else prefix)
    else:
        layout = _map_layout(values)
    if layout is None:
        return f"{shape}, {no_map}"
    if layout.kind == "channels first" and values.shape[2] > 1 and _sums_to_one(values):
        return f"{shape}, attention weights between tokens rather than a map"
    parts = [replace(layout, part=part) for part in QKV]
    n_in, n_out = getattr(module, "in_features", -1), getattr(module, "out_features", 0)
    if path.rpartition(".")[2] == "qkv" and n_out == len(QKV) * n_in:
        return parts
    return [layout, *parts] if _projects(module, inputs) else [layout]


def tensor_of(output: Any) -> Tensor | None:
    """The tensor in an output, or None: the output itself, its ``last_hidden_state``, or the tokens
    that come first in a tuple, as from ``nn.MultiheadAttention``."""
    if isinstance(output, Tensor):
        return output
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None and isinstance(output, tuple) and output:
        first = output[0]
        hidden = first if isinstance(first, Tensor) and first.ndim == 3 else None
    return hidden if isinstance(hidden, Tensor) else None


def is_of_windows(output: Any) -> bool:
    """Whether one image gave a batch of token sequences or small maps, one per window."""
    return isinstance(output, Tensor) and output.ndim in (3, 4) and len(output) > 1


def output_of(module: nn.Module, inputs: tuple[Any, ...], output: Any, layout: Layout) -> Any:
    """What a layer is read from: the module's output, or what it computes from its inputs."""
    if layout.part is None or not isinstance(module, nn.MultiheadAttention):
        return output
    n = len(QKV)
    biases = [None] * n if module.in_proj_bias is None else module.in_proj_bias.chunk(n)
    projections = zip(inputs[:n], module.in_proj_weight.chunk(n), biases, strict=True)
    return torch.cat([functional.linear(x, w, b) for x, w, b in projections], dim=-1)


def declared(tokens: Tokens | None) -> int | str | None:
    """What is saved of the option `tokens`: only "function" of a function."""
    return "function" if callable(tokens) else tokens


def with_tensor(output: Any, new: Tensor) -> Any:
    """The output with another tensor in the position that `tensor_of` reads."""
    if isinstance(output, Tensor):
        return new
    if isinstance(output, tuple):
        return (new, *output[1:])
    changed = copy(output)
    changed.last_hidden_state = new
    return changed


def declared_prefix(network: nn.Module) -> int | None:
    """How many tokens a network puts before those of the grid; None where it does not say."""
    n_before = getattr(network, "num_prefix_tokens", None)  # timm
    if isinstance(n_before, int):
        return n_before
    named = {path.rpartition(".")[2]: p for path, p in network.named_parameters()}
    counts = [1] * len(_SINGLE_TOKENS & named.keys())
    counts += [named[name].shape[-2] for name in _REGISTERS & named.keys()]
    return sum(counts) if counts else None


def patch_of(network: nn.Module) -> int | None:
    """The side of the patches that a network cuts its input into; None where it does not."""
    first = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None or first.kernel_size != first.stride or first.stride[0] == 1:
        return None
    return first.stride[0]


def stride_of(size: int, cells: int, patch: int | None = None) -> int:
    """Input pixels per cell, for so many cells along a side; `patch` is from :func:`patch_of`."""
    if patch is not None and size // patch == cells:
        return patch
    # Padding makes `cells` one more or less than size / stride when size is no multiple of
    # the stride, so a power of two that explains the grid goes before the plain ratio.
    power = 2 ** round(math.log2(size / cells))
    explains = cells > 1 and size / (cells + 1) <= power < size / (cells - 1)
    return power if explains and power >= 1 else max(1, round(size / cells))


def _token_layout(n_tokens: int, prefix: int | None) -> Layout | None:
    """Without a prefix too: layers before it is added, such as the patch embedding, have none."""
    for n_before in range(_MOST_GUESSED + 1) if prefix is None else (prefix, 0):
        n_cells = n_tokens - n_before
        if n_cells > 1 and math.isqrt(n_cells) ** 2 == n_cells:
            return Layout("tokens", n_before, is_guessed=prefix is None and n_before > 0)
    return None


def _map_layout(values: Tensor) -> Layout | None:
    # The image is square: a map is square in its last two axes, or, with the channels last, in
    # its second and third.
    if values.ndim != 4:
        return None
    _, first, second, third = values.shape
    if first == second != third and first > 1:
        return Layout("channels last")
    return Layout("channels first") if second == third else None


def _grid(n_cells: int, shape: tuple[int, int], stride: int) -> tuple[int, int] | None:
    for rounded in (math.floor, math.ceil):
        height, width = (rounded(side / stride) for side in shape)
        if height * width == n_cells:
            return height, width
    return None


def _projects(module: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Whether it is attention that projects tokens (b, t, c) to queries, keys and values itself."""
    return (
        isinstance(module, nn.MultiheadAttention)
        and module.batch_first
        and module.in_proj_weight is not None
        and len(inputs) >= len(QKV)
    )


def _sums_to_one(values: Tensor) -> bool:
    first = values[:1, :1, :1]  # nearly always enough
    return all(
        torch.allclose(part.sum(-1), torch.ones_like(part[..., 0]), atol=1e-3)
        for part in (first, values)
    )
