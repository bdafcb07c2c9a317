"""The operator as a function, and what this installation is."""

import platform

import torch
from torch import Tensor

from deconv_ext._arguments import Pair, pair
from deconv_ext._eager import aten_conv_transpose2d, call
from deconv_ext._ops import forward as _operator
from deconv_ext._ops import has_kernels, tf32_allowed
from deconv_ext.override import OURS, asks_subclass, override

_has_torch_function = torch._C._has_torch_function_variadic


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """Transposed 2D convolution; the signature and the values of :func:`torch.nn.functional.conv_transpose2d`.

    Args:
        input: (batch, in_channels, height, width) or (in_channels, height, width), any strides; floating or complex.
        weight: (in_channels, out_channels / groups, kernel height, kernel width), of input's dtype and device.
        bias: (out_channels), added in the same pass, or None (the default); of input's dtype and device.
        stride, dilation: an integer or a pair (height, width), at least 1; default 1.
        padding: pixels cropped from each side, an integer or a pair, at least 0; default 0.
        output_padding: rows and columns more at the bottom and the right, an integer or a pair, at least 0 and below
            stride or dilation; default 0.
        groups: divides in_channels and out_channels; default 1.

    Returns:
        (batch, out_channels, out height, out width), without the batch dimension for a 3-D input, where on each axis
        ``out = (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1``; channels_last if
        input or weight is (never for float64), as torch's CUDA operator gives it.

    Raises:
        RuntimeError: an argument is out of range; the text names it, its value and the valid range. Nothing was
            launched.

    Differentiable any number of times, in both modes. float16 and bfloat16 accumulate in float32 and round once;
    two runs give the same bits. float32 is computed in float32 or as three TF32 products of nearly its accuracy, unless
    torch's switch for convolutions allows TF32 (``torch.backends.cudnn.allow_tf32``, by default it does) and a family
    on tensor cores serves a large call.

    Example:
        >>> x, weight = torch.ones(1, 4, 5, 5), torch.ones(4, 3, 2, 2)
        >>> deconv_ext.conv_transpose2d(x, weight, stride=2).shape
        torch.Size([1, 3, 10, 10])
    """
    if torch.compiler.is_compiling():
        s, p, op, d = pair(stride), pair(padding), pair(output_padding), pair(dilation)
        return _operator(input, weight, bias, s or stride, p or padding, op or output_padding, groups, d or dilation)
    if _has_torch_function(input, weight, bias) and asks_subclass(input, weight, bias):
        with override():
            return aten_conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return call(input, weight, bias, stride, padding, output_padding, groups, dilation)


OURS[aten_conv_transpose2d] = conv_transpose2d


def show_config() -> str:
    """Versions, build, devices and which of them the kernels serve, torch's switch for TF32; one line each."""
    from deconv_ext import __version__

    lines = [
        f"deconv_ext {__version__}: {torch.ops.deconv.build_info()}",
        f"python {platform.python_version()}, torch {torch.__version__} (CUDA {torch.version.cuda or 'none'}, "
        f"cuDNN {torch.backends.cudnn.version() or 'none'})",
    ]
    if not torch.cuda.is_available():
        lines.append("no CUDA device: every call goes to ATen")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        served = "kernels" if has_kernels(index) else "ATen (no kernels for it in this build)"
        lines.append(f"cuda:{index} {properties.name} (sm_{properties.major}{properties.minor}): {served}")
    lines.append("cpu, complex and other element types: ATen")
    allows = "allows" if tf32_allowed() else "forbids"
    lines.append(f"float32: torch's switch for convolutions {allows} TF32; explain says what a call makes of it")
    return "\n".join(lines)
