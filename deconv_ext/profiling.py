"""The transposed convolutions of a model, each timed with torch's operator and with this project's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from deconv_ext._ops import kernels_serve
from deconv_ext._recorder import Call, IntPair, Recorder
from deconv_ext.inspection import plan

if TYPE_CHECKING:
    from deconv_ext.cli.operands import Operands


@dataclass(frozen=True)
class DirectionProfile:
    """One direction of a call.

    Attributes:
        direction: "forward", "grad_input" or "grad_weight".
        torch_ms, ours_ms: median time of a call in ms, torch's operator and this project's.
        kernel: the kernel of this project that serves it, as in :class:`Plan`.
        family: its family alone, as in :class:`Plan`.
    """

    direction: str
    torch_ms: float
    ours_ms: float
    kernel: str
    family: str


@dataclass(frozen=True)
class LayerProfile:
    """One transposed convolution of a model, as :func:`profile` returns it.

    Attributes:
        name: the module that makes the call, as in ``model.named_modules()``; the model's class for the model itself.
        input_size, output_size: (batch, channels, height, width); height is 1 in one dimension, batch is 1 without.
        weight_size: (in_channels, out_channels / groups, kernel height, kernel width).
        stride, padding, output_padding, dilation: (height, width).
        groups: of the channels.
        dtype: of the computation, under autocast the lower one.
        calls: how many such calls a step makes.
        runs: whose operator the model calls, "torch" or "deconv_ext".
        directions: the times and kernels; empty where nothing was measured.
        unmeasured: why nothing was measured; None where something was.
        step_ms: the time of the whole model's step in ms; None where it was not measured.
    """

    name: str
    input_size: tuple[int, ...]
    weight_size: tuple[int, ...]
    output_size: tuple[int, ...]
    stride: IntPair
    padding: IntPair
    output_padding: IntPair
    dilation: IntPair
    groups: int
    dtype: torch.dtype
    calls: int
    runs: str
    directions: tuple[DirectionProfile, ...] = ()
    unmeasured: str | None = None
    step_ms: float | None = None

    @property
    def torch_ms(self) -> float | None:
        """Time of a call by torch's operator in ms, all directions; None where unmeasured."""
        return sum(one.torch_ms for one in self.directions) if self.directions else None

    @property
    def ours_ms(self) -> float | None:
        """Time of a call by this project's operator in ms, all directions; None where unmeasured."""
        return sum(one.ours_ms for one in self.directions) if self.directions else None

    @property
    def speedup(self) -> float | None:
        """torch_ms / ours_ms; None where unmeasured."""
        return self.torch_ms / self.ours_ms if self.torch_ms and self.ours_ms else None

    @property
    def share(self) -> float | None:
        """The part of the model's step that these calls take, by the operator that it runs; None where unmeasured."""
        ms = self.torch_ms if self.runs == "torch" else self.ours_ms
        return self.calls * ms / self.step_ms if ms is not None and self.step_ms else None


def profile(
    model: nn.Module,
    *inputs: Any,
    backward: bool = True,
    loss: Callable[[Any], Tensor] | None = None,
    **keywords: Any,
) -> list[LayerProfile]:
    """Finds the transposed convolutions of a model, times each with torch's operator and with ours, prints a table.

    Runs ``model(*inputs, **keywords)`` once to record its calls: layers and functional calls, 2-D and 1-D, torch's and
    this project's. Then times each distinct call alone, on random numbers, in the directions that the model needs, and
    the model's whole step. Both sides run in turn, cuDNN in benchmark mode, at the precision that is set: TF32 switch,
    autocast, dtypes and memory formats count. The gradient of the bias and autocast's casts are left out.

    Where ATen would serve a call, both sides are the same and its row has no times: on a CPU, for example. Where a call
    cannot be timed, out of memory for example, its row says so and the other rows stay.

    The model is left as it was: parameters, their ``.grad``, buffers, training mode, torch's random state, hooks. It is
    run with gradients off for ``backward=False``. Compiled models are recorded in eager mode and timed as compiled;
    calls inside TorchScript are not seen.

    Args:
        model: on the device where it is to be timed.
        inputs, keywords: what the model takes; tensors may be in lists, tuples and dicts.
        backward: whether a step has a backward (default); else forward alone.
        loss: from the model's output to the scalar tensor that is differentiated; default None, gradients of ones for
            each tensor of the output that needs one.

    Returns:
        A :class:`LayerProfile` for each layer and distinct call, in the order of the calls; empty, with one printed
        sentence, for a model without any.

    Raises:
        TypeError: `model` is not a module.
        ValueError: `backward` is set and no tensor of the output needs a gradient; or the model has lazy parameters.

    Example:
        >>> rows = deconv_ext.profile(torch.nn.Linear(2, 2), torch.ones(1, 2))
        Linear makes no transposed convolution in 1-D or 2-D: there is nothing to profile.
        >>> rows
        []
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, but got {type(model).__name__}")
    if any(nn.parameter.is_lazy(one) for one in (*model.parameters(), *model.buffers())):
        raise ValueError("model has lazy parameters; run it once before it is profiled")
    name = type(getattr(model, "_orig_mod", model)).__name__  # of torch.compile's wrapper, what it wraps
    own_inputs, own_keywords = pytree.tree_map_only(Tensor, _own, (inputs, keywords))
    tensors = [one for one in pytree.tree_leaves((own_inputs, own_keywords)) if isinstance(one, Tensor)]
    leaves = [one for one in (*model.parameters(), *tensors) if one.requires_grad]

    def forward() -> Any:
        return model(*own_inputs, **own_keywords)

    def step() -> None:
        output = forward()
        if backward:
            roots = _roots(output, loss)
            torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)

    with _unchanged(model, tensors), torch.inference_mode(False), torch.set_grad_enabled(backward):
        with Recorder(model) as recorder:
            output = forward()
        if not recorder.counts:
            print(f"{name} makes no transposed convolution in 1-D or 2-D: there is nothing to profile.")
            return []
        if backward:
            _roots(output, loss)  # raises where a step could not have a backward
        del output
        outcomes = _time_calls(list(dict.fromkeys(call for _, _, call in recorder.counts)))
        device = next((call.device for call, outcome in outcomes.items() if isinstance(outcome, tuple)), None)
        step_ms, trouble = _time_step(step, device) if device else (None, "")
    rows = [
        _row(layer, runs, call, calls, outcomes[call], step_ms)
        for (layer, runs, call), calls in recorder.counts.items()
    ]
    where = f" on {torch.cuda.get_device_name(device)}" if device and device.type == "cuda" else ""
    extent = "forward and backward" if backward else "forward"
    _show(rows, f"transposed convolutions of {name}, {extent}{where}, torch {torch.__version__}", trouble)
    return rows


def _own(tensor: Tensor) -> Tensor:
    """A copy that the model may change, and whose gradient is its own."""
    with torch.inference_mode(False):
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _roots(output: Any, loss: Callable[[Any], Tensor] | None) -> list[Tensor]:
    """What a step's backward begins with."""
    leaves = pytree.tree_leaves(output if loss is None else loss(output))
    roots = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not roots:
        what = "no tensor of the model's output" if loss is None else "loss gave no tensor that"
        raise ValueError(f"backward is True, but {what} needs a gradient; pass backward=False, or another loss")
    return roots


@contextmanager
def _unchanged(model: nn.Module, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Puts the model's buffers and torch's random state back at the end."""
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    tensors = (*model.parameters(), *model.buffers(), *inputs)
    devices = {tensor.device.index for tensor in tensors if tensor.device.type == "cuda"}
    try:
        with torch.random.fork_rng(sorted(devices)):
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, saved in buffers:
                module._buffers[name] = buffer.copy_(saved)


# --- times ----------------------------------------------------------------------------------------------------------

_Outcome = tuple[DirectionProfile, ...] | str  # the times, or why there are none


def _time_calls(calls: list[Call]) -> dict[Call, _Outcome]:
    from deconv_ext.cli.console import progress

    outcomes: dict[Call, _Outcome] = {call: obstacle for call in calls if (obstacle := _obstacle(call))}
    served = [call for call in calls if call not in outcomes]
    if not served:
        return outcomes
    with progress("profile", len(served)) as advance:
        for call in served:
            outcomes[call] = _time_call(call)
            advance(f"input {call.input[0]}, weight {call.weight[0]}")
    return outcomes


def _obstacle(call: Call) -> str | None:
    """Why timing a call would tell nothing."""
    if not kernels_serve(torch.empty(0, dtype=call.dtype, device=call.device)):
        return f"this build has no kernels for {call.device} and {call.dtype}, so both sides would be ATen"
    return "its batch is empty" if call.input[0][0] == 0 else None


def _time_call(call: Call) -> _Outcome:
    from deconv_ext.cli.measure import cudnn_search, time_operators

    times = []
    # What surrounds the model, as autocast and override do, is in the call already.
    alone = torch.autocast(call.device.type, enabled=False), torch._C.DisableTorchFunction(), torch.inference_mode()
    try:
        with alone[0], alone[1], alone[2], cudnn_search():
            for direction in call.directions:
                make = functools.partial(_operands, call, direction)
                first = make()
                found = plan(first.input, first.weight, first.bias, *call.conv_args, direction=direction)
                timings = time_operators(direction, first, make, call.device)
                medians = timings["torch"].median, timings["ours"].median
                times.append(DirectionProfile(direction, *medians, found.kernel, found.family))
    except RuntimeError as error:
        return _first_line(error)
    finally:
        torch.cuda.empty_cache()
    return tuple(times)


def _time_step(step: Callable[[], None], device: torch.device) -> tuple[float | None, str]:
    """The median time of a step in ms, or why there is none."""
    from deconv_ext.cli.measure import cudnn_search, time_interleaved

    try:
        with cudnn_search():
            return time_interleaved({"step": [step]}, device, graphs=False)["step"].median, ""
    except RuntimeError as error:
        return None, _first_line(error)
    finally:
        torch.cuda.empty_cache()


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0]


def _operands(call: Call, direction: str) -> Operands:
    from deconv_ext.cli.operands import Operands
    from deconv_ext.workloads import case

    def make(size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        return torch.empty_strided(size, stride, dtype=call.dtype, device=call.device).normal_()

    (n, ci, h, w), (_, co, *kernel) = call.input[0], call.weight[0]
    s, p, op, g, d = call.conv_args
    bias = make((co * g,), (1,)) if call.has_bias else None
    layer = case("layer", n, ci, h, w, co * g, kernel, s, p, op, d, g)
    grad_output = None if direction == "forward" else make(*call.output)
    return Operands(layer, make(*call.input), make(*call.weight), bias, grad_output)


# --- the table ------------------------------------------------------------------------------------------------------


def _row(name: str, runs: str, call: Call, calls: int, outcome: _Outcome, step_ms: float | None) -> LayerProfile:
    stride, padding, output_padding, groups, dilation = call.conv_args
    return LayerProfile(
        name=name,
        input_size=call.input[0],
        weight_size=call.weight[0],
        output_size=call.output[0],
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
        dtype=call.dtype,
        calls=calls,
        runs=runs,
        directions=() if isinstance(outcome, str) else outcome,
        unmeasured=outcome if isinstance(outcome, str) else None,
        step_ms=step_ms,
    )


def _show(rows: list[LayerProfile], title: str, trouble: str) -> None:
    from deconv_ext.cli.console import Column, print_table

    columns = [Column("layer", text=True), Column("call", text=True), Column("calls"), Column("torch ms")]
    columns += [Column("ours ms"), Column("speedup"), Column("of the step"), Column("kernel", text=True)]
    styles = ["yellow" if row.unmeasured else "" for row in rows]
    print_table(title, columns, [_cells(row) for row in rows], styles, _caption(rows, trouble))


def _cells(row: LayerProfile) -> list[str]:
    times = row.torch_ms, row.ours_ms, row.speedup, row.share
    forms = "{:.4g}", "{:.4g}", "{:.2f}x", "{:.0%}"
    shown = ["" if value is None else form.format(value) for form, value in zip(forms, times, strict=True)]
    families = list(dict.fromkeys(one.family for one in row.directions))
    if len(families) > 1:
        families = [f"{one.direction}: {one.family}" for one in row.directions]
    return [row.name, _describe(row), str(row.calls), *shown, "; ".join(families) or "not measured"]


def _describe(row: LayerProfile) -> str:
    """The call in a line: sizes, the arguments that are not torch's defaults, the element type."""
    parts = [f"{row.input_size} -> {row.output_size}", "kernel {}x{}".format(*row.weight_size[2:])]
    for name, default in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1)):
        height, width = getattr(row, name)
        parts += [f"{name} {height}x{width}"] if (height, width) != (default, default) else []
    parts += [f"groups {row.groups}"] if row.groups > 1 else []
    return ", ".join([*parts, str(row.dtype).removeprefix("torch.")])


def _caption(rows: list[LayerProfile], trouble: str) -> str:
    """What a step takes, and what was not measured."""
    lines = []
    measured = [row for row in rows if row.directions]
    if measured:
        by_torch = sum(row.calls * (row.torch_ms or 0) for row in measured)
        by_ours = sum(row.calls * (row.ours_ms or 0) for row in measured)
        sums = f"transposed convolutions: {by_torch:.4g} ms by torch's operator, {by_ours:.4g} ms by deconv_ext's"
        step_ms = measured[0].step_ms
        lines.append(f"a step: {step_ms:.4g} ms; its {sums}" if step_ms else f"the step's {sums}")
    lines += [f"the step was not measured: {trouble}"] if trouble else []
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.unmeasured:
            reasons.setdefault(row.unmeasured, []).append(row.name)
    for reason, names in reasons.items():
        which = "" if len(names) == len(rows) else f"{', '.join(dict.fromkeys(names))}: "
        lines.append(f"not measured: {which}{reason}")
    return "\n".join(lines)
