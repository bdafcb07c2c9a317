"""Eager calls that nothing watches, without the dispatcher's ways to Python.

Each of those costs the host some microseconds, a call under autocast takes two.
"""

from typing import Any

import torch
import torch.autograd.forward_ad as _forward_ad
import torch.autograd.profiler as _profiler
from torch import Tensor

from deconv_ext._arguments import Pair, integer, pair, replace_entry
from deconv_ext._autocast import is_autocast, lowered_once
from deconv_ext._distributed import register_if_loaded
from deconv_ext._ops import dispatch_forward, kernels_serve, keys, warn_unserved

aten_conv_transpose2d: Any = torch.conv_transpose2d  # users replace the names that they know it by
_overrideable = torch.ops.aten.convolution_overrideable.default._op
_unrecorded = torch.ops.deconv._forward.default._op
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
# Included in every call outside inference mode, and inside.
_EAGER_KEYS = (keys("BackendSelect") | keys("ADInplaceOrView")).raw_repr(), keys("BackendSelect").raw_repr()
_NINE_INTEGERS = [int] * 9
_included_keys = torch._C._dispatch_tls_local_include_set
_is_torch_function_mode_enabled = torch._C._is_torch_function_mode_enabled
_named = torch._C._profiler._RecordFunctionFast


def pack(stride: Any, padding: Any, output_padding: Any, groups: Any, dilation: Any) -> tuple[int, ...] | None:
    """The arguments as `plain_forward` takes them; None unless they are pairs of plain integers, and one of them."""
    try:
        packed = (*stride, *padding, *output_padding, *dilation, groups)
    except TypeError:
        return None
    return packed if [*map(type, packed)] == _NINE_INTEGERS else None


def needs_autograd(first: Tensor, second: Tensor, third: Tensor | None = None) -> bool:
    """True if a call on these operands is recorded or carries tangents."""
    if _forward_ad._current_level >= 0:
        return True
    recorded = first.requires_grad or second.requires_grad or (third is not None and third.requires_grad)
    return recorded and torch.is_grad_enabled()


def is_plain(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if nothing below torch functions watches an eager call, and it may be recorded.

    Plain tensors, no forward-mode AD, and no dispatch mode, transform or trace: each of these includes a dispatch key
    of its own in every call.
    """
    return (
        type(input) in _PLAIN_TYPES
        and type(weight) in _PLAIN_TYPES
        and (bias is None or type(bias) in _PLAIN_TYPES)
        and _included_keys().raw_repr() in _EAGER_KEYS
        and _forward_ad._current_level < 0
    )


def _borrow_node(input: Tensor, weight: Tensor, bias: Tensor | None, packed: tuple[int, ...]) -> Any:
    """The forward recorded by ATen's own node, csrc/torch/autograd.cpp behind it: no Python in the backward."""
    args = (packed[:2], packed[2:4], packed[6:8], True, packed[4:6], packed[8])
    if input.dim() == 3:
        return _overrideable(input.unsqueeze(0), weight, bias, *args).squeeze(0)
    return _overrideable(input, weight, bias, *args)


def plain_forward(input: Tensor, weight: Tensor, bias: Tensor | None, packed: tuple[int, ...]) -> Tensor:
    """The operator below autocast, where `is_plain` says so; the other arguments as `pack` gives them."""
    try:
        if not kernels_serve(input):
            warn_unserved(input)
            return aten_conv_transpose2d(input, weight, bias, *_unpack(packed))
        if needs_autograd(input, weight, bias):
            return _borrow_node(input, weight, bias, packed)
        return _unrecorded(input, weight, bias, packed)
    except Exception:
        torch.ops.deconv.explain(input, weight, bias, *_unpack(packed))  # raises if an argument is to blame
        raise


def _unpack(packed: tuple[int, ...]) -> Any:
    return packed[:2], packed[2:4], packed[4:6], packed[8], packed[6:8]


def _plain_call(input: Tensor, weight: Tensor, bias: Tensor | None, packed: tuple[int, ...]) -> Tensor:
    device = "cuda" if input.is_cuda else input.device.type
    if is_autocast(device):
        input, weight, bias = lowered_once(device, input, weight, bias)
    return plain_forward(input, weight, bias, packed)


def call(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """``torch.ops.deconv.conv_transpose2d``: straight on where nothing watches, else through the dispatcher."""
    packed = pack(stride, padding, output_padding, groups, dilation)
    if packed is None:
        stride, padding, output_padding, dilation = (
            pair(value) or value for value in (stride, padding, output_padding, dilation)
        )
        groups = integer(groups)
        packed = pack(stride, padding, output_padding, groups, dilation)
    if packed and not _is_torch_function_mode_enabled() and is_plain(input, weight, bias):
        if not _profiler._is_profiler_enabled:
            return _plain_call(input, weight, bias, packed)
        with _named("deconv::conv_transpose2d", (input, weight, bias)):
            return _plain_call(input, weight, bias, packed)
    register_if_loaded()  # before the dispatcher: in inference mode it passes no autograd kernel
    return dispatch_forward(input, weight, bias, stride, padding, output_padding, groups, dilation)


replace_entry(torch.ops.deconv.conv_transpose2d, call)
