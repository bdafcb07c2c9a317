"""The tensors of a case, and the calls on them: through this package, through torch, and torch in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import deconv_ext
from deconv_ext.workloads import Case, minimal_bytes, output_size

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DIRECTIONS = ("forward", "grad_input", "grad_weight")

# Highest relative error of a right result, by mode: a name of DTYPES (fp32 is strict), or tf32 for float32 where torch
# allows TF32 tensor cores.
BOUNDS = {"fp64": 1e-12, "fp32": 1e-5, "tf32": 1e-3, "fp16": 2e-3, "bf16": 1.2e-2}

MODES = tuple(BOUNDS)

_WHOLE_REFERENCE_BYTES = 256 << 20
_SAMPLED_CHANNELS = 4


def device_of(name: str | torch.device | None, default: str = "cpu") -> torch.device:
    """The device called ``name``, by default cuda where there is one, else ``default``.

    Raises:
        ValueError: there is no such device here, or it is none that computes.
    """
    device = _parsed_device(name or ("cuda" if torch.cuda.is_available() else default))
    if device is None or device.type not in {"cpu", "cuda", default}:
        raise ValueError(f"--device is {name}; it must be cpu, cuda or cuda:N")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise ValueError(f"--device is {name}; this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def _parsed_device(name: str | torch.device) -> torch.device | None:
    try:
        return torch.device(name)
    except RuntimeError:
        return None


def dtype_of(mode: str) -> torch.dtype:
    """The dtype of a mode."""
    return DTYPES["fp32" if mode == "tf32" else mode]


@dataclass(frozen=True)
class Operands:
    """The tensors of one call of a case in any direction.

    Shapes: ``input`` (n, ci, h, w), ``weight`` (ci, co / g, kh, kw), ``bias`` (co,) or None, ``grad_output`` with the
    shape of the output, or None where only the forward is wanted.
    """

    case: Case
    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    grad_output: Tensor | None = None

    def read(self, direction: str) -> tuple[Tensor, Tensor]:
        """The two tensors, besides the bias, that a call in this direction reads."""
        if direction == "forward":
            return self.input, self.weight
        assert self.grad_output is not None
        return (self.grad_output, self.weight) if direction == "grad_input" else (self.input, self.grad_output)

    def map(self, function: Callable[[Tensor], Tensor]) -> Operands:
        """The operands with a function applied to each tensor."""
        bias, grad_output = (None if one is None else function(one) for one in (self.bias, self.grad_output))
        return Operands(self.case, function(self.input), function(self.weight), bias, grad_output)

    def laid_out(self, layout: str, device: torch.device) -> Operands:
        """The same values on a device in a memory layout.

        Layouts: "nchw" (contiguous), "channels_last" (the bias contiguous), "sliced" (every second element of rows that
        hold NaN between).
        """
        return self.map(lambda tensor: _lay_out(tensor.to(device), layout))


def make_operands(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    *,
    bias: bool = False,
    grad_output: bool = True,
    fill: Callable[..., Tensor] = torch.randn,
) -> Operands:
    """Contiguous operands of a case: standard normal from the device's default generator, or as ``fill`` makes them."""

    def make(*shape: int) -> Tensor:
        return fill(shape, dtype=dtype, device=device)

    return Operands(
        case,
        input=make(case["n"], case["ci"], case["h"], case["w"]),
        weight=make(case["ci"], case["co"] // case["g"], *case["k"]),
        bias=make(case["co"]) if bias else None,
        grad_output=make(case["n"], case["co"], *output_size(case)) if grad_output else None,
    )


def _lay_out(tensor: Tensor, layout: str) -> Tensor:
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "sliced":
        rows = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), float("nan"))
        rows[..., ::2] = tensor
        return rows[..., ::2]
    return tensor.contiguous()


def call_ours(direction: str, operands: Operands) -> Tensor:
    """The result of this package's operator; the bias only enters the forward."""
    case = operands.case
    order = case["s"], case["p"], case["op"], case["g"], case["d"]
    if direction == "forward":
        return deconv_ext.conv_transpose2d(operands.input, operands.weight, operands.bias, *order)
    operator = getattr(torch.ops.deconv, f"conv_transpose2d_{direction}")
    size = (case["h"], case["w"]) if direction == "grad_input" else case["k"]
    result: Tensor = operator(*operands.read(direction), size, *order)
    return result


def call_explain(direction: str, operands: Operands) -> str:
    """What ``explain`` says of the call on these very tensors."""
    case = operands.case
    order = case["s"], case["p"], case["op"], case["g"], case["d"]
    bias = operands.bias if direction == "forward" else None
    size = {"forward": (), "grad_input": (case["h"], case["w"]), "grad_weight": case["k"]}[direction]
    text: str = torch.ops.deconv.explain(*operands.read(direction), bias, *order, direction, size)
    return text


def call_torch(direction: str, operands: Operands) -> Tensor:
    """The same by torch's own operator: cuDNN on CUDA."""
    case = operands.case
    if direction == "forward":
        order = case["s"], case["p"], case["op"], case["g"], case["d"]
        return F.conv_transpose2d(operands.input, operands.weight, operands.bias, *order)
    mask = [direction == "grad_input", direction == "grad_weight", False]
    results = torch.ops.aten.convolution_backward(
        operands.grad_output, operands.input, operands.weight, None,
        case["s"], case["p"], case["d"], True, case["op"], case["g"], mask,
    )  # fmt: skip
    result: Tensor = results[mask.index(True)]
    return result


def call_float64(direction: str, operands: Operands) -> Tensor:
    """The same by torch in float64, contiguous, on the operands' device and without cuDNN."""

    exact = operands.map(lambda tensor: tensor.to(torch.float64, memory_format=torch.contiguous_format))
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        return call_torch(direction, exact)
    finally:
        torch.backends.cudnn.enabled = enabled


def relative_error(result: Tensor, reference: Tensor) -> float:
    """‖result − reference‖ / ‖reference‖ in float64; NaN if the result holds one, ‖result‖ if the reference is 0.

    ``result`` and ``reference`` have one shape.
    """
    difference = torch.linalg.vector_norm(result.to(reference) - reference).item()
    norm = torch.linalg.vector_norm(reference).item()
    return difference / norm if norm > 0 else difference


def sampled_errors(direction: str, operands: Operands, *results: Tensor) -> list[float]:
    """The relative error of each result against float64: on all of it where it is small, on a random part otherwise."""
    part, index = _sample(direction, operands)
    reference = call_float64(direction, part)
    return [relative_error(result[index], reference) for result in results]


def _sample(direction: str, operands: Operands) -> tuple[Operands, tuple[slice, slice]]:
    """A smaller problem whose result is a part of the whole one's, and that part's place in it.

    What the direction sums over stays whole; of the rest it takes one image, one group, a few channels. A problem whose
    tensors are small in float64 is its own sample.
    """
    case = operands.case
    if minimal_bytes(case, 8) <= _WHOLE_REFERENCE_BYTES:
        return operands, (slice(None), slice(None))
    group_in, group_out = case["ci"] // case["g"], case["co"] // case["g"]
    group = random.randrange(case["g"])
    images = slice(0, case["n"]) if direction == "grad_weight" else _random_range(case["n"], 1)
    within_in = _random_range(group_in, group_in if direction == "forward" else _SAMPLED_CHANNELS)
    within_out = _random_range(group_out, group_out if direction == "grad_input" else _SAMPLED_CHANNELS)
    channels_in = _shifted(within_in, group * group_in)
    channels_out = _shifted(within_out, group * group_out)
    part: Case = {**case, "n": _length(images), "ci": _length(within_in), "co": _length(within_out), "g": 1}
    sample = Operands(
        part,
        input=operands.input[images, channels_in],
        weight=operands.weight[channels_in, within_out],
        bias=None if operands.bias is None else operands.bias[channels_out],
        grad_output=None if operands.grad_output is None else operands.grad_output[images, channels_out],
    )
    place = {
        "forward": (images, channels_out),
        "grad_input": (images, channels_in),
        "grad_weight": (channels_in, within_out),
    }
    return sample, place[direction]


def _random_range(size: int, length: int) -> slice:
    length = min(length, size)
    start = random.randrange(size - length + 1)
    return slice(start, start + length)


def _shifted(interval: slice, offset: int) -> slice:
    return slice(interval.start + offset, interval.stop + offset)


def _length(interval: slice) -> int:
    return int(interval.stop - interval.start)


@contextmanager
def torch_in(mode: str) -> Iterator[None]:
    """Whether float32 convolutions and matrix products may use TF32 in this block: only in the mode tf32."""
    saved = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = saved
