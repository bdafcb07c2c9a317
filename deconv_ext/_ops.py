"""What the dispatcher needs beside the kernels: fake kernels, autograd, forward-mode AD, vmap, autocast, FLOP counts.

The three operators are the three partial maps of one trilinear form, so each one's derivatives are the other two:

    forward(input, weight)            grad_input(grad_output, weight)       grad_weight(input, grad_output)

That closes them under differentiation: double backward and every higher order need no further kernel.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.utils.flop_counter import register_flop_formula

_LIBRARY = Path(__file__).parent / "_C.abi3.so"
if not _LIBRARY.exists():
    raise ImportError(f"deconv_ext: {_LIBRARY.name} is not built; run `pip install .` in the source folder")
torch.ops.load_library(_LIBRARY)

Pair = int | Sequence[int]
KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_forward = torch.ops.deconv.conv_transpose2d.default
_grad_input = torch.ops.deconv.conv_transpose2d_grad_input.default
_grad_weight = torch.ops.deconv.conv_transpose2d_grad_weight.default

_implementations = torch.library.Library("deconv", "IMPL")  # keeps the registrations below alive


def pair(value: Pair) -> tuple[int, int]:
    """`value` for height and width: an integer or a list of one or two."""
    if isinstance(value, Sequence):
        return value[0], value[-1]
    return value, value


@functools.cache
def has_kernels(device_index: int) -> bool:
    """Whether this build has kernels for CUDA device `device_index`; without any CUDA device, for a GPU to come."""
    if torch.ops.deconv.build_info().startswith("no CUDA"):
        return False
    return not torch.cuda.is_available() or torch.ops.deconv.has_kernels(device_index)


def kernels_serve(operand: Tensor) -> bool:
    """Whether calls on `operand` run on this project's kernels; the others go to ATen."""
    if operand.device.type != "cuda" or operand.dtype not in KERNEL_DTYPES:
        return False
    return has_kernels(operand.device.index or 0)


def warn_if_nothing_to_serve() -> None:
    """Says once, at import, that every call will go to ATen, and why."""
    if torch.ops.deconv.build_info().startswith("no CUDA"):
        warnings.warn("deconv_ext was built without CUDA kernels; its calls go to ATen", stacklevel=3)
    elif not torch.cuda.is_available():
        warnings.warn("deconv_ext found no CUDA device; its calls go to ATen", stacklevel=3)


# --- fake kernels ---------------------------------------------------------------------------------------------------


def output_size(size: Any, kernel: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any) -> Any:
    """Extent of the output on one axis, as torch.nn.ConvTranspose2d documents it."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1


def _empty_like_torch(size: list[Any], operands: tuple[Tensor, Tensor], unbatched: bool) -> Tensor:
    """An empty result with the strides that torch's CUDA operator gives: channels_last if an operand is, never fp64."""
    first = operands[0]
    formats = [suggest_memory_format(t.unsqueeze(0) if t.dim() == 3 else t) for t in operands]
    channels_last = torch.channels_last in formats and first.dtype != torch.float64
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    result = torch.empty(size, dtype=first.dtype, device=first.device, memory_format=memory_format)
    return result.squeeze(0) if unbatched else result


@torch.library.register_fake("deconv::conv_transpose2d")
def _(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):  # type: ignore[no-untyped-def]
    args = [pair(value) for value in (stride, padding, output_padding, dilation)]
    if not kernels_serve(input):
        return torch.nn.functional.conv_transpose2d(input, weight, bias, args[0], args[1], args[2], groups, args[3])
    unbatched = input.dim() == 3
    extent = [output_size(input.shape[a - 2], weight.shape[a + 2], *(v[a] for v in args)) for a in (0, 1)]
    batch = 1 if unbatched else input.shape[0]
    return _empty_like_torch([batch, weight.shape[1] * groups, *extent], (input, weight), unbatched)


def _aten_backward(grad_output, input, weight, stride, padding, output_padding, groups, dilation, wanted):  # type: ignore[no-untyped-def]
    mask = [wanted == 0, wanted == 1, False]
    tensors = [t.unsqueeze(0) if t.dim() == 3 else t for t in (grad_output, input, weight)]
    args = (pair(stride), pair(padding), pair(dilation), True, pair(output_padding), groups, mask)
    return torch.ops.aten.convolution_backward(*tensors, None, *args)[wanted]


@torch.library.register_fake("deconv::conv_transpose2d_grad_input")
def _(grad_output, weight, input_size, stride=1, padding=0, output_padding=0, groups=1, dilation=1):  # type: ignore[no-untyped-def]
    unbatched = grad_output.dim() == 3
    size = [1 if unbatched else grad_output.shape[0], weight.shape[0], *pair(input_size)]
    input = _empty_like_torch(size, (grad_output, weight), unbatched)
    if kernels_serve(grad_output):
        return input
    result = _aten_backward(grad_output, input, weight, stride, padding, output_padding, groups, dilation, 0)
    return result.squeeze(0) if unbatched else result


@torch.library.register_fake("deconv::conv_transpose2d_grad_weight")
def _(input, grad_output, kernel_size, stride=1, padding=0, output_padding=0, groups=1, dilation=1):  # type: ignore[no-untyped-def]
    size = [input.shape[-3], grad_output.shape[-3] // groups, *pair(kernel_size)]
    weight = _empty_like_torch(size, (input, grad_output), False)
    if kernels_serve(input):
        return weight
    return _aten_backward(grad_output, input, weight, stride, padding, output_padding, groups, dilation, 1)


# --- autograd and forward-mode AD -----------------------------------------------------------------------------------


def _below_autograd(op: Any, *args: Any) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def _call(op: Any, *args: Any) -> Tensor:
    """An operator inside a backward: recorded only when the backward is itself differentiated."""
    return op(*args) if torch.is_grad_enabled() else _below_autograd(op, *args)


def _extent(tensor: Tensor) -> list[int]:
    return list(tensor.shape[-2:])


class _Bilinear(torch.autograd.Function):
    """Base of the three: `op(first, second, *rest)` is linear in each of its first two arguments."""

    generate_vmap_rule = True
    op: Any

    @staticmethod
    def jvp(ctx: Any, first_t: Tensor | None, second_t: Tensor | None, *rest_t: Any) -> Tensor | None:
        first, second = ctx.saved_tensors
        terms = []
        if first_t is not None:
            terms.append(ctx.op(first_t, second, *ctx.linear_args))
        if second_t is not None:
            terms.append(ctx.op(first, second_t, *ctx.linear_args))
        if ctx.op is _forward and rest_t[0] is not None:
            terms.append(rest_t[0].reshape(-1, 1, 1).expand_as(ctx.shape_of))
        return functools.reduce(torch.add, terms) if terms else None


def _save(ctx: Any, op: Any, first: Tensor, second: Tensor, linear_args: tuple[Any, ...], conv_args: Any) -> None:
    ctx.save_for_backward(first, second)
    ctx.save_for_forward(first, second)
    ctx.op, ctx.linear_args, ctx.conv_args = op, linear_args, conv_args


class _Forward(_Bilinear):
    @staticmethod
    def forward(input, weight, bias, *conv_args):  # type: ignore[no-untyped-def, override]
        return _below_autograd(_forward, input, weight, bias, *conv_args)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        input, weight, _, *conv_args = inputs
        _save(ctx, _forward, input, weight, (None, *conv_args), conv_args)
        ctx.shape_of = output.detach() if torch.autograd.forward_ad._current_level >= 0 else None

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_input = _call(_grad_input, grad, weight, _extent(input), *ctx.conv_args) if needs_input else None
        grad_weight = _call(_grad_weight, input, grad, _extent(weight), *ctx.conv_args) if needs_weight else None
        grad_bias = grad.sum((-1, -2) if grad.dim() == 3 else (0, 2, 3)) if needs_bias else None
        return grad_input, grad_weight, grad_bias, None, None, None, None, None


class _GradInput(_Bilinear):
    @staticmethod
    def forward(grad_output, weight, input_size, *conv_args):  # type: ignore[no-untyped-def, override]
        return _below_autograd(_grad_input, grad_output, weight, input_size, *conv_args)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        grad_output, weight, input_size, *conv_args = inputs
        _save(ctx, _grad_input, grad_output, weight, (input_size, *conv_args), conv_args)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        grad_output, weight = ctx.saved_tensors
        needs_output, needs_weight = ctx.needs_input_grad[:2]
        first = _call(_forward, grad, weight, None, *ctx.conv_args) if needs_output else None
        second = _call(_grad_weight, grad, grad_output, _extent(weight), *ctx.conv_args) if needs_weight else None
        return first, second, None, None, None, None, None, None


class _GradWeight(_Bilinear):
    @staticmethod
    def forward(input, grad_output, kernel_size, *conv_args):  # type: ignore[no-untyped-def, override]
        return _below_autograd(_grad_weight, input, grad_output, kernel_size, *conv_args)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        input, grad_output, kernel_size, *conv_args = inputs
        _save(ctx, _grad_weight, input, grad_output, (kernel_size, *conv_args), conv_args)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        input, grad_output = ctx.saved_tensors
        needs_input, needs_output = ctx.needs_input_grad[:2]
        first = _call(_grad_input, grad_output, grad, _extent(input), *ctx.conv_args) if needs_input else None
        second = _call(_forward, input, grad, None, *ctx.conv_args) if needs_output else None
        return first, second, None, None, None, None, None, None


def _apply(function: type[_Bilinear]) -> Callable[..., Tensor]:
    """`function.apply` without its argument binding (some 10 µs) when no functorch transform needs that."""
    plain = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def apply(*args: Any) -> Tensor:
        if torch._C._are_functorch_transforms_active():
            return function.apply(*args)
        return plain(*args)

    return apply


def _needs_autograd(*operands: Tensor | None) -> bool:
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)


_apply_forward, _apply_grad_input, _apply_grad_weight = map(_apply, (_Forward, _GradInput, _GradWeight))


def _autograd_forward(  # type: ignore[no-untyped-def]
    input, weight, bias=None, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)
):
    args = (input, weight, bias, stride, padding, output_padding, groups, dilation)
    if not _needs_autograd(input, weight, bias):
        return _below_autograd(_forward, *args)
    if input.is_complex():  # not holomorphic in one pass: ATen splits it into real convolutions
        return torch.nn.functional.conv_transpose2d(*args)
    return _apply_forward(*args)


def _autograd_gradient(op: Any, apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def kernel(  # type: ignore[no-untyped-def]
        first, second, extent, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)
    ):
        args = (first, second, extent, stride, padding, output_padding, groups, dilation)
        return apply(*args) if _needs_autograd(first, second) else _below_autograd(op, *args)

    return kernel


_implementations.impl("conv_transpose2d", _autograd_forward, "AutogradCUDA")
# Elsewhere eager calls take ATen's autograd (csrc/ops.cpp); tracing keeps the operator in the graph on every device.
_forward.py_impl(torch._C.DispatchKey.AutogradCPU)(_autograd_forward)
_implementations.impl("conv_transpose2d_grad_input", _autograd_gradient(_grad_input, _apply_grad_input), "Autograd")
_implementations.impl("conv_transpose2d_grad_weight", _autograd_gradient(_grad_weight, _apply_grad_weight), "Autograd")


# --- vmap -----------------------------------------------------------------------------------------------------------


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
def _(info, in_dims, input, weight, bias=None, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)):  # type: ignore[no-untyped-def]  # noqa: E501
    size = info.batch_size
    input_dim, weight_dim, bias_dim = (*in_dims, None)[:3]
    rest = (stride, padding, output_padding)
    if weight_dim is None and bias_dim is None:  # shared weights: the samples join the batch
        samples = input.movedim(input_dim, 0)
        result = _forward(_into_batch(samples), weight, bias, *rest, groups, dilation)
        return (result.unflatten(0, (size, -1)) if samples.dim() == 5 else result), 0
    if weight_dim is None:  # a bias a sample: the convolution is shared
        result, result_dim = input, input_dim
        result = _forward(_into_batch(_lead(input, input_dim, size)), weight, None, *rest, groups, dilation)
        result = result.unflatten(0, (size, -1)) if input.dim() - (input_dim is not None) == 4 else result
        biases = bias.movedim(bias_dim, 0)
        return result + biases.reshape(size, *[1] * (result.dim() - 4), -1, 1, 1), 0
    # weights a sample: the samples become groups
    samples = _into_channels(_lead(input, input_dim, size))
    weights = weight.movedim(weight_dim, 0).flatten(0, 1)
    biases = None if bias is None else _lead(bias, bias_dim, size).flatten()
    return _from_channels(_forward(samples, weights, biases, *rest, groups * size, dilation), size), 0


@torch.library.register_vmap("deconv::conv_transpose2d_grad_input")
def _(info, in_dims, grad_output, weight, input_size, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)):  # type: ignore[no-untyped-def]  # noqa: E501
    size = info.batch_size
    rest = (input_size, stride, padding, output_padding)
    if in_dims[1] is None:
        samples = grad_output.movedim(in_dims[0], 0)
        result = _grad_input(_into_batch(samples), weight, *rest, groups, dilation)
        return (result.unflatten(0, (size, -1)) if samples.dim() == 5 else result), 0
    samples = _into_channels(_lead(grad_output, in_dims[0], size))
    weights = weight.movedim(in_dims[1], 0).flatten(0, 1)
    return _from_channels(_grad_input(samples, weights, *rest, groups * size, dilation), size), 0


@torch.library.register_vmap("deconv::conv_transpose2d_grad_weight")
def _(info, in_dims, input, grad_output, kernel_size, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)):  # type: ignore[no-untyped-def]  # noqa: E501
    size = info.batch_size
    inputs = _into_channels(_lead(input, in_dims[0], size))
    grads = _into_channels(_lead(grad_output, in_dims[1], size))
    result = _grad_weight(inputs, grads, kernel_size, stride, padding, output_padding, groups * size, dilation)
    return result.unflatten(0, (size, -1)), 0


# --- autocast -------------------------------------------------------------------------------------------------------


def _register_autocast(device: str, key: str) -> None:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        lower = tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if lower and tensor is not None and tensor.device.type == device else tensor

    def kernel(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return _forward(cast(input, dtype), cast(weight, dtype), cast(bias, dtype), *args)

    _implementations.impl("conv_transpose2d", kernel, key)


_register_autocast("cuda", "AutocastCUDA")
_register_autocast("cpu", "AutocastCPU")


# --- FLOP counts ----------------------------------------------------------------------------------------------------


def _flops(input_shape: Any, weight_shape: Any) -> int:
    """Multiplications and additions: every input pixel meets every tap and output channel of its group once."""
    count = 2
    for extent in (*input_shape, *weight_shape[1:]):
        count *= extent
    return count


@register_flop_formula(torch.ops.deconv.conv_transpose2d)
def _(input_shape, weight_shape, *args, out_shape=None, **kwargs):  # type: ignore[no-untyped-def]
    return _flops(input_shape, weight_shape)


@register_flop_formula(torch.ops.deconv.conv_transpose2d_grad_input)
def _(grad_shape, weight_shape, *args, out_shape=None, **kwargs):  # type: ignore[no-untyped-def]
    return _flops(out_shape, weight_shape)


@register_flop_formula(torch.ops.deconv.conv_transpose2d_grad_weight)
def _(input_shape, grad_shape, *args, out_shape=None, **kwargs):  # type: ignore[no-untyped-def]
    return _flops(input_shape, out_shape)
