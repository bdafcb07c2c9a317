"""The transposed convolutions that a model makes, recorded while it runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from deconv_ext._arguments import pair
from deconv_ext.override import override

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # size and strides
IntPair = tuple[int, int]


@dataclass(frozen=True)
class Call:
    """A transposed convolution of a batch of images: sizes with strides, arguments, and the directions it needs."""

    input: Layout
    weight: Layout
    output: Layout
    has_bias: bool
    conv_args: tuple[IntPair, IntPair, IntPair, int, IntPair]  # as conv_transpose2d takes them
    dtype: torch.dtype
    device: torch.device
    directions: tuple[str, ...]


_DIMENSIONS = {
    F.conv_transpose1d: 1,
    F.conv_transpose2d: 2,
    torch.ops.deconv.conv_transpose2d: 2,
    torch.ops.deconv.conv_transpose2d.default: 2,
}


class Recorder(TorchFunctionMode):
    """Counts the transposed convolutions of a model that runs inside, by (module's name, whose operator, call)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.counts: dict[tuple[str, str, Call], int] = {}
        self._model = model
        self._names: dict[nn.Module, str] = {}
        self._running: list[nn.Module] = []
        self._exit = ExitStack()

    def __enter__(self) -> Recorder:
        for name, module in self._model.named_modules():
            if isinstance(module, torch.jit.ScriptModule) or "_orig_mod" in module._modules:  # torch.compile's wrapper
                continue
            parts = [part for part in name.split(".") if part != "_orig_mod"]
            self._names[module] = ".".join(parts) or type(module).__name__
            self._exit.callback(module.register_forward_pre_hook(self._begin).remove)
            self._exit.callback(module.register_forward_hook(self._end, always_call=True).remove)
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled
            self._exit.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._exit.close()

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        self._running.append(module)

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if dimensions := _DIMENSIONS.get(func):
            module = self._running[-1]
            is_ours = (
                func not in (F.conv_transpose1d, F.conv_transpose2d)
                or type(module).__module__.partition(".")[0] == __package__
                or any(isinstance(mode, override) for mode in _get_current_function_mode_stack())
            )
            call = _call_of(dimensions, result, *args, **(kwargs or {}))
            key = self._names[module], "deconv_ext" if is_ours else "torch", call
            self.counts[key] = self.counts.get(key, 0) + 1
        return result


def _call_of(
    dimensions: int,
    output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Call:
    def laid_out(tensor: Tensor) -> Layout:
        like = torch.empty_like(tensor, device="meta")  # without gaps between its elements
        image = like.unsqueeze(-2) if dimensions == 1 else like
        batch = image.unsqueeze(0) if image.dim() == 3 else image
        return tuple(batch.shape), batch.stride()

    def both(value: Any, across: int) -> IntPair:
        height, width = pair(value) or (value, value)  # the call succeeded, so it is a pair
        return across if dimensions == 1 else height, width

    needs = {"forward": True}
    if torch.is_grad_enabled():
        needs |= {"grad_input": input.requires_grad, "grad_weight": weight.requires_grad}
    return Call(
        laid_out(input),
        laid_out(weight),
        laid_out(output),
        bias is not None,
        (both(stride, 1), both(padding, 0), both(output_padding, 0), groups, both(dilation, 1)),
        output.dtype,  # autocast casts after this
        output.device,
        tuple(direction for direction, needed in needs.items() if needed),
    )
