"""The operators of ``torch.ops.deconv``, under names whose signatures type checkers know (``ops.pyi``).

``deconv_ext.ops.conv_transpose2d`` is ``torch.ops.deconv.conv_transpose2d`` itself, and so are the others.
"""

import torch

autotune = torch.ops.deconv.autotune
build_info = torch.ops.deconv.build_info
conv_transpose2d = torch.ops.deconv.conv_transpose2d
conv_transpose2d_backward = torch.ops.deconv.conv_transpose2d_backward
conv_transpose2d_grad_input = torch.ops.deconv.conv_transpose2d_grad_input
conv_transpose2d_grad_weight = torch.ops.deconv.conv_transpose2d_grad_weight
explain = torch.ops.deconv.explain
has_kernels = torch.ops.deconv.has_kernels
