"""What would serve a call, and why: nothing here runs one."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deconv_ext._arguments import Pair
from deconv_ext._fake import axes, empty_like_torch
from deconv_ext._ops import has_kernels, output_size

_DIRECTIONS = ("forward", "grad_input", "grad_weight")


@dataclass(frozen=True)
class Plan:
    """The plan of one call, as :func:`plan` returns it.

    Attributes:
        direction: "forward", "grad_input" or "grad_weight".
        device: the GPU that the plan is for; where ATen serves, the tensors' device.
        served_by: "kernels" (this project's) or "ATen".
        kernel: the kernel family and its tile; "ATen" where ATen serves.
        estimate_ms: the planner's estimate of the time in ms; None where ATen serves.
        measured_ms: the time that autotuning measured, in ms; None for a plan chosen by its estimate.
        workspace_bytes: temporary memory in bytes; None where ATen serves.
        candidates: (kernel, estimate in ms) of each plan considered, quickest first.
        refusals: (kernel, reason) of each kernel that does not take the call; where ATen serves, the one reason.
    """

    direction: str
    device: str
    served_by: str
    kernel: str
    estimate_ms: float | None
    measured_ms: float | None
    workspace_bytes: int | None
    candidates: tuple[tuple[str, float], ...]
    refusals: tuple[tuple[str, str], ...]

    @property
    def family(self) -> str:
        """The kernel's families, outermost first, such as "sub_pixel, igemm_sm90"; "ATen" where ATen serves."""
        parts = self.kernel.split(", ")
        return ", ".join(part.removesuffix(" family") for part in parts if part.endswith(" family")) or self.kernel


def explain(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
    direction: str = "forward",
) -> str:
    """The plan that a call with these arguments would use, and what else was considered; nothing runs.

    The tensors may live on the ``meta`` device, which asks for the plan of GPU 0 (or of an H200 without one).

    Args:
        input, weight, bias, stride, padding, output_padding, groups, dilation: as :func:`conv_transpose2d`.
        direction: "forward" (the default), "grad_input" or "grad_weight"; the gradients take the strides that forward
            gives.

    Returns:
        Lines of text that name the call, its result, the device, the plan with its estimated time (ms), the launch, the
        workspace (bytes) and the quickest candidates of each family; or why the call goes to ATen. Made for reading; it
        changes with versions. :func:`plan` gives the same to programs.

    Raises:
        RuntimeError: as :func:`conv_transpose2d`.
        ValueError: an unknown direction.

    Example:
        >>> x, weight = torch.empty(1, 4, 5, 5, device="meta"), torch.empty(4, 3, 2, 2, device="meta")
        >>> print(deconv_ext.explain(x, weight, stride=2).splitlines()[1].strip())
        result: contiguous; 2.4e-06 GFLOP dense, 1.792e-06 GB read and written once
    """
    return _ask(False, direction, input, weight, bias, stride, padding, output_padding, groups, dilation)


def plan(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
    direction: str = "forward",
) -> Plan:
    """What :func:`explain` prints, as a dataclass; nothing runs.

    Args:
        input, weight, bias, stride, padding, output_padding, groups, dilation, direction: as :func:`explain`, tensors
            on the ``meta`` device included.

    Returns:
        A :class:`Plan`: the kernel, its estimated time in ms, the workspace in bytes, all candidates and refusals.
        The fields stay; the texts of kernels and reasons change with versions.

    Raises:
        RuntimeError: as :func:`conv_transpose2d`.
        ValueError: an unknown direction.

    Example:
        >>> x, weight = torch.empty(1, 4, 5, 5), torch.empty(4, 3, 2, 2)
        >>> deconv_ext.plan(x, weight, stride=2).refusals
        (('kernels', 'this build has no kernels for cpu and Float'),)
    """
    answer = json.loads(_ask(True, direction, input, weight, bias, stride, padding, output_padding, groups, dilation))
    if "kernel" not in answer:
        why = (("kernels", answer["reason"]),)
        return Plan(direction, answer["device"], "ATen", "ATen", None, None, None, (), why)
    return Plan(
        direction,
        answer["device"],
        "kernels",
        answer["kernel"],
        answer["estimate_ms"],
        answer.get("measured_ms"),
        answer["workspace_bytes"],
        tuple(sorted(map(tuple, answer["candidates"]), key=lambda candidate: candidate[1])),
        tuple(map(tuple, answer["refusals"])),
    )


def is_supported(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> bool:
    """Whether this project's kernels serve the call; if not, :func:`conv_transpose2d` computes it through ATen.

    Never raises for the device or the element type: a CPU, a GPU without kernels in this build, complex numbers and
    integers give False. Invalid arguments raise, as they do in the call. Tensors on the ``meta`` device stand for those
    of GPU 0 (or of an H200 without one). It plans nothing, and costs some microseconds.

    Args:
        input, weight, bias, stride, padding, output_padding, groups, dilation: as :func:`conv_transpose2d`.

    Raises:
        RuntimeError: as :func:`conv_transpose2d`.

    Example:
        >>> deconv_ext.is_supported(torch.empty(1, 4, 5, 5), torch.empty(4, 3, 2, 2), stride=2)
        False
    """
    served: bool = torch.ops.deconv._serves(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return served


def _as_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _ask(as_json: bool, direction: str, input: Tensor, weight: Tensor, bias: Tensor | None, *conv_args: Any) -> str:
    """The operator's answer: for a gradient with the grad_output that forward's result asks for."""
    if direction not in _DIRECTIONS:
        raise ValueError(f"direction must be 'forward', 'grad_input' or 'grad_weight', but got {direction!r}")
    ask = torch.ops.deconv.explain
    if direction == "forward":
        return ask(input, weight, bias, *conv_args, json=as_json)
    torch.ops.deconv._serves(input, weight, bias, *conv_args)  # raises if an argument is out of range
    stride, padding, output_padding, groups, dilation = conv_args
    on_gpu = input.device.type == "meta" or (input.device.type == "cuda" and has_kernels(input.device.index or 0))
    given = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    pairs = [axes(name, value) for name, value in given.items()]
    extent = [output_size(input.shape[a - 2], weight.shape[a + 2], *(v[a] for v in pairs)) for a in (0, 1)]
    size = [*input.shape[:-3], weight.shape[1] * groups, *extent]
    if on_gpu:
        input, weight = _as_meta(input), _as_meta(weight)
        unbatched = input.dim() == 3
        batched = [1, *size] if unbatched else size
        grad_output = empty_like_torch(batched, (input, weight), unbatched, stride, output_padding)
    else:  # goes to ATen: only sizes matter
        grad_output = input.new_empty(()).expand(size)
    if direction == "grad_input":
        return ask(grad_output, weight, None, *conv_args, direction, list(input.shape[-2:]), json=as_json)
    return ask(input, grad_output, None, *conv_args, direction, list(weight.shape[-2:]), json=as_json)
