"""Arguments that are symbols while a step is traced: strides, paddings, groups and sizes that follow from shapes."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same_step
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal import optests

import deconv_ext


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    """No graph of another test counts against a recompile limit."""
    torch._dynamo.reset()


# The arguments are the extents of a tensor, for those are symbols where shapes are dynamic: stride, padding,
# output_padding, dilation, groups. Nothing is 0 or 1, which torch takes for constants.
ARGUMENTS = (3, 4, 2, 3, 2, 2, 2, 3, 2)


def _conv_args(extents: tuple[Any, ...]) -> tuple[Any, ...]:
    s_h, s_w, p_h, p_w, op_h, op_w, d_h, d_w, groups = extents
    return (s_h, s_w), (p_h, p_w), (op_h, op_w), groups, (d_h, d_w)


def _forward(x: Tensor, w: Tensor, b: Tensor, carrier: Tensor) -> Tensor:
    return torch.ops.deconv.conv_transpose2d(x, w, b, *_conv_args(carrier.shape))


def _grad_input(gy: Tensor, w: Tensor, like: Tensor, carrier: Tensor) -> Tensor:
    args = _conv_args(carrier.shape)
    return torch.ops.deconv.conv_transpose2d_grad_input(gy, w, (like.shape[2], like.shape[3]), *args)


def _grad_weight(x: Tensor, gy: Tensor, like: Tensor, carrier: Tensor) -> Tensor:
    args = _conv_args(carrier.shape)
    return torch.ops.deconv.conv_transpose2d_grad_weight(x, gy, (like.shape[2], like.shape[3]), *args)


def _backward(gy: Tensor, x: Tensor, w: Tensor, carrier: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.deconv.conv_transpose2d_backward(gy, x, w, *_conv_args(carrier.shape))


def _operands(direction: str, device: str, needs_grad: bool) -> tuple[Tensor, ...]:
    x, w, b = torch.randn(3, 4, 5, 6), torch.randn(4, 3, 3, 2), torch.randn(6)
    gy = torch.randn_like(F.conv_transpose2d(x, w, b, *_conv_args(ARGUMENTS)))
    tensors = {"forward": (x, w, b), "grad_input": (gy, w, x), "grad_weight": (x, gy, w), "backward": (gy, x, w)}
    moved = [one.detach().to(device).requires_grad_(needs_grad) for one in tensors[direction]]
    return *moved, torch.empty(1, device=device).expand(ARGUMENTS)


FUNCTIONS = {"forward": _forward, "grad_input": _grad_input, "grad_weight": _grad_weight, "backward": _backward}


@pytest.mark.parametrize("needs_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("direction", FUNCTIONS)
def test_opcheck_with_symbolic_arguments(direction: str, needs_grad: bool, device: str) -> None:
    """What torch.library.opcheck runs, with every integer a symbol."""
    operands = _operands(direction, device, needs_grad)
    optests.fake_check(FUNCTIONS[direction], operands, {})
    optests.aot_autograd_check(FUNCTIONS[direction], operands, {}, dynamic=True, check_gradients=needs_grad)


@pytest.mark.parametrize("direction", FUNCTIONS)
def test_every_integer_stays_a_symbol(direction: str, device: str) -> None:
    operands = _operands(direction, device, needs_grad=False)
    graph = make_fx(FUNCTIONS[direction], tracing_mode="symbolic")(*operands).graph
    (node,) = (node for node in graph.nodes if str(node.target).startswith("deconv.conv_transpose2d"))
    integers = [one for arg in node.args for one in (arg if isinstance(arg, list) else [arg])]
    assert len(integers) >= 3 + len(ARGUMENTS) - 1
    assert all(isinstance(one, torch.fx.Node) for one in integers)


def _graphs(function: Callable[..., Tensor], dynamic: bool | None, device: str) -> int:
    """How many graphs five training steps take, each with other sizes and another kernel."""

    def forward(x: Tensor, w: Tensor, stride: int) -> Tensor:
        return function(x, w, None, stride, w.shape[2] // 2)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(forward, fullgraph=True, dynamic=dynamic, backend=counter)
    # No two extents of the first step are equal: torch would take them for one symbol.
    for batch, size, kernel, stride in ((8, 10, 7, 2), (3, 6, 5, 2), (4, 7, 7, 3), (5, 9, 5, 2), (6, 8, 9, 4)):
        x = torch.randn(batch, 4, size, size + 1, device=device)
        w = torch.randn(4, 3, kernel, kernel, device=device)
        ours, eager = (functools.partial(run, stride=stride) for run in (compiled, forward))
        assert_same_step(ours, eager, x, w, rtol=1e-4, atol=1e-4)  # sums in another order
    return counter.frame_count


CALLS = {"function": deconv_ext.conv_transpose2d, "operator": torch.ops.deconv.conv_transpose2d}


@pytest.mark.parametrize(("call", "dynamic"), [("function", True), ("operator", True), ("function", None)], ids=str)
def test_a_step_compiles_as_often_as_torchs(call: str, dynamic: bool | None, device: str) -> None:
    theirs = _graphs(F.conv_transpose2d, dynamic, device)
    torch._dynamo.reset()
    assert _graphs(CALLS[call], dynamic, device) <= theirs


def test_plain_integers_in_a_compiled_call_of_the_operator(device: str) -> None:
    x, w = torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    compiled = torch.compile(lambda x, w: torch.ops.deconv.conv_transpose2d(x, w, None, 2, 1), backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), F.conv_transpose2d(x, w, None, 2, 1))
