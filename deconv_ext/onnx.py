"""Export to ONNX: the operators as ConvTranspose nodes."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from deconv_ext._ops import forward


def onnx_table() -> dict[Any, Callable[..., Any]]:
    """The translation of the operator for :func:`torch.onnx.export`, to ONNX's own ConvTranspose (opset 18 and later).

    Pass it as ``custom_translation_table``. 1-D layers and inputs without a batch are covered; ``output_padding`` must
    not depend on dynamic sizes, an attribute of ConvTranspose that is fixed.

    Raises:
        ModuleNotFoundError: onnxscript, which torch.onnx.export needs, is not installed.

    Example:
        >>> model = deconv_ext.convert(torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 3, 2)))
        >>> program = torch.onnx.export(  # doctest: +SKIP
        ...     model, (torch.ones(1, 4, 5, 5),), dynamo=True, custom_translation_table=deconv_ext.onnx_table()
        ... )
    """
    op = importlib.import_module("onnxscript").opset18

    def conv_transpose2d(
        input: Any,
        weight: Any,
        bias: Any | None = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        output_padding: Sequence[int] = (0, 0),
        groups: int = 1,
        dilation: Sequence[int] = (1, 1),
    ) -> Any:
        unbatched = len(input.shape) == 3
        first = op.Constant(value_ints=[0])
        result = op.ConvTranspose(
            op.Unsqueeze(input, first) if unbatched else input,
            weight,
            bias,
            strides=list(stride),
            pads=[*padding, *padding],
            output_padding=list(output_padding),
            group=groups,
            dilations=list(dilation),
        )
        return op.Squeeze(result, first) if unbatched else result

    return {forward: conv_transpose2d}
