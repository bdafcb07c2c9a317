"""What tracing needs to know: fake kernels with the real strides, FLOP counts, and that any layout will do."""

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.utils.flop_counter import register_flop_formula

from deconv_ext._arguments import Pair, pair
from deconv_ext._eager import aten_conv_transpose2d
from deconv_ext._ops import backward, forward, grad_input, grad_weight, kernels_serve, output_size


def axes(name: str, value: Pair) -> tuple[Any, Any]:
    """An argument for height and width.

    Raises:
        ValueError: it is neither an integer nor a sequence of one or two.
    """
    both = pair(value)
    if both is None:
        raise ValueError(
            f"conv_transpose2d: {name} must be one integer or a list of 1 or 2, (height, width), but got {value}"
        )
    return both


def empty_like_torch(
    size: list[Any], operands: tuple[Tensor, Tensor], unbatched: bool, stride: Pair, output_padding: Pair
) -> Tensor:
    """An empty result with the strides that torch's CUDA operator gives: `choose_layout` of csrc/core/problem.cpp."""
    first = operands[0]
    formats = [suggest_memory_format(t.unsqueeze(0) if t.dim() == 3 else t) for t in operands]
    channels_last = torch.channels_last in formats and first.dtype != torch.float64
    if channels_last:  # only here: a comparison of symbolic sizes limits what is traced to its outcome
        pairs = zip(axes("output_padding", output_padding), axes("stride", stride), strict=True)
        channels_last = not any(op >= s for op, s in pairs)  # where cuDNN refuses
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    result = torch.empty(size, dtype=first.dtype, device=first.device, memory_format=memory_format)
    return result.squeeze(0) if unbatched else result


@torch.library.register_fake("deconv::conv_transpose2d")
def _(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    given = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    args = [axes(name, value) for name, value in given.items()]
    if not kernels_serve(input):
        return aten_conv_transpose2d(input, weight, bias, *args[:3], groups, args[3])
    unbatched = input.dim() == 3
    extent = [output_size(input.shape[a - 2], weight.shape[a + 2], *(v[a] for v in args)) for a in (0, 1)]
    batch = 1 if unbatched else input.shape[0]
    return empty_like_torch(
        [batch, weight.shape[1] * groups, *extent], (input, weight), unbatched, stride, output_padding
    )


def _aten_backward(grad_output, input, weight, stride, padding, output_padding, groups, dilation, wanted):
    mask = [wanted == 0, wanted == 1, False]
    tensors = [t.unsqueeze(0) if t.dim() == 3 else t for t in (grad_output, input, weight)]
    pairs = (axes("stride", stride), axes("padding", padding), axes("dilation", dilation))
    args = (*pairs, True, axes("output_padding", output_padding), groups, mask)
    return torch.ops.aten.convolution_backward(*tensors, None, *args)[wanted]


@torch.library.register_fake("deconv::conv_transpose2d_grad_input")
def _(grad_output, weight, input_size, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    unbatched = grad_output.dim() == 3
    size = [1 if unbatched else grad_output.shape[0], weight.shape[0], *axes("input_size", input_size)]
    input = empty_like_torch(size, (grad_output, weight), unbatched, stride, output_padding)
    if kernels_serve(grad_output):
        return input
    result = _aten_backward(grad_output, input, weight, stride, padding, output_padding, groups, dilation, 0)
    return result.squeeze(0) if unbatched else result


@torch.library.register_fake("deconv::conv_transpose2d_grad_weight")
def _(input, grad_output, kernel_size, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    size = [input.shape[-3], grad_output.shape[-3] // groups, *axes("kernel_size", kernel_size)]
    weight = empty_like_torch(size, (input, grad_output), False, stride, output_padding)
    if kernels_serve(input):
        return weight
    return _aten_backward(grad_output, input, weight, stride, padding, output_padding, groups, dilation, 1)


@torch.library.register_fake("deconv::conv_transpose2d_backward")
def _(grad_output, input, weight, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    conv_args = (stride, padding, output_padding, groups, dilation)
    return (
        grad_input(grad_output, weight, input.shape[-2:], *conv_args),
        grad_weight(input, grad_output, weight.shape[-2:], *conv_args),
    )


# The results' strides follow from the operands' here too, so a compiler may keep the layout that it prefers. Without
# the tag it copies every operand back to the traced strides where its own convolutions run in channels_last.
for _operator in (forward, grad_input, grad_weight, backward):
    _operator.tags.append(torch.Tag.flexible_layout)  # the stable ABI of torch 2.10 defines operators without tags


def _flops(input_shape: Any, weight_shape: Any) -> int:
    """Multiplications and additions: every input pixel meets every tap and output channel of its group once."""
    count = 2
    for extent in (*input_shape, *weight_shape[1:]):
        count *= extent
    return count


@register_flop_formula(torch.ops.deconv.conv_transpose2d)
def _(input_shape, weight_shape, *args, out_shape=None, **kwargs):
    return _flops(input_shape, weight_shape)


@register_flop_formula(torch.ops.deconv.conv_transpose2d_grad_input)
def _(grad_shape, weight_shape, *args, out_shape=None, **kwargs):
    return _flops(out_shape, weight_shape)


@register_flop_formula(torch.ops.deconv.conv_transpose2d_grad_weight)
def _(input_shape, grad_shape, *args, out_shape=None, **kwargs):
    return _flops(input_shape, out_shape)


@register_flop_formula(torch.ops.deconv.conv_transpose2d_backward)
def _(grad_shape, input_shape, weight_shape, *args, out_shape=None, **kwargs):
    return 2 * _flops(input_shape, weight_shape)
