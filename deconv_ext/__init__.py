"""Transposed 2D convolution for PyTorch on this project's own CUDA kernels, behind ``torch.ops.deconv``."""

from deconv_ext import _autograd, _distributed, _fake, _ops, _vmap, ops  # noqa: F401 - registrations
from deconv_ext.autotune import autotune
from deconv_ext.functional import conv_transpose2d, explain, show_config
from deconv_ext.modules import ConvTranspose2d, convert
from deconv_ext.override import override

__version__ = "0.1.0"
__all__ = [
    "ConvTranspose2d",
    "__version__",
    "autotune",
    "conv_transpose2d",
    "convert",
    "explain",
    "ops",
    "override",
    "show_config",
]

_ops.warn_if_nothing_to_serve()
_distributed.register_if_loaded()
