"""Existing code on this project's operators, unchanged."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_overloaded_args

OURS: dict[Callable[..., Any], Callable[..., Tensor]] = {}  # what replaces which of torch's functions


def _has_own_handler(kind: type) -> bool:
    """True if tensors of this type answer for torch's functions by a handler that is neither inherited nor disabled."""
    handler = getattr(kind, "__torch_function__", None)
    inherited = getattr(handler, "__func__", None) is Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    return issubclass(kind, Tensor) and not inherited and handler is not torch._C._disabled_torch_function_impl


def asks_subclass(*operands: Any) -> bool:
    """True if torch would ask one of the operands to answer for a function of tensors."""
    return torch._C._is_torch_function_enabled() and any(_has_own_handler(type(operand)) for operand in operands)


class override(TorchFunctionMode):
    """Inside this context ``conv_transpose1d`` and ``conv_transpose2d`` of torch.nn.functional go through the operator.

    Covers the modules of torch.nn and tensor subclasses (each gets torch's function first; what it hands back to torch
    runs on the operator), on the threads that enter it, in eager mode and under ``torch.compile`` (around a compiled
    call or inside the compiled function). Errors are those of :func:`deconv_ext.conv_transpose2d`.

    Does not cover what a backward runs forward again, such as checkpointed layers, nor hooks: torch leaves function
    modes while it runs a backward. For these use :func:`deconv_ext.convert`, or enter the context inside the function
    that is checkpointed.

    Example:
        >>> layer = torch.nn.ConvTranspose2d(4, 3, 2, stride=2)
        >>> with deconv_ext.override():
        ...     layer(torch.ones(1, 4, 5, 5)).shape
        torch.Size([1, 3, 10, 10])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        ours = OURS.get(func)
        if ours is None:
            return func(*args, **kwargs)
        if not asks_subclass(*args, *kwargs.values()):
            return ours(*args, **kwargs)
        with self:
            for operand in _get_overloaded_args((*args, *kwargs.values())):
                result = operand.__torch_function__(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
        raise TypeError(f"no implementation found for {torch.overrides.resolve_name(func)} on types {list(types)}")
