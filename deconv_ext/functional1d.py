"""The 1-D operator: the 2-D one on tensors of one row."""

from typing import Any

import torch
from torch import Tensor

from deconv_ext._arguments import Pair
from deconv_ext._autocast import lowered_once
from deconv_ext._eager import is_plain
from deconv_ext._ops import kernels_serve
from deconv_ext.functional import conv_transpose2d
from deconv_ext.override import OURS, asks_subclass, override

_has_torch_function = torch._C._has_torch_function_variadic
_aten_conv_transpose1d = torch.conv_transpose1d  # users replace the names that they know it by


def _row(argument: str, value: Pair, across: int) -> tuple[int, Any]:
    """The pair (`across` the row, `value` along it); a list of one counts as its element."""
    if not isinstance(value, (list, tuple)):
        return across, value
    if len(value) != 1:
        raise RuntimeError(f"conv_transpose1d: {argument} must be one integer or a list of 1, but got {list(value)}")
    return across, value[0]


def _refuse_shapes(input: Tensor, weight: Tensor) -> None:
    if input.dim() not in (2, 3):
        raise RuntimeError(
            "conv_transpose1d: input must be 2-D (channels, length) or 3-D (batch, channels, length), "
            f"but got size {list(input.shape)}"
        )
    if weight.dim() != 3:
        raise RuntimeError(
            "conv_transpose1d: weight must be 3-D (in_channels, out_channels / groups, kernel), "
            f"but got size {list(weight.shape)}"
        )


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """Transposed 1D convolution: drop-in replacement for :func:`torch.nn.functional.conv_transpose1d`.

    Runs :func:`conv_transpose2d` on views of one row: no copy, the same kernels, derivatives, types and determinism.

    Args:
        input: (batch, in_channels, length) or (in_channels, length), any strides.
        weight: (in_channels, out_channels / groups, kernel), of input's dtype and device.
        bias: (out_channels) or None (the default); of input's dtype and device.
        stride, dilation: an integer or a list of one, at least 1; default 1.
        padding: elements cropped from each end, an integer or a list of one, at least 0; default 0.
        output_padding: elements more at the end, an integer or a list of one, at least 0 and below stride or dilation;
            default 0.
        groups: divides in_channels and out_channels; default 1.

    Returns:
        (batch, out_channels, out length), without the batch dimension for a 2-D input, where
        ``out = (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1``. On CUDA an input whose
        channels are innermost, as ``x.transpose(1, 2)`` of a contiguous (batch, length, channels), gives such a result
        (never for float64).

    Raises:
        RuntimeError: an argument is out of range; the text names it, its value and the valid range. Nothing was
            launched.

    Example:
        >>> x, weight = torch.ones(1, 4, 5), torch.ones(4, 3, 2)
        >>> deconv_ext.conv_transpose1d(x, weight, stride=2).shape
        torch.Size([1, 3, 10])
    """
    if not torch.compiler.is_compiling():
        if _has_torch_function(input, weight, bias) and asks_subclass(input, weight, bias):
            with override():
                return _aten_conv_transpose1d(input, weight, bias, stride, padding, output_padding, groups, dilation)
        if torch.is_autocast_enabled("cuda") and kernels_serve(input) and is_plain(input, weight, bias):
            input, weight, bias = lowered_once("cuda", input, weight, bias)  # here, as no cast of a view is kept
    s, d = _row("stride", stride, 1), _row("dilation", dilation, 1)
    p, op = _row("padding", padding, 0), _row("output_padding", output_padding, 0)
    try:
        return conv_transpose2d(input.unsqueeze(-2), weight.unsqueeze(-2), bias, s, p, op, groups, d).squeeze(-2)
    except (RuntimeError, IndexError) as error:
        _refuse_shapes(input, weight)
        if not str(error).startswith("conv_transpose2d: "):
            raise
        raise RuntimeError(f"conv_transpose1d, run as one row: {error}") from None


OURS[_aten_conv_transpose1d] = conv_transpose1d
