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

from deconv_ext._ops import dispatch_forward, implementations, keys

_AUTOCAST_KEYS = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}


def is_autocast(device: str) -> bool:
    """True inside autocast for this type of device, if the operators cast on it."""
    return torch._C._is_any_autocast_enabled() and device in _AUTOCAST_KEYS and torch.is_autocast_enabled(device)


def lowered(device: str, operands: tuple[Tensor | None, ...]) -> list[Any]:
    """The operands as autocast wants them: those in single or half precision on the device in the lower one."""
    dtype = torch.get_autocast_dtype(device)
    return [None if tensor is None else _lower(tensor, dtype, device) for tensor in operands]


def _lower(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    casts = tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == device
    return tensor.to(dtype) if casts else tensor


class _Region:
    """The casts made in one outermost autocast region, by the identity of the tensor that was cast.

    Each with the tensor, its version and its address.
    """

    __slots__ = ("__weakref__", "casts")

    def __init__(self) -> None:
        self.casts: dict[int, tuple[weakref.ref[Tensor], int, int, Tensor]] = {}

    def keep(self, tensor: Tensor, cast: Tensor) -> None:
        """Keeps `cast` as long as this region and `tensor` last."""
        key = id(tensor)
        owner = weakref.ref(tensor, functools.partial(_forget, weakref.ref(self), key))
        self.casts[key] = owner, tensor._version, tensor.data_ptr(), cast


def _forget(region: weakref.ref[_Region], key: int, dead: Any) -> None:
    alive = region()
    if alive is not None:
        alive.casts.pop(key, None)


def _no_region() -> None:
    return None


_current: Any = _no_region  # a weak reference to the open region


def _open_region(device: str, dtype: torch.dtype) -> _Region | None:
    """A new region that ends when torch clears its cache; None if torch caches nothing."""
    global _current
    recorded = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    try:
        # torch casts the first operand and caches that. Nothing is launched, or saved for a backward.
        node: Any = torch.addmm(*_nothing(device, dtype)).grad_fn
    finally:
        torch._C._set_grad_enabled(recorded)
    cast = node.next_functions[0][0]
    if type(cast).__name__ != "ToCopyBackward0":
        return None
    region = cast.metadata[_Region] = _Region()
    _current = weakref.ref(region)
    return region


@functools.cache
def _nothing(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    first = torch.empty(0, 0, device=device, requires_grad=True)
    return first, first.detach().to(dtype), first.detach().to(dtype)


def lowered_once(device: str, input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any, Any]:
    """`lowered`, for eager calls that nothing watches: casts parameters that train once a region, as torch does.

    Casts each time while a CUDA graph is captured, so that its replays read the parameters anew.
    """
    dtype = torch.get_autocast_dtype(device)
    if input.dtype is not dtype:
        input = _lower(input, dtype, device)
    caches = (
        torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()  # no graph node there whose end tells the region's
        and not (device == "cuda" and torch.cuda.is_current_stream_capturing())
    )
    lower = _lower_once if caches else _lower
    if weight.dtype is not dtype:
        weight = lower(weight, dtype, device)
    if bias is not None and bias.dtype is not dtype:
        bias = lower(bias, dtype, device)
    return input, weight, bias


def _lower_once(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    region = _current()
    kept = None if region is None else region.casts.get(id(tensor))
    if kept is not None:
        owner, version, address, cast = kept
        if (
            owner() is tensor and tensor._version == version and tensor.data_ptr() == address
            and cast.dtype is dtype and tensor.requires_grad and cast.requires_grad == torch.is_grad_enabled()
        ):  # fmt: skip
            return cast
    cast = _lower(tensor, dtype, device)
    # torch's own conditions
    if tensor.dtype is torch.float32 and cast is not tensor and tensor.requires_grad and tensor.is_leaf:
        region = None if tensor._is_view() else region or _open_region(device, dtype)
        if region is not None:
            region.keep(tensor, cast)
    return cast


_below_autocast = {
    device: functools.partial(torch._C._ExcludeDispatchKeyGuard, keys(key)) for device, key in _AUTOCAST_KEYS.items()
}


def _autocast_forward(device: str) -> Any:
    def kernel(input: Tensor, weight: Tensor, bias: Tensor | None = None, *conv_args: Any) -> Tensor:
        with _below_autocast[device]():
            return dispatch_forward(*lowered(device, (input, weight, bias)), *conv_args)

    return kernel


for _device, _key in _AUTOCAST_KEYS.items():
    implementations.impl("conv_transpose2d", _autocast_forward(_device), _key)
