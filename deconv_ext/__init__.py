"""Transposed 2D convolution for PyTorch on this project's own CUDA kernels, behind ``torch.ops.deconv``."""

from deconv_ext import _autograd, _distributed, _fake, _quantization, _vmap, ops  # noqa: F401 - registrations
from deconv_ext.autotune import autotune
from deconv_ext.conversion import convert, revert
from deconv_ext.functional import conv_transpose2d, show_config
from deconv_ext.functional1d import conv_transpose1d
from deconv_ext.inspection import Plan, explain, is_supported, plan
from deconv_ext.modules import ConvTranspose1d, ConvTranspose2d, LazyConvTranspose1d, LazyConvTranspose2d
from deconv_ext.onnx import onnx_table
from deconv_ext.override import override
from deconv_ext.profiling import DirectionProfile, LayerProfile, profile

__version__ = "0.1.0"
__all__ = [
    "ConvTranspose1d",
    "ConvTranspose2d",
    "DirectionProfile",
    "LayerProfile",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "Plan",
    "__version__",
    "autotune",
    "conv_transpose1d",
    "conv_transpose2d",
    "convert",
    "explain",
    "is_supported",
    "onnx_table",
    "ops",
    "override",
    "plan",
    "profile",
    "revert",
    "show_config",
]

_distributed.register_if_loaded()
