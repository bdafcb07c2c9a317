"""torch's switch for TF32, and DECONV_KERNELS: what a call asks of its surroundings before it plans."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


def _within(context: Callable[[], AbstractContextManager]) -> Callable[[Callable[[], bool]], bool]:
    def asked(ask: Callable[[], bool]) -> bool:
        with context():
            return ask()

    return asked


def _in_a_thread(ask: Callable[[], bool]) -> bool:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


PLACES: dict[str, Callable[[Callable[[], bool]], bool]] = {
    "anywhere": lambda ask: ask(),
    "inference_mode": _within(torch.inference_mode),
    "no_grad": _within(torch.no_grad),
    "autocast": _within(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "below_autograd": _within(torch._C._AutoDispatchBelowAutograd),
    "dispatch_mode": _within(_Watch),
    "thread": _in_a_thread,
    "grad": lambda ask: bool(torch.func.grad(lambda x: x * ask())(torch.ones(()))),
    "vmap": lambda ask: bool(torch.vmap(lambda x: x * ask())(torch.ones(3)).all()),
}


@pytest.mark.parametrize("ask", ask)
@pytest.mark.parametrize("place", PLACES)
def test_obeys_allow_tf32(place: str, ask: Callable[[], bool]) -> None:
    """Whatever the call is in."""
    for allowed in (False, True, False):
        cudnn.allow_tf32 = allowed
        assert PLACES[place](ask) == allowed


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


def _in_a_process(code: str, **variables: str) -> str:
    """What a new Python prints and warns of, with these environment variables."""
    return subprocess.run(
        [sys.executable, "-c", "import torch\n" + code], cwd=Path(deconv_ext.__file__).parents[1],
        env={**os.environ, **variables}, timeout=300, text=True, check=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ).stdout  # fmt: skip


EXPLAIN = """
import deconv_ext
x = torch.empty(2, 32, 9, 9, device="meta")
for groups, channels in (32, 1), (1, 8):
    print(deconv_ext.explain(x, torch.empty(32, channels, 3, 3, device="meta"), groups=groups))
"""


def test_the_library_alone_and_the_environment_forbid() -> None:
    """Without the Python package nobody reads the switch; NVIDIA_TF32_OVERRIDE=0 overrules it, for cuDNN too."""
    ask = "torch.backends.cudnn.allow_tf32 = True\nprint('allowed:', torch.ops.deconv._tf32_allowed())"
    library = Path(deconv_ext.__file__).parent / "_C.abi3.so"
    assert "allowed: False" in _in_a_process(f"torch.ops.load_library({str(library)!r})\n{ask}")
    for variables, allowed in (({"NVIDIA_TF32_OVERRIDE": "0"}, False), ({}, True)):
        assert f"allowed: {allowed}" in _in_a_process(f"import deconv_ext\n{ask}", **variables)


def test_allowed_family() -> None:
    depthwise, dense = _in_a_process(EXPLAIN, DECONV_KERNELS="depthwise").split("\n\n")[:2]
    assert "plan: depthwise family" in depthwise
    assert "kernels: DECONV_KERNELS is depthwise\n" in depthwise
    assert "plan: simt family" in dense
    assert "kernels: DECONV_KERNELS is depthwise; refused, so simt serves\n" in dense


@pytest.mark.parametrize(
    ("variables", "read_as", "advice"),
    [
        ({"DECONV_FAMILY": "gather,hopper,rows"}, "simt, igemm_sm90, wgrad_sm90", "is deprecated: set"),
        ({"DECONV_FAMILY": "narrow"}, "", "is deprecated: set DECONV_KERNELS=small_channel"),
        ({"DECONV_FAMILY": "direct,rows"}, "simt", "is deprecated: set"),
        (
            {"DECONV_FAMILY": "gather", "DECONV_KERNELS": "-depthwise"}, "-depthwise",
            "is deprecated and ignored beside DECONV_KERNELS=-depthwise",
        ),
    ],
)  # fmt: skip
def test_older_variable(variables: dict[str, str], read_as: str, advice: str) -> None:
    """Read where the newer one is not set, with a warning; of families that are gone nothing is left."""
    text = _in_a_process(EXPLAIN, **{"DECONV_KERNELS": "", **variables})
    assert text.count(f"DECONV_FAMILY {advice}") == 1
    assert f"kernels: DECONV_KERNELS is {read_as}" in text
    assert read_as != "simt" or text.count("plan: simt family") == 2


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
    text = _in_a_process(code, DECONV_KERNELS="simt,dense")
    assert text.count("DECONV_KERNELS must list kernel families, or families and options each behind a minus (") == 2
    names = "col2im, depthwise, direct, gather, hopper, merged, mma, narrow, rows, subpixel"
    expected = f"DECONV_FAMILY must list kernel families ({names}), separated by commas, but got 'gather,dense'"
    assert _in_a_process(code, DECONV_FAMILY="gather,dense").count(expected) == 2
