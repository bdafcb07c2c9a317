"""Batching rules: samples under shared weights join the batch, samples with weights of their own become groups."""

import torch
from torch import Tensor

from deconv_ext._ops import forward as _forward
from deconv_ext._ops import grad_input as _grad_input
from deconv_ext._ops import grad_weight as _grad_weight


def _lead(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """`tensor` with its vmapped dimension first, expanded where it has none."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _into_batch(tensor: Tensor) -> Tensor:
    """(vmap, batch, ...) or (vmap, channels, height, width) to one batch dimension."""
    return tensor.flatten(0, 1) if tensor.dim() == 5 else tensor


def _into_channels(tensor: Tensor) -> Tensor:
    """(vmap, [batch,] channels, ...) to ([batch,] vmap * channels, ...)."""
    return tensor.movedim(0, -4).flatten(-4, -3)


def _from_channels(tensor: Tensor, size: int) -> Tensor:
    """The inverse of `_into_channels`, the vmapped dimension first."""
    return tensor.unflatten(-3, (size, -1)).movedim(-4, 0)


@torch.library.register_vmap("deconv::conv_transpose2d")
def _(
    info,
    in_dims,
    input,
    weight,
    bias=None,
    stride=(1, 1),
    padding=(0, 0),
    output_padding=(0, 0),
    groups=1,
    dilation=(1, 1),
):
    size = info.batch_size
    input_dim, weight_dim, bias_dim = (*in_dims, None)[:3]
    rest = (stride, padding, output_padding)
    if weight_dim is None and bias_dim is None:  # shared weights: the samples join the batch
        samples = input.movedim(input_dim, 0)
        result = _forward(_into_batch(samples), weight, bias, *rest, groups, dilation)
        return (result.unflatten(0, (size, -1)) if samples.dim() == 5 else result), 0
    if weight_dim is None:  # a bias a sample: the convolution is shared
        result = _forward(_into_batch(_lead(input, input_dim, size)), weight, None, *rest, groups, dilation)
        result = result.unflatten(0, (size, -1)) if input.dim() - (input_dim is not None) == 4 else result
        biases = bias.movedim(bias_dim, 0)
        return result + biases.reshape(size, *[1] * (result.dim() - 4), -1, 1, 1), 0
    # weights a sample: the samples become groups
    samples = _into_channels(_lead(input, input_dim, size))
    weights = weight.movedim(weight_dim, 0).flatten(0, 1)
    biases = None if bias is None else _lead(bias, bias_dim, size).flatten()
    return _from_channels(_forward(samples, weights, biases, *rest, groups * size, dilation), size), 0


def _batched_grad_input(
    info,
    in_dims,
    grad_output,
    weight,
    input_size,
    stride=(1, 1),
    padding=(0, 0),
    output_padding=(0, 0),
    groups=1,
    dilation=(1, 1),
):
    size = info.batch_size
    rest = (input_size, stride, padding, output_padding)
    if in_dims[1] is None:
        samples = grad_output.movedim(in_dims[0], 0)
        result = _grad_input(_into_batch(samples), weight, *rest, groups, dilation)
        return (result.unflatten(0, (size, -1)) if samples.dim() == 5 else result), 0
    samples = _into_channels(_lead(grad_output, in_dims[0], size))
    weights = weight.movedim(in_dims[1], 0).flatten(0, 1)
    return _from_channels(_grad_input(samples, weights, *rest, groups * size, dilation), size), 0


def _batched_grad_weight(
    info,
    in_dims,
    input,
    grad_output,
    kernel_size,
    stride=(1, 1),
    padding=(0, 0),
    output_padding=(0, 0),
    groups=1,
    dilation=(1, 1),
):
    size = info.batch_size
    inputs = _into_channels(_lead(input, in_dims[0], size))
    grads = _into_channels(_lead(grad_output, in_dims[1], size))
    result = _grad_weight(inputs, grads, kernel_size, stride, padding, output_padding, groups * size, dilation)
    return result.unflatten(0, (size, -1)), 0


# Not as decorators: those leave nothing under the functions' names.
torch.library.register_vmap("deconv::conv_transpose2d_grad_input", _batched_grad_input)
torch.library.register_vmap("deconv::conv_transpose2d_grad_weight", _batched_grad_weight)


@torch.library.register_vmap("deconv::conv_transpose2d_backward")
def _(info, in_dims, grad_output, input, weight, *conv_args):
    tensors = zip((grad_output, input, weight), in_dims, strict=False)
    grad_output, input, weight = (tensor if dim is None else tensor.movedim(dim, 0) for tensor, dim in tensors)
    grad_dim, input_dim, weight_dim = (None if dim is None else 0 for dim in in_dims[:3])
    results = []
    for rule, op, first, second, extent, dims in (
        (_batched_grad_input, _grad_input, grad_output, weight, input.shape[-2:], (grad_dim, weight_dim)),
        (_batched_grad_weight, _grad_weight, input, grad_output, weight.shape[-2:], (input_dim, grad_dim)),
    ):
        args = (first, second, extent, *conv_args)
        results.append((op(*args), None) if dims == (None, None) else rule(info, dims, *args))
    return tuple(zip(*results, strict=True))
