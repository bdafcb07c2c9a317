"""Autocast: operands in the region's dtype, and weights that are cast once a region.

torch's own operators keep the casts of a region's weights in a cache of torch's, which Python can neither read nor
fill. So a region's casts are kept here, and die with that cache: their only owner is a graph node of a cast that torch
itself keeps there.
"""

import functools
import weakref
from typing import Any

import torch
from torch import Tensor

from deconv_ext._ops import forward, implementations, keys

_AUTOCAST_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}


def is_autocast(device: str) -> bool:
    """Whether a region of autocast is open for this type of device, of those that the operators cast on."""
    return device in _AUTOCAST_KEYS and torch.is_autocast_enabled(device)


def lowered(device: str, operands: tuple[Tensor | None, ...]) -> list[Any]:
    """The operands as autocast wants them: those in single or half precision on the device in the lower one."""
    dtype = torch.get_autocast_dtype(device)
    return [None if tensor is None else _lower(tensor, dtype, device) for tensor in operands]


def _lower(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    casts = tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == device
    return tensor.to(dtype) if casts else tensor


class _Region:
    """The casts made in one outermost autocast region, by the identity of the tensor that was cast."""

    __slots__ = ("__weakref__", "casts")

    def __init__(self) -> None:
        self.casts: dict[int, tuple[weakref.ref[Tensor], int, int, Tensor]] = {}

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """`tensor` in `dtype`; cast again if it was written to, replaced, or is recorded where it was not."""
        key = id(tensor)
        kept = self.casts.get(key)
        version, address = tensor._version, tensor.data_ptr()
        if kept is not None and kept[0]() is tensor and kept[1] == version and kept[2] == address:
            cast = kept[3]
            if cast.dtype is dtype and cast.requires_grad == torch.is_grad_enabled():
                return cast
        cast = tensor.to(dtype)
        self.casts[key] = weakref.ref(tensor, functools.partial(_forget, weakref.ref(self), key)), version, address, cast
        return cast


def _forget(region: weakref.ref[_Region], key: int, dead: Any) -> None:
    alive = region()
    if alive is not None:
        alive.casts.pop(key, None)


def _no_region() -> None:
    return None


_current: Any = _no_region  # a weak reference


def _region(device: str, dtype: torch.dtype) -> _Region | None:
    """The region that is open, None if torch keeps no casts in it."""
    global _current
    region = _current()
    if region is None and torch.is_autocast_cache_enabled():
        recorded = torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)
        try:
            # torch casts the first operand and keeps it. Nothing is launched for no element, or saved for a backward.
            node = torch.addmm(*_nothing(device, dtype)).grad_fn
        finally:
            torch._C._set_grad_enabled(recorded)
        cast = node.next_functions[0][0]
        if type(cast).__name__ == "ToCopyBackward0":  # else torch cast nothing
            region = cast.metadata[_Region] = _Region()
            _current = weakref.ref(region)
    return region


@functools.cache
def _nothing(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    first = torch.empty(0, 0, device=device, requires_grad=True)
    return first, first.detach().to(dtype), first.detach().to(dtype)


def lowered_once(device: str, input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any, Any]:
    """`lowered`, for eager calls that nothing watches: trained parameters are cast once a region, as torch does it."""
    dtype = torch.get_autocast_dtype(device)
    if input.dtype is not dtype:
        input = _lower(input, dtype, device)
    if weight.dtype is not dtype:
        weight = _lower_parameter(weight, dtype, device)
    if bias is not None and bias.dtype is not dtype:
        bias = _lower_parameter(bias, dtype, device)
    return input, weight, bias


def _lower_parameter(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    if _is_kept(tensor) and tensor.device.type == device and not _captures(device):
        region = _region(device, dtype)
        if region is not None:
            return region.cast(tensor, dtype)
    return _lower(tensor, dtype, device)


def _captures(device: str) -> bool:
    """Whether a CUDA graph is captured, into which each cast belongs: its replays read the weight of their time."""
    return device == "cuda" and torch.cuda.is_current_stream_capturing()


def _is_kept(tensor: Tensor) -> bool:
    """Whether torch would keep the cast of this operand."""
    return tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()


_below_autocast = {
    device: functools.partial(torch._C._ExcludeDispatchKeyGuard, keys(key)) for device, key in _AUTOCAST_KEYS.items()
}


def _autocast_forward(device: str) -> Any:
    def kernel(input: Tensor, weight: Tensor, bias: Tensor | None = None, *conv_args: Any) -> Tensor:
        with _below_autocast[device]():
            return forward(*lowered(device, (input, weight, bias)), *conv_args)

    return kernel


for _device, _key in _AUTOCAST_KEYS.items():
    implementations.impl("conv_transpose2d", _autocast_forward(_device), _key)
