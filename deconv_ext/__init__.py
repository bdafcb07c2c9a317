"""Transposed 2D convolution for PyTorch on this project's own CUDA kernels, behind ``torch.ops.deconv``."""

from deconv_ext import _autograd, _fake, _vmap, ops  # noqa: F401 - registrations
from deconv_ext.autotune import autotune
from deconv_ext.functional import conv_transpose2d, show_config
from deconv_ext.inspection import Plan, explain, is_supported, plan
from deconv_ext.modules import ConvTranspose2d, convert
from deconv_ext.override import override
from deconv_ext.profiling import DirectionProfile, LayerProfile, profile

__version__ = "0.1.0"
__all__ = [
    "ConvTranspose2d",
    "DirectionProfile",
    "LayerProfile",
    "Plan",
    "__version__",
    "autotune",
    "conv_transpose2d",
    "convert",
    "explain",
    "is_supported",
    "ops",
    "override",
    "plan",
    "profile",
    "show_config",
]
