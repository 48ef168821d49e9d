"""TensorFlow's "same" padding within the convolution, where timm copies its input to pad it."""

from typing import Self

from torch import Tensor, nn
from torch.nn import functional


class SamePaddedConv2d(nn.Conv2d):
    """A convolution whose output has ⌈n / stride⌉ cells on n pixels, whatever its kernel.

    What n lacks, max(0, (⌈n / s⌉ − 1) s + (k − 1) d + 1 − n), is added as zeros, the odd one at
    the end. A convolution pads both sides alike: here by as many whole strides more as the end
    needs, and the cells that these make before the first are cut off.
    """

    @classmethod
    def of(cls, conv: nn.Conv2d) -> Self:
        """One with the weights of a convolution that pads so; they are shared, not copied."""
        same = cls(
            conv.in_channels,
            conv.out_channels,
            (conv.kernel_size[0], conv.kernel_size[1]),
            (conv.stride[0], conv.stride[1]),
            dilation=(conv.dilation[0], conv.dilation[1]),
            groups=conv.groups,
            bias=conv.bias is not None,
            device="meta",
        )
        same.weight, same.bias = conv.weight, conv.bias
        return same.train(conv.training)

    def forward(self, input: Tensor) -> Tensor:
        """(b, c, h, w) to (b, c', ⌈h / stride⌉, ⌈w / stride⌉)."""
        cells, padding, extra = [], [], []
        for axis, n in enumerate(input.shape[-2:]):
            stride = self.stride[axis]
            n_cells = -(-n // stride)
            reach = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
            lacking = max(0, (n_cells - 1) * stride + reach - n)
            before = lacking // 2
            strides = -(-(lacking - 2 * before) // stride)
            cells.append(n_cells)
            extra.append(strides)
            padding.append(before + strides * stride)
        found = functional.conv2d(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )
        rows, columns = (slice(e, e + n) for e, n in zip(extra, cells, strict=True))
        return found[..., rows, columns]
