"""Our layers in what walks over models: torch.fx, TorchScript, fusers of quantization, symbolic sizes."""

import functools
from typing import Any

import pytest
import torch
from helpers import KINDS, Kind, assert_same_step, every_kind
from torch import Tensor, nn
from torch.fx import GraphModule, Tracer, symbolic_trace
from torch.nn.utils import parametrizations

import deconv_ext


class Up(nn.Module):
    """A decoder's block: upsamples to its skip's size."""

    def __init__(self, up: nn.Module) -> None:
        super().__init__()
        self.up = up

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.up(x, output_size=skip.shape[2:]).relu()


def _called_modules(graph_module: GraphModule) -> list[Any]:
    return [node.target for node in graph_module.graph.nodes if node.op == "call_module"]


def _layer(kind: Kind) -> tuple[nn.Module, Tensor]:
    return kind.layer(4, 3, 3, 2, 1), torch.randn(kind.x)


@every_kind
def test_leaf_of_symbolic_trace(kind: Kind) -> None:
    """By position or keyword; its hooks run once."""
    layer, x = _layer(kind)
    layer.register_forward_pre_hook(lambda _, args: (args[0] + 1,) if args else None)
    layer.register_forward_hook(lambda *args: args[2] * 2)
    model = nn.Sequential(layer, nn.ReLU())
    traced = symbolic_trace(model)
    assert _called_modules(traced) == ["0", "1"]
    assert traced.get_submodule("0") is layer
    assert torch.equal(traced(x), model(x))
    node = next(node for node in traced.graph.nodes if node.target == "0")
    assert [kind for _, kind in node.meta["nn_module_stack"].values()] == [type(layer)]

    class Named(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[0](input=x)

    traced = symbolic_trace(Named(layer))
    assert _called_modules(traced) == ["0"]
    assert torch.equal(traced(x), layer(input=x))


@every_kind
def test_leaf_with_output_size(kind: Kind) -> None:
    layer, x = _layer(kind)
    model = Up(layer)
    traced = symbolic_trace(model)
    assert _called_modules(traced) == ["up"]
    skip = layer(x).repeat_interleave(2, -1)[..., : layer(x).shape[-1] + 1]
    assert torch.equal(traced(x, skip), model(x, skip))


class Through(Tracer):
    """Looks into every module."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


class Transposed(Tracer):
    """Has transposed convolutions for leaves, and asks by class."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is nn.ConvTranspose2d and module_qualified_name == "0"


@pytest.mark.parametrize(("tracer", "expected"), [(Through(), []), (Transposed(), ["0"])])
def test_tracers_decide(tracer: Tracer, expected: list[str]) -> None:
    layer, x = _layer(KINDS["2d"])
    model = nn.Sequential(layer, nn.ReLU())
    graph = tracer.trace(model)
    traced = GraphModule(model, graph)
    assert _called_modules(traced) == expected
    if not expected:
        assert any("deconv.conv_transpose2d" in str(node.target) for node in graph.nodes)
    torch.testing.assert_close(traced(x), model(x))
    assert tracer.is_leaf_module(model[0], "0") is False  # asked outside of a trace


def test_parametrized_layers_are_leaves_and_subclasses_are_not() -> None:
    """As torch's own: a user's subclass is looked into."""

    class Own(deconv_ext.ConvTranspose2d):
        pass

    assert _called_modules(symbolic_trace(nn.Sequential(Own(4, 3, 3)))) == []
    model = nn.Sequential(parametrizations.weight_norm(deconv_ext.ConvTranspose2d(4, 3, 3)))
    assert _called_modules(symbolic_trace(model)) == ["0"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@every_kind
def test_fuse_modules(kind: Kind) -> None:
    layer, x = _layer(kind)
    model = nn.Sequential(layer, nn.BatchNorm1d(3) if x.dim() == 3 else nn.BatchNorm2d(3))
    for _ in range(3):
        model(x + 1)
    model.eval()
    fused = torch.ao.quantization.fuse_modules(model, [["0", "1"]])
    assert type(fused[0]) is type(model[0])
    assert type(fused[1]) is nn.Identity
    torch.testing.assert_close(fused(x), model(x))
    assert not torch.equal(fused[0].weight, model[0].weight)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
@every_kind
def test_script(kind: Kind, device: str) -> None:
    layer, x = (one.to(device) for one in _layer(kind))
    scripted = torch.jit.script(layer)
    assert "deconv::conv_transpose2d" in str(scripted.inlined_graph)
    size = [extent + 1 for extent in layer(x).shape[2:]]
    for args in ((x,), (x[0],), (x, size)):
        assert torch.equal(scripted(*args), layer(*args))
    gradients = []
    for module in (scripted, layer):
        layer.zero_grad()
        module(x).sin().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    torch.testing.assert_close(*gradients)


def _block_inputs(kind: Kind, *extents: int, inner: bool = False) -> tuple[Tensor, Tensor]:
    """The two inputs of an up-block; output_padding, which the skip's size asks for, is 1 for odd extents."""
    extents = extents[: len(kind.x) - 2]
    skip = torch.randn(2, 3, *(2 * extent - 1 + extent % 2 for extent in extents))
    return torch.randn(2, *extents, 4).movedim(-1, 1) if inner else torch.randn(2, 4, *extents), skip


def _blocks(kind: Kind) -> list[Up]:
    """Torch's own, which sets the bar, and ours."""
    return [Up(kind.torchs(4, 3, 3, 2, 1)), Up(kind.layer(4, 3, 3, 2, 1))]


@every_kind
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non_strict"])
@pytest.mark.parametrize("inner", [False, True], ids=["contiguous", "channels_innermost"])
def test_export_with_dynamic_output_size(inner: bool, strict: bool, kind: Kind) -> None:
    dynamic = dict.fromkeys(range(2, len(kind.x)), torch.export.Dim.DYNAMIC)
    for model in _blocks(kind):
        inputs = _block_inputs(kind, 5, 7, inner=inner)
        program = torch.export.export(model, inputs, dynamic_shapes=(dynamic, dynamic), strict=strict)
        for extents in ((5, 7), (9, 4), (12, 13)):
            other = _block_inputs(kind, *extents, inner=inner)
            torch.testing.assert_close(program.module()(*other), model(*other))
    assert any("deconv.conv_transpose2d" in str(node.target) for node in program.graph.nodes)


@every_kind
def test_compile_with_dynamic_output_size(kind: Kind) -> None:
    """As many graphs as torch's own layer takes."""
    counts: list[int] = []
    for model in _blocks(kind):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
        for extents in ((5, 7), (9, 4), (12, 13), (6, 6), (3, 8)):
            x, skip = _block_inputs(kind, *extents)
            assert_same_step(functools.partial(compiled, skip=skip), functools.partial(model, skip=skip), x)
        counts.append(counter.frame_count)
    assert any("deconv.conv_transpose2d" in str(node.target) for node in counter.graphs[0].graph.nodes)
    assert counts[1] <= counts[0]
