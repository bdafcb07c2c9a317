"""The compiled library, its operators, and which calls its kernels serve."""

import functools
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deconv_ext._arguments import accept_integers

_LIBRARY = Path(__file__).parent / "_C.abi3.so"
if not _LIBRARY.exists():
    raise ImportError(f"deconv_ext: {_LIBRARY.name} is not built; run `pip install .` in the source folder")
torch.ops.load_library(_LIBRARY)

KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

forward = torch.ops.deconv.conv_transpose2d.default
grad_input = torch.ops.deconv.conv_transpose2d_grad_input.default
grad_weight = torch.ops.deconv.conv_transpose2d_grad_weight.default
backward = torch.ops.deconv.conv_transpose2d_backward.default

dispatch_forward = forward._op  # without Python between, for arguments as the schema has them
for _name in ("grad_input", "grad_weight", "backward"):
    accept_integers(getattr(torch.ops.deconv, f"conv_transpose2d_{_name}"))
accept_integers(torch.ops.deconv.explain)
accept_integers(torch.ops.deconv._serves)

implementations = torch.library.Library("deconv", "IMPL")  # keeps the registrations made from Python alive


def keys(name: str) -> Any:
    """The dispatch key of this name as a set."""
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))


@functools.cache
def has_kernels(device_index: int) -> bool:
    """Whether this build has kernels for CUDA device `device_index`; without any CUDA device, for a GPU to come."""
    if torch.ops.deconv.build_info().startswith("no CUDA"):
        return False
    return not torch.cuda.is_available() or torch.ops.deconv.has_kernels(device_index)


def kernels_serve(operand: Tensor) -> bool:
    """Whether calls on `operand` run on this project's kernels; the others go to ATen."""
    return operand.is_cuda and operand.dtype in KERNEL_DTYPES and has_kernels(operand.get_device())


# 0 forbids TF32 to NVIDIA's libraries, cuDNN among them, whatever torch's settings. They too read it once.
_TF32_OVERRIDDEN = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"


def tf32_allowed() -> bool:
    """Whether float32 convolutions may use TF32 now, by what F.conv_transpose2d on CUDA obeys.

    Not by ``torch.backends.cudnn.allow_tf32``, which raises where the older and the newer switches were mixed.
    """
    return not _TF32_OVERRIDDEN and torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32"


implementations.impl("_tf32_allowed", tf32_allowed, "BackendSelect")  # asked by csrc/torch/precision.cpp


_warned: list[str] = []


def _warn_once(what: str) -> None:
    if not _warned:
        _warned.append(what)
        build = torch.ops.deconv.build_info()
        text = f"deconv_ext has no kernels for {what} (this build: {build}): ATen serves. It will not warn again"
        warnings.warn(text, stacklevel=2)


implementations.impl("_warn_unserved", _warn_once, "BackendSelect")  # called by csrc/torch/fallback.cpp


def warn_unserved(operand: Tensor) -> None:
    """Warns once a process, of the first CUDA call that goes to ATen; never of a call on another device."""
    if operand.device.type == "cuda":
        _warn_once(f"{operand.device} and {operand.dtype}")


def output_size(size: Any, kernel: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any) -> Any:
    """Extent of the output on one axis, as torch.nn.ConvTranspose2d documents it."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1
