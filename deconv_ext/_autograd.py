"""Autograd and forward-mode AD.

The three operators are the three partial maps of one trilinear form, so each one's derivatives are the other two:

    forward(input, weight)            grad_input(grad_output, weight)       grad_weight(input, grad_output)

That closes them under differentiation: double backward and every higher order need no further kernel. Eager training
on plain tensors borrows ATen's nodes (`_eager.py`); everything else goes through the Functions below.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as _forward_ad
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from deconv_ext._distributed import register_if_loaded
from deconv_ext._eager import aten_conv_transpose2d, is_plain, needs_autograd, pack, plain_forward
from deconv_ext._ops import backward as _both_gradients
from deconv_ext._ops import forward as _forward
from deconv_ext._ops import grad_input as _grad_input
from deconv_ext._ops import grad_weight as _grad_weight
from deconv_ext._ops import implementations, warn_unserved

_below_autograd = torch._C._AutoDispatchBelowAutograd


def _record_below(op: Any, *args: Any) -> Tensor:
    """The operator inside a Function's forward, where grad mode is off: on again for torch.func's outer transforms."""
    if torch._C._are_functorch_transforms_active():
        with torch.enable_grad(), _forward_ad._set_fwd_grad_enabled(True), _below_autograd():
            return op(*args)
    with _below_autograd():
        return op(*args)


def _differentiated() -> bool:
    """Whether a backward that runs now is itself recorded or carries tangents."""
    return torch.is_grad_enabled() or _forward_ad._current_level >= 0


def _save(ctx: Any, first: Tensor, second: Tensor, linear_args: tuple[Any, ...]) -> None:
    """What the derivatives read; `linear_args` follow the two operands in a call without bias."""
    ctx.save_for_backward(first, second)
    ctx.save_for_forward(first, second)
    ctx.linear_args = linear_args


def _tangent(ctx: Any, op: Any, first_t: Tensor | None, second_t: Tensor | None) -> Tensor | None:
    """The product rule for an operator that is linear in each of its two operands."""
    first, second = ctx.saved_tensors
    terms = []
    if first_t is not None:
        terms.append(op(first_t, second, *ctx.linear_args))
    if second_t is not None:
        terms.append(op(first, second_t, *ctx.linear_args))
    return functools.reduce(torch.add, terms) if terms else None


def _backward(ctx: Any, gradients: Callable[..., Any], grad: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # a checkpoint computes them again here, and records that: not below autograd
    if _differentiated():
        return (*gradients(ctx, grad, *saved), None, None, None, None, None, None)[:8]
    with _below_autograd():
        return (*gradients(ctx, grad, *saved), None, None, None, None, None, None)[:8]


class _Forward(_SingleLevelFunction):
    @staticmethod
    def forward(input, weight, bias, *conv_args):
        return _record_below(_forward, input, weight, bias, *conv_args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        input, weight, _bias, *conv_args = inputs
        _save(ctx, input, weight, (None, *conv_args))

    @staticmethod
    def gradients(ctx, grad, input, weight):
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        conv_args = ctx.linear_args[1:]
        by_bias = grad.sum((-1, -2) if grad.dim() == 3 else (0, 2, 3)) if needs_bias else None
        if needs_input and needs_weight:  # one node of a traced graph, as of torch's own convolutions
            return (*_both_gradients(grad, input, weight, *conv_args), by_bias)
        return (
            _grad_input(grad, weight, input.shape[-2:], *conv_args) if needs_input else None,
            _grad_weight(input, grad, weight.shape[-2:], *conv_args) if needs_weight else None,
            by_bias,
        )

    @staticmethod
    def backward(ctx, grad):
        return _backward(ctx, _Forward.gradients, grad)

    @staticmethod
    def jvp(ctx, input_t, weight_t, bias_t, *_):
        tangent = _tangent(ctx, _forward, input_t, weight_t)
        if bias_t is None:
            return tangent
        if tangent is None:
            input, weight = ctx.saved_tensors
            tangent = torch.zeros_like(_forward(input, weight, *ctx.linear_args))
        return tangent + bias_t.reshape(-1, 1, 1)


class _GradInput(_SingleLevelFunction):
    @staticmethod
    def forward(grad_output, weight, input_size, *conv_args):
        return _record_below(_grad_input, grad_output, weight, input_size, *conv_args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        grad_output, weight, input_size, *conv_args = inputs
        _save(ctx, grad_output, weight, (input_size, *conv_args))

    @staticmethod
    def gradients(ctx, grad, grad_output, weight):
        needs_output, needs_weight = ctx.needs_input_grad[:2]
        conv_args = ctx.linear_args[1:]
        return (
            _forward(grad, weight, None, *conv_args) if needs_output else None,
            _grad_weight(grad, grad_output, weight.shape[-2:], *conv_args) if needs_weight else None,
        )

    @staticmethod
    def backward(ctx, grad):
        return _backward(ctx, _GradInput.gradients, grad)

    @staticmethod
    def jvp(ctx, grad_output_t, weight_t, *_):
        return _tangent(ctx, _grad_input, grad_output_t, weight_t)


class _GradWeight(_SingleLevelFunction):
    @staticmethod
    def forward(input, grad_output, kernel_size, *conv_args):
        return _record_below(_grad_weight, input, grad_output, kernel_size, *conv_args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        input, grad_output, kernel_size, *conv_args = inputs
        _save(ctx, input, grad_output, (kernel_size, *conv_args))

    @staticmethod
    def gradients(ctx, grad, input, grad_output):
        needs_input, needs_output = ctx.needs_input_grad[:2]
        conv_args = ctx.linear_args[1:]
        return (
            _grad_input(grad_output, grad, input.shape[-2:], *conv_args) if needs_input else None,
            _forward(input, grad, None, *conv_args) if needs_output else None,
        )

    @staticmethod
    def backward(ctx, grad):
        return _backward(ctx, _GradWeight.gradients, grad)

    @staticmethod
    def jvp(ctx, input_t, grad_output_t, *_):
        return _tangent(ctx, _grad_weight, input_t, grad_output_t)


def _apply(function: type[_SingleLevelFunction]) -> Callable[..., Tensor]:
    """`function.apply`, also inside one level of torch.func's transforms.

    The dispatcher comes here once for each level of torch.func.grad or jvp, with that level's tensors, so each time one
    level is recorded; the levels below see the operators that `forward` calls.
    """

    def apply(*args: Any) -> Tensor:
        with enable_single_level_autograd_function():
            return function.apply(*args)  # type: ignore[attr-defined]

    return apply


_apply_forward, _apply_grad_input, _apply_grad_weight = map(_apply, (_Forward, _GradInput, _GradWeight))


def _recorded_forward(
    input, weight, bias=None, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)
):
    args = (input, weight, bias, stride, padding, output_padding, groups, dilation)
    packed = pack(stride, padding, output_padding, groups, dilation)
    if packed and is_plain(input, weight, bias):
        return plain_forward(input, weight, bias, packed)
    register_if_loaded()
    if input.is_complex():  # takes several real nodes of ATen's
        warn_unserved(input)
        return aten_conv_transpose2d(*args)
    if needs_autograd(input, weight, bias):
        return _apply_forward(*args)
    with _below_autograd():
        return _forward(*args)


def _recorded_gradient(op: Any, apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def kernel(first, second, extent, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), groups=1, dilation=(1, 1)):
        register_if_loaded()
        if needs_autograd(first, second):
            return apply(first, second, extent, stride, padding, output_padding, groups, dilation)
        with _below_autograd():
            return op(first, second, extent, stride, padding, output_padding, groups, dilation)

    return kernel


def _recorded_backward(grad_output, input, weight, *conv_args):
    register_if_loaded()
    if not needs_autograd(grad_output, input, weight):
        with _below_autograd():
            return _both_gradients(grad_output, input, weight, *conv_args)
    by_input = _grad_input(grad_output, weight, input.shape[-2:], *conv_args)
    by_weight = _grad_weight(input, grad_output, weight.shape[-2:], *conv_args)
    if by_input.shape != input.shape or by_weight.shape != weight.shape:
        torch.ops.deconv.explain(input, weight, None, *conv_args)  # raises: they do not belong together
    return by_input, by_weight


implementations.impl("conv_transpose2d", _recorded_forward, "Autograd")
for _name in ("_is_plain", "_forward"):
    implementations.impl(_name, torch.library.fallthrough_kernel, "Autograd")
implementations.impl("conv_transpose2d_grad_input", _recorded_gradient(_grad_input, _apply_grad_input), "Autograd")
implementations.impl("conv_transpose2d_grad_weight", _recorded_gradient(_grad_weight, _apply_grad_weight), "Autograd")
implementations.impl("conv_transpose2d_backward", _recorded_backward, "Autograd")
