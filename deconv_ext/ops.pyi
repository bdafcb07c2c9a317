# The schemas of csrc/ops.cpp; tests/test_registration.py compares them. torch.ops itself cannot be annotated from here.

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

_Pair = int | Sequence[int]
_Direction = Literal["forward", "grad_input", "grad_weight"]

def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Pair = 1,
    padding: _Pair = 0,
    output_padding: _Pair = 0,
    groups: int = 1,
    dilation: _Pair = 1,
) -> Tensor: ...
def conv_transpose2d_grad_input(
    grad_output: Tensor,
    weight: Tensor,
    input_size: _Pair,
    stride: _Pair = 1,
    padding: _Pair = 0,
    output_padding: _Pair = 0,
    groups: int = 1,
    dilation: _Pair = 1,
) -> Tensor: ...
def conv_transpose2d_grad_weight(
    input: Tensor,
    grad_output: Tensor,
    kernel_size: _Pair,
    stride: _Pair = 1,
    padding: _Pair = 0,
    output_padding: _Pair = 0,
    groups: int = 1,
    dilation: _Pair = 1,
) -> Tensor: ...
def conv_transpose2d_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: _Pair = 1,
    padding: _Pair = 0,
    output_padding: _Pair = 0,
    groups: int = 1,
    dilation: _Pair = 1,
) -> tuple[Tensor, Tensor]: ...
def explain(
    first: Tensor,
    second: Tensor,
    bias: Tensor | None = None,
    stride: _Pair = 1,
    padding: _Pair = 0,
    output_padding: _Pair = 0,
    groups: int = 1,
    dilation: _Pair = 1,
    direction: _Direction = "forward",
    size: Sequence[int] = (),
    json: bool = False,
) -> str: ...
def autotune(candidates: int) -> int: ...
def has_kernels(device: int) -> bool: ...
def build_info() -> str: ...
