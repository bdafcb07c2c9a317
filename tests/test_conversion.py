"""convert() and revert(): what they turn, keep, refuse and tell."""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import OPERATOR, Kind, assert_same_step, every_kind, operators_called
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import deconv_ext


class Special(nn.ConvTranspose2d):
    """A user's own subclass, which may compute something else."""


def _model() -> nn.Module:
    shared = nn.ConvTranspose2d(3, 3, 3, padding=1)
    return nn.Sequential(nn.ConvTranspose2d(4, 3, 3), shared, nn.Sequential(shared, nn.ReLU()), Special(3, 2, 3))


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Only what a test expects."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="deconv_ext")
        yield


def test_convert_and_revert(device: str) -> None:
    """In place, shared layers once; hooks, modes, parameters and state stay; subclasses and converted layers too."""
    model = _model().to(device)
    kinds = [type(module) for module in model.modules()]
    x = torch.randn(2, 4, 5, 6, device=device)
    expected, parameters, keys = model(x), list(model.parameters()), model.state_dict().keys()
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("hook"))
    model.eval()
    for _ in range(2):
        assert deconv_ext.convert(model) is model
        assert type(model[0]) is type(model[1]) is deconv_ext.ConvTranspose2d
        assert model[1] is model[2][0]
        assert type(model[3]) is Special
    assert not model[0].training
    torch.testing.assert_close(model(x), expected)
    assert calls == ["hook"]
    assert OPERATOR in operators_called(lambda: model[0](x))
    assert deconv_ext.revert(model) is model
    assert [type(module) for module in model.modules()] == kinds
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.state_dict().keys() == keys
    assert torch.equal(model(x), expected)
    assert OPERATOR not in operators_called(lambda: model(x))


@every_kind
def test_convert_and_revert_of_the_layer_itself(kind: Kind) -> None:
    layer = kind.torchs(4, 3, 3)
    weight, bias = layer.weight, layer.bias
    for function, expected in ((deconv_ext.convert, kind.layer), (deconv_ext.revert, kind.torchs)):
        assert function(layer) is layer
        assert type(layer) is expected
        assert layer.weight is weight
        assert layer.bias is bias
    special = Special(3, 2, 3)
    assert type(deconv_ext.convert(special)) is Special


def test_filter() -> None:
    model = _model()
    asked = []

    def wanted(name: str, module: nn.Module) -> bool:
        asked.append((name, module))
        return name == "1"

    deconv_ext.convert(model, filter=wanted)
    assert asked == [("0", model[0]), ("1", model[1])]
    assert type(model[0]) is nn.ConvTranspose2d
    assert type(model[1]) is type(model[2][0]) is deconv_ext.ConvTranspose2d


@pytest.mark.parametrize("model", [None, 3, "model"])
def test_not_a_module(model: object) -> None:
    for function in (deconv_ext.convert, deconv_ext.revert):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, but got"):
            function(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
def test_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    up = nn.ModuleDict({"first": nn.ConvTranspose2d(4, 3, 2), "second": deconv_ext.ConvTranspose2d(3, 3, 2)})
    model = nn.ModuleDict({"up": up, "line": nn.ConvTranspose1d(3, 2, 2), "kept": nn.ConvTranspose2d(3, 2, 2)})
    model.update({"special": Special(3, 2, 2), "volume": nn.ConvTranspose3d(3, 2, 2), "relu": nn.ReLU()})
    model["scripted"] = torch.jit.script(nn.ConvTranspose2d(3, 2, 2))
    deconv_ext.convert(model, filter=lambda name, _: name != "kept", verbose=True)
    assert capsys.readouterr().out.splitlines() == [
        "up.first: converted: ConvTranspose2d(4, 3, kernel_size=(2, 2), stride=(1, 1))",
        "up.second: left alone: already converted",
        "line: converted: ConvTranspose1d(3, 2, kernel_size=(2,), stride=(1,))",
        "kept: left alone: filter says no",
        "special: left alone: Special is a subclass, which may compute something else",
        "volume: left alone: 3-D layers have no operator here",
        "scripted: left alone: scripted; convert the model before torch.jit.script",
    ]
    deconv_ext.convert(nn.ConvTranspose2d(4, 3, 2), verbose=True)
    deconv_ext.convert(nn.Linear(3, 2), verbose=True)
    deconv_ext.convert(_model())
    assert capsys.readouterr().out.splitlines() == [
        "the model itself: converted: ConvTranspose2d(4, 3, kernel_size=(2, 2), stride=(1, 1))",
        "Linear has no transposed convolution",
    ]


COMPILED: dict[str, Callable[[nn.Sequential, Callable], Any]] = {  # the call to make, or None for the model itself
    "layer": lambda model, backend: model[0].compile(backend=backend),
    "model": lambda model, backend: model.compile(backend=backend),
    "wrapper": lambda model, backend: torch.compile(model, backend=backend),
}


@pytest.mark.parametrize("compiled", COMPILED.values(), ids=COMPILED.keys())
@pytest.mark.parametrize("ran", [True, False], ids=["after_a_call", "before_any_call"])
def test_compiled_before(ran: bool, compiled: Callable) -> None:
    """Compiled again, on the operator; and on torch's after revert()."""
    torch._dynamo.reset()
    targets: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    model = nn.Sequential(nn.ConvTranspose2d(4, 3, 3), nn.ReLU())
    x = torch.randn(2, 4, 5, 6)
    expected = model(x)
    function = compiled(model, backend) or model
    if ran:
        function(x)
    targets.clear()
    deconv_ext.convert(model)
    torch.testing.assert_close(function(x), expected)
    assert any(target.startswith("deconv.conv_transpose2d") for target in targets)
    targets.clear()
    deconv_ext.revert(model)
    torch.testing.assert_close(function(x), expected)
    assert not any(target.startswith("deconv") for target in targets)


def test_replaced_forward(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.ModuleDict({"up": nn.ConvTranspose2d(4, 3, 3), "other": nn.ConvTranspose2d(4, 3, 3)})
    inner = model["up"].forward
    model["up"].forward = lambda x: inner(x) + 1
    x = torch.randn(2, 4, 5, 6)
    expected = model["up"](x)
    with pytest.warns(UserWarning, match="deconv_ext leaves up alone: its forward was replaced") as record:
        deconv_ext.convert(model, verbose=True)
    assert [warning.filename for warning in record] == [__file__]
    assert "up: left alone: its forward was replaced" in capsys.readouterr().out.splitlines()
    assert type(model["up"]) is nn.ConvTranspose2d
    assert type(model["other"]) is deconv_ext.ConvTranspose2d
    assert torch.equal(model["up"](x), expected)
    del model["up"].forward
    deconv_ext.convert(model)
    model["other"].forward = model["up"].forward
    with pytest.warns(UserWarning, match="deconv_ext leaves other alone"):
        deconv_ext.revert(model)
    assert type(model["up"]) is nn.ConvTranspose2d


PARAMETRIZATIONS = {"weight_norm": parametrizations.weight_norm, "spectral_norm": parametrizations.spectral_norm}


@every_kind
@pytest.mark.parametrize("norm", PARAMETRIZATIONS.values(), ids=PARAMETRIZATIONS.keys())
def test_parametrized(norm: Callable, kind: Kind, device: str) -> None:
    """Of the layer alone: a copy of before keeps its class, and one of after loses its parametrization as ours."""
    layer = norm(kind.torchs(4, 3, 3)).to(device).eval()
    twin, name, keys = copy.deepcopy(layer), type(layer).__name__, layer.state_dict().keys()
    model = nn.Sequential(layer)
    x = torch.randn(kind.x, device=device)
    expected = model(x)
    deconv_ext.convert(model)
    assert isinstance(layer, kind.layer)
    assert type(layer).__name__ == name
    assert parametrize.is_parametrized(layer, "weight")
    assert layer.state_dict().keys() == keys
    torch.testing.assert_close(model(x), expected)
    assert OPERATOR in operators_called(lambda: model(x))
    assert not isinstance(twin, kind.layer)
    assert_same_step(layer, twin, x)
    copied = copy.deepcopy(layer)
    torch.testing.assert_close(copied(x), expected)
    deconv_ext.revert(model)
    assert parametrize.type_before_parametrizations(layer) is kind.torchs
    assert not isinstance(layer, kind.layer)
    torch.testing.assert_close(model(x), expected)
    parametrize.remove_parametrizations(copied, "weight")
    assert type(copied) is kind.layer
    torch.testing.assert_close(copied(x), expected)


@every_kind
@pytest.mark.parametrize("how", ["converted", "made"])
def test_lazy(how: str, kind: Kind, device: str) -> None:
    layer = deconv_ext.convert(kind.torchs_lazy(3, 3, 2)) if how == "converted" else kind.lazy(3, 3, 2)
    model = nn.Sequential(layer.to(device))
    assert type(layer) is kind.lazy
    x = torch.randn(kind.x, device=device)
    result = []
    assert OPERATOR in operators_called(lambda: result.append(model(x)))  # at the first call, too
    assert type(model[0]) is kind.layer
    assert "cls_to_become" not in vars(layer)
    torch.testing.assert_close(result[0], deconv_ext.revert(model)(x))


@every_kind
def test_lazy_reverts_and_loads(kind: Kind) -> None:
    layer = deconv_ext.convert(kind.torchs_lazy(3, 3, 2))
    layer.load_state_dict(kind.layer(4, 3, 3, 2).state_dict())
    assert not layer.has_uninitialized_params()
    assert type(deconv_ext.revert(layer)) is kind.torchs_lazy


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_of_before() -> None:
    """The older weight_norm, which works by hooks."""
    model = nn.Sequential(nn.utils.weight_norm(nn.ConvTranspose2d(4, 3, 3)))
    x = torch.randn(2, 4, 5, 6)
    expected = model(x)
    deconv_ext.convert(model)
    assert type(model[0]) is deconv_ext.ConvTranspose2d
    torch.testing.assert_close(model(x), expected)
    nn.utils.remove_weight_norm(model[0])
    torch.testing.assert_close(model(x), expected)
