"""DTensor, DDP and FSDP2: values and gradients of several processes equal those of one.

CPU processes on gloo always; two GPUs on nccl where there are two.
"""

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import Ranks
from torch import Tensor, nn

import deconv_ext

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
]

EXACT = {"rtol": 1e-11, "atol": 1e-11}
GEOMETRY = {"stride": (2, 3), "padding": (1, 2), "output_padding": (1, 0), "dilation": (1, 2)}


def _ranks(backend: str, count: int) -> Iterator[Ranks]:
    if backend == "nccl" and torch.cuda.device_count() < count:
        pytest.skip(f"{torch.cuda.device_count()} CUDA devices, {count} needed")
    ranks = Ranks(backend, count)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def two(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two ranks."""
    yield from _ranks(request.param, 2)


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    """Four ranks on the CPU."""
    yield from _ranks("gloo", 4)


# -- DTensor. These functions run on each rank.


def _mesh(device: str, shape: tuple[int, ...]) -> Any:
    from torch.distributed.tensor import init_device_mesh

    return init_device_mesh(device.partition(":")[0], shape)


def _placed(tensor: Tensor, mesh: Any, text: str) -> Any:
    """`tensor` placed by `text`: for each mesh dimension R, S and a dimension, or P (parts that differ)."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    placements = [Shard(int(word[1:])) if word[0] == "S" else Replicate() for word in text.split()]
    part = distribute_tensor(tensor, mesh, placements).to_local()
    for axis, word in enumerate(text.split()):
        if word == "P":
            part = part * (1.5 if mesh.get_local_rank(axis) == 0 else -0.5 / (mesh.size(axis) - 1))
            placements[axis] = Partial()
    return DTensor.from_local(part, mesh, placements, shape=tensor.shape, stride=tensor.stride())


def _text(tensor: Any) -> str:
    """The inverse of `_placed`."""
    return " ".join(f"S{p.dim}" if p.is_shard() else "P" if p.is_partial() else "R" for p in tensor.placements)


def _operands(device: str, input: tuple[int, ...], weight: tuple[int, ...], groups: int) -> tuple[Tensor, ...]:
    shapes = (input, weight, (weight[1] * groups,))
    return tuple(torch.randn(shape, dtype=torch.float64, device=device) for shape in shapes)


def _compare(
    device: str, mesh: tuple[int, ...], placed: tuple[str, ...], input: Any, weight: Any, groups: int
) -> tuple[str, ...]:
    """One layer, forward and backward, on DTensors and on one device; the placements of the output and gradients."""
    plain = [t.requires_grad_() for t in _operands(device, input, weight, groups)[: len(placed)]]
    expected = F.conv_transpose2d(*plain, groups=groups, **GEOMETRY)
    cotangent = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, plain, cotangent)

    device_mesh = _mesh(device, mesh)
    parts = [_placed(t.detach(), device_mesh, text).requires_grad_() for t, text in zip(plain, placed, strict=True)]
    output = deconv_ext.conv_transpose2d(*parts, groups=groups, **GEOMETRY)
    torch.testing.assert_close(output.full_tensor(), expected, **EXACT)
    assert output.stride() == expected.stride()
    output.backward(_placed(cotangent, device_mesh, _text(output).replace("P", "R")))
    for part, gradient in zip(parts, gradients, strict=True):
        torch.testing.assert_close(part.grad.full_tensor(), gradient, **EXACT)
    return (_text(output), *(_text(part.grad) for part in parts))


INPUT, WEIGHT = (4, 4, 5, 6), (4, 6, 3, 4)

# operands' placements, those of the output and of the gradients; shapes of input and weight, groups
PLACED = {
    "replicated": ("R R R", "R R R R", INPUT, WEIGHT, 1),
    "samples": ("S0 R R", "S0 S0 P P", INPUT, WEIGHT, 1),
    "output channels": ("R S1 S0", "S1 P S1 S0", INPUT, WEIGHT, 1),
    "output channels, bias replicated": ("R S1 R", "S1 P S1 S0", INPUT, WEIGHT, 1),
    "input channels": ("S1 S0 R", "P S1 S0 R", INPUT, WEIGHT, 1),
    "input channels, input replicated": ("R S0 R", "P S1 S0 R", INPUT, WEIGHT, 1),
    "input channels, no bias": ("S1 S0", "P S1 S0", INPUT, WEIGHT, 1),
    "partial sums": ("P R R", "P R P R", INPUT, WEIGHT, 1),
    "partial sums of the weight": ("R P R", "P P R R", INPUT, WEIGHT, 1),
    "partial sums of both": ("P P P", None, INPUT, WEIGHT, 1),
    "unlike": ("S0 S1 R", None, INPUT, WEIGHT, 1),
    "columns": ("S3 S2 S0", None, INPUT, WEIGHT, 1),
    "uneven samples": ("S0 R R", "S0 S0 P P", (3, 4, 5, 6), WEIGHT, 1),
    "uneven output channels": ("R S1 S0", "S1 P S1 S0", INPUT, (4, 3, 3, 4), 1),
    "one output channel": ("R S1 S0", None, INPUT, (4, 1, 3, 4), 1),
    "unbatched": ("S0 S0 R", "P S0 S0 R", INPUT[1:], WEIGHT, 1),
    "whole groups": ("S1 S0 S0", "S1 S1 S0 S0", (2, 8, 5, 6), (8, 3, 3, 4), 4),
    "whole groups, weight sharded": ("R S0 R", "S1 S1 S0 S0", (2, 8, 5, 6), (8, 3, 3, 4), 4),
    "whole groups, unbatched": ("S0 R R", "S0 S0 S0 S0", (8, 5, 6), (8, 3, 3, 4), 4),
    "depthwise": ("S1 S0 S0", "S1 S1 S0 S0", INPUT, (4, 1, 3, 4), 4),
    "groups cut": ("S1 S0 S0", "S0 S0 P P", (2, 6, 5, 6), (6, 2, 3, 4), 3),
    "groups cut, unbatched": ("S0 S0 S0", "R R R R", (6, 5, 6), (6, 2, 3, 4), 3),
    "groups cut by output channels": ("R S1 R", None, (2, 8, 5, 6), (8, 2, 3, 4), 4),
    "groups, samples": ("S0 R R", "S0 S0 P P", (2, 6, 5, 6), (6, 2, 3, 4), 3),
}


@pytest.mark.parametrize("name", PLACED)
def test_placements(two: Ranks, name: str) -> None:
    operands, results, *shapes = PLACED[name]
    found = two.run(_compare, (2,), tuple(operands.split()), *shapes)
    assert found[0] == found[1]
    if results is not None:
        assert found[0] == tuple(results.split())


PLACED_2D = {
    "samples and output channels": ("S0 R|R S1|R S0", "S0 S1|S0 P|P S1|P S0", INPUT, WEIGHT, 1),
    "samples and input channels": ("S0 S1|R S0|R R", "S0 P|S0 S1|P S0|P R", INPUT, WEIGHT, 1),
    "input and output channels": ("S1 R|S0 S1|R S0", "P S1|S1 P|S0 S1|R S0", INPUT, WEIGHT, 1),
    "samples twice": ("S0 S0|R R|R R", "S0 S0|S0 S0|P P|P P", INPUT, WEIGHT, 1),
    "input channels twice": ("S1 S1|S0 S0|R R", "P P|S1 S1|S0 S0|R R", INPUT, WEIGHT, 1),
    "groups twice": ("S1 S1|S0 S0|S0 S0", "S1 S1|S1 S1|S0 S0|S0 S0", (2, 4, 5, 6), (4, 2, 3, 4), 4),
    "groups once": ("S1 S1|S0 S0|S0 S0", "S1 S0|S1 S0|S0 P|S0 P", (2, 4, 5, 6), (4, 2, 3, 4), 2),
    "uneven samples twice": ("S0 S0|R R|R R", None, (3, 4, 5, 6), WEIGHT, 1),
    "partial sums and samples": ("P S0|R R|R R", "P S0|R S0|P P|R P", INPUT, WEIGHT, 1),
}


@pytest.mark.parametrize("name", PLACED_2D)
def test_placements_on_a_2d_mesh(four: Ranks, name: str) -> None:
    operands, results, *shapes = PLACED_2D[name]
    found = four.run(_compare, (2, 2), tuple(operands.split("|")), *shapes)
    assert results is None or found[0] == tuple(results.split("|"))


def test_fewer_samples_than_ranks(four: Ranks) -> None:
    """No rank gets an empty shard: another index is split."""
    assert four.run(_compare, (4,), ("S0", "R", "R"), (3, 4, 5, 6), WEIGHT, 1)[0] == ("P", "S1", "S0", "R")


def _compare_gradients(device: str, placed: tuple[str, str, str]) -> list[str]:
    """The three gradient operators, called with (grad_output, input, weight) as `placed`."""
    input, weight, _ = _operands(device, INPUT, WEIGHT, 1)
    args = (GEOMETRY["stride"], GEOMETRY["padding"], GEOMETRY["output_padding"], 1, GEOMETRY["dilation"])
    grad_output = torch.randn_like(torch.ops.deconv.conv_transpose2d(input, weight, None, *args))
    plain = (grad_output, input, weight)
    mesh = _mesh(device, (2,))
    parts = [_placed(tensor, mesh, text) for tensor, text in zip(plain, placed, strict=True)]

    def gradients(grad_output: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.ops.deconv.conv_transpose2d_grad_input(grad_output, weight, INPUT[2:], *args),
            torch.ops.deconv.conv_transpose2d_grad_weight(input, grad_output, WEIGHT[2:], *args),
            *torch.ops.deconv.conv_transpose2d_backward(grad_output, input, weight, *args),
        )

    results = gradients(*parts)
    for result, expected in zip(results, gradients(*plain), strict=True):
        torch.testing.assert_close(result.full_tensor(), expected, **EXACT)
    return [_text(result) for result in results]


@pytest.mark.parametrize(
    ("placed", "results"),
    [
        ("R R R", "R R R R"),
        ("S0 S0 R", "S0 P S0 P"),
        ("S1 R S1", "P S1 P S1"),
        ("R S1 S0", "S1 S0 S1 S0"),
        ("P R R", "P P P P"),
        ("R P R", "R P R P"),
        ("R R P", "P R P R"),
    ],
)
def test_gradient_operators(two: Ranks, placed: str, results: str) -> None:
    assert two.run(_compare_gradients, tuple(placed.split()))[0] == results.split()


def _gradient_penalty(device: str, placed: tuple[str, ...]) -> None:
    plain = [t.requires_grad_() for t in _operands(device, INPUT, WEIGHT, 1)]
    mesh = _mesh(device, (2,))
    parts = [_placed(t.detach(), mesh, text).requires_grad_() for t, text in zip(plain, placed, strict=True)]
    for operands, function in ((plain, F.conv_transpose2d), (parts, deconv_ext.conv_transpose2d)):
        loss = function(*operands, **GEOMETRY).square().sum()
        (slope,) = torch.autograd.grad(loss, operands[0], create_graph=True)
        slope.square().sum().backward()
    for part, tensor in zip(parts, plain, strict=True):
        torch.testing.assert_close(part.grad.full_tensor(), tensor.grad, **EXACT)


@pytest.mark.parametrize("placed", ["S0 R R", "R S1 S0", "S1 S0 R"])
def test_gradient_of_a_gradient(two: Ranks, placed: str) -> None:
    two.run(_gradient_penalty, tuple(placed.split()))


def _layers() -> nn.Sequential:
    layers = nn.Sequential(nn.ConvTranspose2d(4, 6, 4, 2, 1), nn.Tanh(), nn.ConvTranspose2d(6, 3, 3, 2, 1, 1))
    return deconv_ext.convert(layers.double())


def _trained(model: nn.Module, step: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    """The third output."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        output = step(input)
        output.square().mean().backward()
        optimizer.step()
    return output


def _tensor_parallel(device: str, compiled: bool) -> None:
    """Two layers, the first sharded by output channels and the second by input channels, for some steps."""
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    mesh = _mesh(device, (2,))

    def shard(name: str, module: nn.Module, mesh: Any) -> None:
        if name in ("0", "2"):
            weight, bias = (Shard(1), Shard(0)) if name == "0" else (Shard(0), Replicate())
            for key, placement in (("weight", weight), ("bias", bias)):
                whole = getattr(module, key).detach()
                module.register_parameter(key, nn.Parameter(distribute_tensor(whole, mesh, [placement])))

    plain = _layers().to(device)
    parallel = copy.deepcopy(plain)
    distribute_module(parallel, mesh, shard)
    x = torch.randn(INPUT, dtype=torch.float64, device=device)
    _trained(plain, plain, x)
    step = torch.compile(parallel, backend="aot_eager", fullgraph=True) if compiled else parallel
    _trained(parallel, step, _placed(x, mesh, "R"))
    for part, whole in zip(parallel.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(part.full_tensor(), whole, **EXACT)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_tensor_parallel_training(two: Ranks, compiled: bool) -> None:
    two.run(_tensor_parallel, compiled)


def _symbolic(device: str) -> int:
    from torch._dynamo.testing import CompileCounterWithBackend

    mesh = _mesh(device, (2,))
    weight = torch.randn(WEIGHT, dtype=torch.float64, device=device).requires_grad_()
    part = _placed(weight.detach(), mesh, "R").requires_grad_()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter, fullgraph=True, dynamic=True)
    def layer(input: Tensor) -> Tensor:
        return deconv_ext.conv_transpose2d(input, part, None, 2, 1)

    for size in (7, 9, 11):
        input = torch.randn(4, 4, size, size + 1, dtype=torch.float64, device=device)
        expected = F.conv_transpose2d(input, weight, None, 2, 1)
        output = layer(_placed(input, mesh, "S0"))
        torch.testing.assert_close(output.full_tensor(), expected, **EXACT)
        (gradient,) = torch.autograd.grad(expected.sum(), weight)
        (part_gradient,) = torch.autograd.grad(output.sum(), part)
        torch.testing.assert_close(part_gradient.full_tensor(), gradient, **EXACT)
    return counter.frame_count


def test_symbolic_sizes(two: Ranks) -> None:
    """One graph serves every size; no bias: the backward of its sum is beyond DTensor here."""
    assert two.run(_symbolic) == [1, 1]


def _modes(device: str) -> list[Any]:
    """Under autocast, and with a plain weight where replication is implicit."""
    from torch.distributed.tensor.experimental import implicit_replication

    input, weight, bias = (tensor.float() for tensor in _operands(device, INPUT, WEIGHT, 1))
    mesh = _mesh(device, (2,))
    part = _placed(input, mesh, "S0")
    with torch.autocast(mesh.device_type, dtype=torch.bfloat16):
        output = deconv_ext.conv_transpose2d(part, _placed(weight, mesh, "R"), _placed(bias, mesh, "R"), stride=2)
        expected = deconv_ext.conv_transpose2d(input, weight, bias, stride=2)
    torch.testing.assert_close(output.full_tensor(), expected)
    with implicit_replication():
        return [_text(output), output.dtype, _text(deconv_ext.conv_transpose2d(part, weight))]


def test_autocast_and_implicit_replication(two: Ranks) -> None:
    assert two.run(_modes) == [["S0", torch.bfloat16, "S0"]] * 2


def _outside_the_mesh(device: str) -> list[Any]:
    from torch.distributed.tensor import DeviceMesh

    mesh = DeviceMesh(device.partition(":")[0], [0, 1])
    input, weight, bias = _operands(device, INPUT, WEIGHT, 1)
    parts = [
        _placed(tensor, mesh, text).requires_grad_() for tensor, text in ((input, "S0"), (weight, "R"), (bias, "R"))
    ]
    output = deconv_ext.conv_transpose2d(*parts, stride=2)
    output.sum().backward()
    return [tuple(output.shape), _text(output), tuple(output.to_local().shape), tuple(parts[1].grad.shape)]


def test_ranks_outside_the_mesh(four: Ranks) -> None:
    """They hold nothing, but know shapes and placements."""
    found = four.run(_outside_the_mesh)
    whole = (4, 6, 11, 14)
    assert found[:2] == [[whole, "S0", (2, *whole[1:]), WEIGHT]] * 2
    assert found[2:] == [[whole, "S0", (0,), WEIGHT]] * 2


# -- What cannot be served


def _error(device: str, name: str) -> str:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import _MaskPartial

    mesh = _mesh(device, (2,))
    input, weight, bias = _operands(device, INPUT, WEIGHT, 1)
    parts = [_placed(tensor, mesh, "R") for tensor in (input, weight, bias)]
    if name == "plain":
        parts[2] = bias
    elif name == "mesh":
        parts[1] = _placed(weight, _mesh(device, (2, 1)), "R R")
    elif name == "kind":
        parts[0] = DTensor.from_local(input, mesh, [_MaskPartial(offset_shape=INPUT, offset_dim=0)])
    elif name == "channels":
        parts[1] = _placed(weight.new_ones(5, 6, 3, 4), mesh, "S0")
    elif name == "bias":
        parts[2] = _placed(weight.new_ones(7), mesh, "S0")
    with pytest.raises(RuntimeError) as caught:
        deconv_ext.conv_transpose2d(*parts)
    assert _text(deconv_ext.conv_transpose2d(*[_placed(t, mesh, "R") for t in (input, weight, bias)])) == "R"
    return str(caught.value)


MESSAGES = {
    "plain": "deconv::conv_transpose2d: bias is a plain tensor next to DTensors.*distribute_tensor",
    "mesh": r"deconv::conv_transpose2d: weight is on.*\(2, 1\).*it must be on.*\(2,\)",
    "kind": r"deconv::conv_transpose2d: input is placed as \(_MaskPartial.*must be Replicate\(\), Shard\(dim\) or Par",
    "channels": r"\[4, 4, 5, 6\].*\[5, 6, 3, 4\]",
    "bias": r"bias must be 1-D with 6 elements.*\[7\]",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_errors_name_what_is_possible(two: Ranks, name: str) -> None:
    """On every rank alike, with the sizes of the whole tensors; the next call works."""
    texts = two.run(_error, name)
    assert texts[0] == texts[1]
    assert re.search(MESSAGES[name], texts[0], re.DOTALL), texts[0]


_FIRST_USE = """
import sys, warnings
import torch
before = "torch.distributed.tensor" in sys.modules
warnings.simplefilter("ignore")
import deconv_ext
assert ("torch.distributed.tensor" in sys.modules) == before, "loaded at import"
import torch.distributed as dist
from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
x, weight = (distribute_tensor(torch.ones(2, 2, 3, 3), mesh, [Replicate()]) for _ in range(2))
with torch.inference_mode():
    assert deconv_ext.conv_transpose2d(x, weight).full_tensor().max() == 18
dist.destroy_process_group()
"""


def test_import_leaves_dtensor_alone() -> None:
    """DTensor's module, which is slow to import, is not loaded; a first call in inference mode is served too."""
    result = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


# -- Data parallel


def _data_parallel(device: str, kind: str) -> None:
    """Gradients and steps of a net whose ranks have half the batch each, and of one process with all of it."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    rank, count = dist.get_rank(), dist.get_world_size()
    plain = _layers().to(device)
    parallel: Any = copy.deepcopy(plain)
    if kind == "ddp":
        parallel = DistributedDataParallel(parallel)
    else:
        for layer in (parallel[0], parallel[2], parallel):
            fully_shard(layer, mesh=_mesh(device, (count,)))
    x = torch.randn(2 * count, *INPUT[1:], dtype=torch.float64, device=device)
    mine = slice(2 * rank, 2 * rank + 2)
    expected, output = _trained(plain, plain, x)[mine], _trained(parallel, parallel, x[mine])
    torch.testing.assert_close(output, expected, **EXACT)
    for part, whole in zip(parallel.parameters(), plain.parameters(), strict=True):
        for ours, one in ((part, whole), (part.grad, whole.grad)):
            torch.testing.assert_close(ours.full_tensor() if kind == "fsdp" else ours, one, **EXACT)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_data_parallel(two: Ranks, kind: str) -> None:
    two.run(_data_parallel, kind)
