"""torch's switch for TF32, and DECONV_KERNELS: what a call asks of its surroundings before it plans."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import relative_error
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import deconv_ext

cudnn = torch.backends.cudnn


@pytest.fixture(autouse=True)
def restored_precisions(strict_float32: None) -> Iterator[None]:
    """Every newer switch as before; strict_float32 takes care of the older ones."""
    switches = (torch.backends, cudnn, cudnn.conv, cudnn.rnn)
    saved = [switch.fp32_precision for switch in switches]
    yield
    for switch, precision in zip(switches, saved, strict=True):
        switch.fp32_precision = precision


def _large() -> tuple[Tensor, Tensor]:
    """Operands of a call that asks, on an H200."""
    return torch.empty(8, 64, 32, 32, device="meta"), torch.empty(64, 64, 3, 3, device="meta")


def _asked_from_python() -> bool:
    return torch.ops.deconv._tf32_allowed()


def _asked_from_cpp() -> bool:
    return deconv_ext.explain(*_large()).startswith("forward float32 (TF32 allowed) input")


# A GPU of another compute capability has nothing to ask for.
tensor_cores = not torch.cuda.is_available() or torch.cuda.get_device_capability(0) >= (8, 0)
ask = [_asked_from_python, *([_asked_from_cpp] if tensor_cores else [])]


@pytest.mark.parametrize("ask", ask)
@pytest.mark.parametrize("allowed", [False, True])
def test_obeys_allow_tf32(ask: Callable[[], bool], allowed: bool) -> None:
    cudnn.allow_tf32 = allowed
    assert ask() == allowed
    cudnn.allow_tf32 = not allowed
    assert ask() != allowed


@pytest.mark.parametrize("ask", ask)
def test_obeys_fp32_precision(ask: Callable[[], bool]) -> None:
    """The switch of convolutions; where it says none, that of cuDNN, then that of everything."""
    cudnn.conv.fp32_precision = "tf32"
    assert ask()
    cudnn.conv.fp32_precision = "ieee"
    assert not ask()
    for switch in (cudnn, torch.backends):
        cudnn.conv.fp32_precision = cudnn.fp32_precision = "none"
        switch.fp32_precision = "tf32"
        assert ask()
        switch.fp32_precision = "ieee"
        assert not ask()


def test_other_switches_do_not_matter() -> None:
    """Not that of matrix products, nor cuDNN's for RNNs, with which torch.backends.cudnn.allow_tf32 raises."""
    torch.backends.cuda.matmul.allow_tf32 = True
    assert not _asked_from_python()
    cudnn.rnn.fp32_precision = "ieee"
    cudnn.conv.fp32_precision = "tf32"
    assert _asked_from_python()
    assert "switch for convolutions allows TF32" in deconv_ext.show_config()
    cudnn.conv.fp32_precision = "ieee"
    assert "switch for convolutions forbids TF32" in deconv_ext.show_config()


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


CONTEXTS: dict[str, Callable[[], AbstractContextManager]] = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "below_autograd": torch._C._AutoDispatchBelowAutograd,
    "dispatch_mode": _Watch,
    "nothing": contextlib.nullcontext,
}


@pytest.mark.parametrize("ask", ask)
@pytest.mark.parametrize("context", CONTEXTS)
def test_answers_in_a_context(context: str, ask: Callable[[], bool]) -> None:
    for allowed in (False, True):
        cudnn.allow_tf32 = allowed
        with CONTEXTS[context]():
            assert ask() == allowed


@pytest.mark.parametrize("ask", ask)
def test_answers_in_a_thread(ask: Callable[[], bool]) -> None:
    answers = []
    for allowed in (False, True):
        cudnn.allow_tf32 = allowed
        thread = threading.Thread(target=lambda: answers.append(ask()))
        thread.start()
        thread.join()
    assert answers == [False, True]


@pytest.mark.parametrize("ask", ask)
@pytest.mark.parametrize("transform", [torch.func.grad, torch.vmap])
def test_answers_in_a_transform(transform: Callable, ask: Callable[[], bool]) -> None:
    x = torch.ones(3) if transform is torch.vmap else torch.ones(())
    for allowed in (False, True):
        cudnn.allow_tf32 = allowed
        assert torch.equal(transform(lambda x: x * ask())(x), torch.full_like(x, allowed))


@torch.library.custom_op("deconv_tests::asked", mutates_args=())
def _asked_as_tensor(x: Tensor) -> Tensor:
    """1 or 0, in the forward and in the gradient."""
    return torch.full_like(x, ask[-1]())


_asked_as_tensor.register_fake(torch.empty_like)
_asked_as_tensor.register_autograd(lambda ctx, grad: _asked_as_tensor(grad))


def test_answers_while_a_compiled_graph_runs() -> None:
    """The switch counts when a graph runs, in its forward and its backward, not when it was traced."""
    x = torch.zeros(3, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: _asked_as_tensor(x) * 1, backend="aot_eager", fullgraph=True)
    for allowed in (False, True, False):
        cudnn.allow_tf32 = allowed
        answer = compiled(x)
        for one in (answer, *torch.autograd.grad(answer.sum(), x)):
            assert torch.equal(one, torch.full_like(one, allowed))


@pytest.mark.gpu
def test_large_calls_ask_on_a_gpu() -> None:
    """The backward asks in autograd's own thread, a captured forward while the graph is captured."""
    cudnn.allow_tf32 = True
    x, w = (torch.randn(t.shape, device="cuda", requires_grad=True) for t in _large())
    assert ("(TF32 allowed)" in deconv_ext.explain(x, w)) == tensor_cores
    reference = [t.detach().double().requires_grad_() for t in (x, w)]
    expected = F.conv_transpose2d(*reference)
    result = deconv_ext.conv_transpose2d(x, w)
    grad = torch.randn_like(result)
    gradients = torch.autograd.grad(result, (x, w), grad)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = deconv_ext.conv_transpose2d(x, w)
    graph.replay()
    assert torch.equal(captured, result)
    of_reference = torch.autograd.grad(expected, reference, grad.double())
    for ours, theirs in zip((result, *gradients), (expected, *of_reference), strict=True):
        assert relative_error(ours, theirs.detach()) < 1e-3


# --- what a process is told once ------------------------------------------------------------------------------------


def _in_a_process(code: str, **variables: str) -> str:
    """What a new Python prints, with these environment variables."""
    command = [sys.executable, "-W", "ignore", "-c", "import torch\n" + code]
    options = {"cwd": Path(deconv_ext.__file__).parents[1], "env": {**os.environ, **variables}, "timeout": 300}
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


EXPLAIN = """
import deconv_ext
x = torch.empty(2, 32, 9, 9, device="meta")
for groups, channels in (32, 1), (1, 8):
    print(deconv_ext.explain(x, torch.empty(32, channels, 3, 3, device="meta"), groups=groups))
"""


def test_the_library_alone_forbids() -> None:
    """Without the Python package there is nobody to read the switch."""
    library = Path(deconv_ext.__file__).parent / "_C.abi3.so"
    code = f"torch.ops.load_library({str(library)!r}); print(torch.ops.deconv._tf32_allowed())"
    assert _in_a_process(code) == "False\n"


def test_the_environment_forbids() -> None:
    """NVIDIA_TF32_OVERRIDE=0, which cuDNN obeys under every setting of torch."""
    code = "import deconv_ext\ntorch.backends.cudnn.allow_tf32 = True\nprint(torch.ops.deconv._tf32_allowed())"
    assert _in_a_process(code, NVIDIA_TF32_OVERRIDE="0") == "False\n"
    assert _in_a_process(code) == "True\n"


def test_allowed_family() -> None:
    depthwise, dense = _in_a_process(EXPLAIN, DECONV_KERNELS="depthwise").split("\n\n")[:2]
    assert "plan: depthwise family" in depthwise
    assert "kernels: DECONV_KERNELS is depthwise\n" in depthwise
    assert "plan: simt family" in dense
    assert "kernels: DECONV_KERNELS is depthwise; refused, so simt serves\n" in dense


def test_older_variable() -> None:
    """Still read, not beside the newer one; of families that are gone nothing is left."""
    text = _in_a_process(EXPLAIN, DECONV_FAMILY="gather,hopper,rows")
    assert "kernels: DECONV_KERNELS is simt, igemm_sm90, wgrad_sm90\n" in text
    text = _in_a_process(EXPLAIN, DECONV_FAMILY="gather", DECONV_KERNELS="-depthwise")
    assert "kernels: DECONV_KERNELS is -depthwise\n" in text
    text = _in_a_process(EXPLAIN, DECONV_FAMILY="direct,rows")
    assert text.count("plan: simt family") == text.count("kernels: DECONV_KERNELS is simt\n") == 2


@pytest.mark.parametrize(
    ("kernels", "advice"),
    [
        ("", "DECONV_FAMILY is deprecated: set DECONV_KERNELS=small_channel"),
        ("-depthwise", "DECONV_FAMILY is deprecated and ignored beside DECONV_KERNELS=-depthwise"),
    ],
)
def test_older_variable_warns_once(kernels: str, advice: str) -> None:
    environment = {**os.environ, "DECONV_FAMILY": "narrow", "DECONV_KERNELS": kernels}
    command = [sys.executable, "-c", "import torch\n" + EXPLAIN]
    options = {"cwd": Path(deconv_ext.__file__).parents[1], "env": environment, "timeout": 300}
    assert subprocess.run(command, capture_output=True, text=True, check=True, **options).stderr.count(advice) == 1


def test_adjacent_channels_are_copied_as_such() -> None:
    """Of (N, T, C) sequences seen as images one column wide, too, although their only column's stride is 1."""
    code = (
        "import deconv_ext\nx = torch.empty(4, 300, 64, device='meta').transpose(1, 2).unsqueeze(-1)\n"
        "weight = torch.empty(64, 3, 4, 1, device='meta')\n"
        "for x in (x, x.contiguous()): print(deconv_ext.explain(x, weight, stride=(2, 1)))"
    )
    text = _in_a_process(code, DECONV_KERNELS="col2im")
    adjacent, apart = (line for line in text.splitlines() if line.startswith("  plan: "))
    assert "plan: col2im" in adjacent
    assert "planes" not in adjacent
    assert "depths of planes" in apart


def test_unknown_family() -> None:
    """Every call raises, not only the first."""
    code = "import deconv_ext\nfor _ in range(2):\n  try: deconv_ext.explain(*[torch.empty(1, 1, 3, 3).to('meta')] * 2)"
    code += "\n  except RuntimeError as error: print(error)"
    expected = (
        "DECONV_KERNELS must list kernel families, or families and options each behind a minus (simt, depthwise, "
    )
    assert _in_a_process(code, DECONV_KERNELS="simt,dense").count(expected) == 2
    names = "col2im, depthwise, direct, gather, hopper, merged, mma, narrow, rows, subpixel"
    expected = f"DECONV_FAMILY must list kernel families ({names}), separated by commas, but got 'gather,dense'"
    assert _in_a_process(code, DECONV_FAMILY="gather,dense").count(expected) == 2
