"""Existing code on this project's operator, unchanged."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from deconv_ext.functional import conv_transpose2d
from deconv_ext.functional1d import conv_transpose1d


class override(TorchFunctionMode):
    """Inside this context every ``torch.nn.functional.conv_transpose2d`` goes through the operator.

    That covers ``nn.ConvTranspose2d`` too, on the threads that enter it, in eager mode and under ``torch.compile``
    (around a compiled call or inside the compiled function). Errors are those of :func:`deconv_ext.conv_transpose2d`.

    Example:
        >>> layer = torch.nn.ConvTranspose2d(4, 3, 2, stride=2)
        >>> with deconv_ext.override():
        ...     layer(torch.ones(1, 4, 5, 5)).shape
        torch.Size([1, 3, 10, 10])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.conv_transpose2d:
            return conv_transpose2d(*args, **(kwargs or {}))
        if func is torch.nn.functional.conv_transpose1d:
            return conv_transpose1d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
