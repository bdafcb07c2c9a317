"""The operator as a module, and a model's modules turned into it."""

from torch import Tensor, nn

from deconv_ext.functional import conv_transpose2d


class ConvTranspose2d(nn.ConvTranspose2d):
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
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            2,
            self.dilation,  # type: ignore[arg-type]
        )
        return conv_transpose2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,  # type: ignore[arg-type]
            output_padding,
            self.groups,
            self.dilation,
        )


def _converted(module: nn.ConvTranspose2d) -> ConvTranspose2d:
    """`module` as ours: the same parameters, buffers and hooks, not copies of them."""
    new = ConvTranspose2d.__new__(ConvTranspose2d)
    new.__dict__.update(module.__dict__)
    return new


def convert(model: nn.Module) -> nn.Module:
    """Replaces every :class:`torch.nn.ConvTranspose2d` in `model` by :class:`ConvTranspose2d`, sharing parameters.

    Subclasses are left alone, for they may compute something else. `model` is changed in place and returned; when it
    is itself a ConvTranspose2d, its replacement is returned. Hooks and buffers stay; nothing is copied.

    Example:
        >>> deconv_ext.convert(torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 3, 2)))
        Sequential(
          (0): ConvTranspose2d(4, 3, kernel_size=(2, 2), stride=(1, 1))
        )
    """
    if type(model) is nn.ConvTranspose2d:
        return _converted(model)
    replaced: dict[int, ConvTranspose2d] = {}  # a module that stands in two places stays one
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if type(child) is nn.ConvTranspose2d:
                parent._modules[name] = replaced.setdefault(id(child), _converted(child))
    return model
