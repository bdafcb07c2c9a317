"""The operator as a function, and what it says about itself."""

import platform

import torch
from torch import Tensor

from deconv_ext._autograd import forward_of_plain, is_plain, plain_pair
from deconv_ext._distributed import register_if_loaded
from deconv_ext._fake import empty_like_torch
from deconv_ext._ops import Pair, has_kernels, output_size, pair, tf32_allowed

_is_torch_function_mode_enabled = torch._C._is_torch_function_mode_enabled
_conv_transpose2d = torch.ops.deconv.conv_transpose2d.default


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
    dispatches = torch.compiler.is_compiling() or torch.is_inference_mode_enabled()  # is_plain would say so, later
    if not dispatches and not _is_torch_function_mode_enabled() and is_plain(input, weight, bias):
        s, p, op, d = plain_pair(stride), plain_pair(padding), plain_pair(output_padding), plain_pair(dilation)
        if s and p and op and d and type(groups) is int:
            return forward_of_plain(input, weight, bias, s, p, op, groups, d)
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        register_if_loaded()  # the autograd kernels do it elsewhere
    return _conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)


def _as_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def explain(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
    direction: str = "forward",
) -> str:
    """The plan that a call with these arguments would use, and what else was considered; nothing runs.

    The tensors may live on the ``meta`` device, which asks for the plan of GPU 0 (or of an H200 without one).

    Args:
        input, weight, bias, stride, padding, output_padding, groups, dilation: as :func:`conv_transpose2d`.
        direction: "forward" (the default), "grad_input" or "grad_weight"; the gradients take the strides that forward
            gives.

    Returns:
        Lines of text that name the call, its result, the device, the plan with its estimated time (ms), the launch, the
        workspace (bytes) and the quickest candidates of each family; or why the call goes to ATen. Made for reading; it
        changes with versions.

    Raises:
        RuntimeError: as :func:`conv_transpose2d`.
        ValueError: an unknown direction.

    Example:
        >>> x, weight = torch.empty(1, 4, 5, 5, device="meta"), torch.empty(4, 3, 2, 2, device="meta")
        >>> print(deconv_ext.explain(x, weight, stride=2).splitlines()[1].strip())
        result: contiguous; 2.4e-06 GFLOP dense, 1.792e-06 GB read and written once
    """
    args = (stride, padding, output_padding, groups, dilation)
    forward = torch.ops.deconv.explain(input, weight, bias, *args)
    if direction == "forward":
        return forward
    if direction not in ("grad_input", "grad_weight"):
        raise ValueError(f"direction must be 'forward', 'grad_input' or 'grad_weight', but got {direction!r}")
    on_gpu = input.device.type == "meta" or (input.device.type == "cuda" and has_kernels(input.device.index or 0))
    axes = [pair(value) for value in (stride, padding, output_padding, dilation)]
    extent = [output_size(input.shape[a - 2], weight.shape[a + 2], *(v[a] for v in axes)) for a in (0, 1)]
    size = [*input.shape[:-3], weight.shape[1] * groups, *extent]
    if on_gpu:
        input, weight = _as_meta(input), _as_meta(weight)
        unbatched = input.dim() == 3
        batched = [1, *size] if unbatched else size
        grad_output = empty_like_torch(batched, (input, weight), unbatched, stride, output_padding)
    else:  # goes to ATen: only sizes matter
        grad_output = input.new_empty(()).expand(size)
    if direction == "grad_input":
        return torch.ops.deconv.explain(grad_output, weight, None, *args, direction, list(input.shape[-2:]))
    return torch.ops.deconv.explain(input, grad_output, None, *args, direction, list(weight.shape[-2:]))


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
