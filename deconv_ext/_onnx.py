"""Registers a decomposition: torch.onnx.export(..., dynamo=True) gets ONNX's own ConvTranspose."""

import torch
from torch import Tensor
from torch._decomp import meta_table, register_decomposition
from torch._library.simple_registry import singleton

from deconv_ext._arguments import Pair
from deconv_ext._fake import axes
from deconv_ext._ops import forward

# Fake tensors with symbolic sizes prefer a decomposition to a fake kernel, but not to an entry of this table.
meta_table[forward] = singleton.find("deconv::conv_transpose2d").fake_impl.kernel


@register_decomposition(forward)
def _(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    output_padding: Pair = (0, 0),
    groups: int = 1,
    dilation: Pair = (1, 1),
) -> Tensor:
    sizes = axes("stride", stride), axes("padding", padding), axes("dilation", dilation)
    unbatched = input.dim() == 3
    result = torch.ops.aten.convolution.default(
        input.unsqueeze(0) if unbatched else input,
        weight,
        bias,
        *sizes,
        True,
        axes("output_padding", output_padding),
        groups,
    )
    return result.squeeze(0) if unbatched else result
