"""TensorFlow's "same" padding without a padded copy of the input."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Conv2dSame

from deepff.activations.folding import SamePaddedConv2d


@settings(deadline=None, max_examples=60)
@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    kernel=st.sampled_from([(1, 1), (2, 2), (3, 3), (5, 5), (4, 3), (7, 2)]),
    stride=st.sampled_from([(1, 1), (2, 2), (3, 2), (4, 4)]),
    dilation=st.sampled_from([1, 2]),
    depthwise=st.booleans(),
    bias=st.booleans(),
)
def test_it_is_timms(height, width, kernel, stride, dilation, depthwise, bias) -> None:
    torch.manual_seed(0)
    groups, outputs = (4, 8) if depthwise else (1, 6)
    theirs = Conv2dSame(
        4, outputs, kernel, stride, dilation=dilation, groups=groups, bias=bias
    ).eval()
    ours = SamePaddedConv2d.of(theirs)
    image = torch.randn(2, 4, height, width)
    with torch.no_grad():
        expected = theirs(image)
        assert expected.shape[2:] == (-(-height // stride[0]), -(-width // stride[1]))
        torch.testing.assert_close(ours(image), expected, rtol=1e-5, atol=1e-5)
    assert ours.weight is theirs.weight
