"""The operators as modules; models' modules are turned into them by conversion.py."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from deconv_ext.functional import conv_transpose2d
from deconv_ext.functional1d import conv_transpose1d


class _Traceable(nn.Module):
    """Tracers of torch.fx treat the layer as they treat torch's: as a leaf, unless they look into torch's too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        input = args[0] if args else kwargs.get("input")
        if not isinstance(input, Proxy) or type(self) not in TORCHS:
            return nn.Module.__call__(self, *args, **kwargs)
        tracer: Any = input.tracer
        twin = nn.Module.__new__(TORCHS[type(self)])
        twin.__dict__ = self.__dict__
        is_leaf_module = tracer.is_leaf_module
        tracer.is_leaf_module = lambda module, name: is_leaf_module(twin if module is self else module, name)
        try:
            return nn.Module.__call__(self, *args, **kwargs)  # replaced by torch.fx while it traces
        finally:
            tracer.is_leaf_module = is_leaf_module


class ConvTranspose2d(_Traceable, nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d` on this operator: same arguments, state_dict, initialisation, repr."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """(batch, in_channels, height, width) to (batch, out_channels, out height, out width); 3-D without batch.

        Args:
            input: of 3 or 4 dimensions.
            output_size: (out height, out width) in pixels to reach by output_padding, or the output's whole shape; None
                (the default) for the module's own output_padding.

        Raises:
            ValueError: `output_size` cannot be reached.
            RuntimeError: as :func:`deconv_ext.conv_transpose2d`.
        """
        assert isinstance(self.padding, tuple)  # told to type checkers and TorchScript
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            2,
            self.dilation,  # type: ignore[arg-type]
        )
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.ops.deconv.conv_transpose2d(
                input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation
            )
        return conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation
        )


class ConvTranspose1d(_Traceable, nn.ConvTranspose1d):
    """:class:`torch.nn.ConvTranspose1d` on this operator: same arguments, state_dict, initialisation, repr."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """(batch, in_channels, length) to (batch, out_channels, out length); 2-D without batch.

        Args:
            input: of 2 or 3 dimensions.
            output_size: (out length,) to reach by output_padding, or the output's whole shape; None (the default) for
                the module's own output_padding.

        Raises:
            ValueError: `output_size` cannot be reached.
            RuntimeError: as :func:`deconv_ext.conv_transpose1d`.
        """
        assert isinstance(self.padding, tuple)  # told to type checkers and TorchScript
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            1,
            self.dilation,  # type: ignore[arg-type]
        )
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.ops.deconv.conv_transpose2d(
                input.unsqueeze(-2),
                self.weight.unsqueeze(-2),
                self.bias,
                [1, self.stride[0]],
                [0, self.padding[0]],
                [0, output_padding[0]],
                self.groups,
                [1, self.dilation[0]],
            ).squeeze(-2)
        return conv_transpose1d(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups, self.dilation
        )


class LazyConvTranspose2d(nn.LazyConvTranspose2d, ConvTranspose2d):  # type: ignore[misc]
    """:class:`torch.nn.LazyConvTranspose2d` that becomes :class:`ConvTranspose2d` at its first call."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose1d(nn.LazyConvTranspose1d, ConvTranspose1d):  # type: ignore[misc]
    """:class:`torch.nn.LazyConvTranspose1d` that becomes :class:`ConvTranspose1d` at its first call."""

    cls_to_become = ConvTranspose1d


TORCHS: dict[type[nn.Module], type[nn.Module]] = {
    ConvTranspose1d: nn.ConvTranspose1d,
    ConvTranspose2d: nn.ConvTranspose2d,
    LazyConvTranspose1d: nn.LazyConvTranspose1d,
    LazyConvTranspose2d: nn.LazyConvTranspose2d,
}
