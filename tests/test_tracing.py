"""Our layers in what walks over models: torch.fx, TorchScript, fusers of quantization, symbolic sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Tracer, symbolic_trace
from torch.nn.utils import parametrizations

import deconv_ext

LAYERS = {
    "1d": lambda: deconv_ext.ConvTranspose1d(4, 3, 3, 2, 1),
    "2d": lambda: deconv_ext.ConvTranspose2d(4, 3, 3, 2, 1),
}
INPUTS = {"1d": (2, 4, 5), "2d": (2, 4, 5, 6)}


@pytest.fixture(params=LAYERS.keys())
def layer_and_input(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    """A layer of ours and what it takes."""
    return LAYERS[request.param](), torch.randn(INPUTS[request.param])


class Up(nn.Module):
    """A decoder's block: upsamples to its skip's size."""

    def __init__(self, up: nn.Module) -> None:
        super().__init__()
        self.up = up

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.up(x, output_size=skip.shape[2:]).relu()


# --- torch.fx -------------------------------------------------------------------------------------------------------


def _called_modules(graph_module: GraphModule) -> list[Any]:
    return [node.target for node in graph_module.graph.nodes if node.op == "call_module"]


def test_leaf_of_symbolic_trace(layer_and_input: tuple[nn.Module, Tensor]) -> None:
    layer, x = layer_and_input
    model = nn.Sequential(layer, nn.ReLU())
    traced = symbolic_trace(model)
    assert _called_modules(traced) == ["0", "1"]
    assert traced.get_submodule("0") is layer
    assert torch.equal(traced(x), model(x))
    node = next(node for node in traced.graph.nodes if node.target == "0")
    assert [kind for _, kind in node.meta["nn_module_stack"].values()] == [type(layer)]


def test_leaf_with_output_size(layer_and_input: tuple[nn.Module, Tensor]) -> None:
    layer, x = layer_and_input
    model = Up(layer)
    traced = symbolic_trace(model)
    assert _called_modules(traced) == ["up"]
    skip = layer(x).repeat_interleave(2, -1)[..., : layer(x).shape[-1] + 1]
    assert torch.equal(traced(x, skip), model(x, skip))


def test_leaf_runs_its_hooks_once(layer_and_input: tuple[nn.Module, Tensor]) -> None:
    layer, x = layer_and_input
    layer.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    layer.register_forward_hook(lambda *args: args[2] * 2)
    expected = layer(x)
    traced = symbolic_trace(nn.Sequential(layer))
    assert _called_modules(traced) == ["0"]
    assert torch.equal(traced(x), expected)


def test_leaf_by_keyword(layer_and_input: tuple[nn.Module, Tensor]) -> None:
    layer, x = layer_and_input

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.up(input=x)

    traced = symbolic_trace(Named())
    assert _called_modules(traced) == ["up"]
    assert torch.equal(traced(x), layer(x))


class Through(Tracer):
    """Looks into every module."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


class Transposed(Tracer):
    """Has transposed convolutions for leaves, and asks by class."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is nn.ConvTranspose2d and module_qualified_name == "0"


@pytest.mark.parametrize(("kind", "expected"), [(Through, []), (Transposed, ["0"])])
def test_tracers_decide(kind: type[Tracer], expected: list[str]) -> None:
    model = nn.Sequential(LAYERS["2d"](), nn.ReLU())
    tracer = kind()
    graph = tracer.trace(model)
    traced = GraphModule(model, graph)
    assert _called_modules(traced) == expected
    if not expected:
        assert any("deconv.conv_transpose2d" in str(node.target) for node in graph.nodes)
    x = torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(traced(x), model(x))
    assert tracer.is_leaf_module(model[0], "0") is False  # asked outside of a trace


def test_subclasses_are_no_leaves() -> None:
    """As torch's own: a user's subclass is looked into."""

    class Own(deconv_ext.ConvTranspose2d):
        pass

    assert _called_modules(symbolic_trace(nn.Sequential(Own(4, 3, 3)))) == []


def test_parametrized_leaf() -> None:
    model = nn.Sequential(parametrizations.weight_norm(deconv_ext.ConvTranspose2d(4, 3, 3)))
    assert _called_modules(symbolic_trace(model)) == ["0"]


# --- quantization's fusers ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dims", ["1d", "2d"])
def test_fuse_modules(dims: str) -> None:
    norm = nn.BatchNorm1d(3) if dims == "1d" else nn.BatchNorm2d(3)
    model = nn.Sequential(LAYERS[dims](), norm)
    x = torch.randn(INPUTS[dims])
    for _ in range(3):
        model(x + 1)
    model.eval()
    fused = torch.ao.quantization.fuse_modules(model, [["0", "1"]])
    assert type(fused[0]) is type(model[0])
    assert type(fused[1]) is nn.Identity
    torch.testing.assert_close(fused(x), model(x))
    assert not torch.equal(fused[0].weight, model[0].weight)


# --- TorchScript ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
def test_script(layer_and_input: tuple[nn.Module, Tensor], device: str) -> None:
    layer, x = layer_and_input
    layer, x = layer.to(device), x.to(device)
    scripted = torch.jit.script(layer)
    assert "deconv::conv_transpose2d" in str(scripted.inlined_graph)
    size = [extent + 1 for extent in layer(x).shape[2:]]
    assert torch.equal(scripted(x), layer(x))
    assert torch.equal(scripted(x[0]), layer(x[0]))
    assert torch.equal(scripted(x, size), layer(x, size))
    scripted(x).sin().sum().backward()
    gradients = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    layer(x).sin().sum().backward()
    for gradient, parameter in zip(gradients, layer.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


# --- symbolic sizes -------------------------------------------------------------------------------------------------


def _block_inputs(dims: str, *extents: int) -> tuple[Tensor, Tensor]:
    """The two inputs of an up-block; output_padding, which the skip's size asks for, is 1 for odd extents."""
    extents = extents[: int(dims[0])]
    skip = [2 * extent - 1 + extent % 2 for extent in extents]
    return torch.randn(2, 4, *extents), torch.randn(2, 3, *skip)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("dims", ["1d", "2d"])
def test_export_with_dynamic_output_size(dims: str, strict: bool) -> None:
    dynamic = {axis + 2: torch.export.Dim.DYNAMIC for axis in range(int(dims[0]))}
    x, skip = _block_inputs(dims, 5, 7)
    for make in (lambda layer: deconv_ext.revert(layer), lambda layer: layer):  # torch's own first
        model = Up(make(LAYERS[dims]()))
        program = torch.export.export(model, (x, skip), dynamic_shapes=(dynamic, dynamic), strict=strict)
        for extents in ((5, 7), (9, 4), (12, 13)):
            other = _block_inputs(dims, *extents)
            torch.testing.assert_close(program.module()(*other), model(*other))


@pytest.mark.parametrize("dims", ["1d", "2d"])
def test_compile_with_dynamic_output_size(dims: str) -> None:
    """As many graphs as torch's own layer takes."""
    counts: list[int] = []
    for make in (lambda layer: deconv_ext.revert(layer), lambda layer: layer):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        model = Up(make(LAYERS[dims]()))
        compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
        for extents in ((5, 7), (9, 4), (12, 13), (6, 6), (3, 8)):
            inputs = _block_inputs(dims, *extents)
            torch.testing.assert_close(compiled(*inputs), model(*inputs))
        counts.append(counter.frame_count)
    assert counts[1] <= counts[0]
