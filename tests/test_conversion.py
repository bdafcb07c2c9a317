"""convert() and revert(): what they turn, keep, refuse and tell."""

import copy
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers import operators_called
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import deconv_ext

OPERATOR = "deconv::conv_transpose2d"
PAIRS = [
    (nn.ConvTranspose1d, deconv_ext.ConvTranspose1d),
    (nn.ConvTranspose2d, deconv_ext.ConvTranspose2d),
]


class Special(nn.ConvTranspose2d):
    """A user's own subclass, which may compute something else."""


def _model() -> nn.Module:
    shared = nn.ConvTranspose2d(3, 3, 3, padding=1)
    return nn.Sequential(nn.ConvTranspose2d(4, 3, 3), shared, nn.Sequential(shared, nn.ReLU()), Special(3, 2, 3))


def _input(kind: type[nn.Module], device: str) -> Tensor:
    """(2, 4, 5, 6), without the last dimension for 1-D layers."""
    return torch.randn(2, 4, 5, device=device) if "1d" in kind.__name__ else torch.randn(2, 4, 5, 6, device=device)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Only what a test expects."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="deconv_ext")
        yield


# --- what is turned -------------------------------------------------------------------------------------------------


def test_convert(device: str) -> None:
    model = _model().to(device)
    x = torch.randn(2, 4, 5, 6, device=device)
    expected, parameters, state = model(x), list(model.parameters()), model.state_dict()
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("hook"))
    model.eval()
    assert deconv_ext.convert(model) is model
    assert type(model[0]) is type(model[1]) is deconv_ext.ConvTranspose2d
    assert model[1] is model[2][0]
    assert type(model[3]) is Special
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert not model[0].training
    assert state.keys() == model.state_dict().keys()
    torch.testing.assert_close(model(x), expected)
    assert calls == ["hook"]
    assert OPERATOR in operators_called(lambda: model[0](x))


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_convert_and_revert_of_the_layer_itself(theirs: type[nn.Module], ours: type[nn.Module]) -> None:
    layer = theirs(4, 3, 3)
    weight, bias = layer.weight, layer.bias
    assert deconv_ext.convert(layer) is layer
    assert type(layer) is ours
    assert layer.weight is weight
    assert layer.bias is bias
    assert deconv_ext.revert(layer) is layer
    assert type(layer) is theirs
    assert layer.weight is weight


def test_convert_twice_and_elsewhere() -> None:
    """Converting again changes nothing; models without the layer and subclasses stay as they are."""
    model = deconv_ext.convert(_model())
    before = [(module, type(module)) for module in model.modules()]
    deconv_ext.convert(model)
    assert [(module, type(module)) for module in model.modules()] == before
    special, linear = Special(3, 2, 3), nn.Linear(3, 2)
    assert type(deconv_ext.convert(special)) is Special
    assert type(deconv_ext.convert(linear)) is nn.Linear


def test_revert(device: str) -> None:
    model = _model().to(device)
    kinds = [type(module) for module in model.modules()]
    x = torch.randn(2, 4, 5, 6, device=device)
    expected, parameters = model(x), list(model.parameters())
    assert deconv_ext.revert(deconv_ext.convert(model)) is model
    assert [type(module) for module in model.modules()] == kinds
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(model(x), expected)
    assert OPERATOR not in operators_called(lambda: model(x))


def test_converted_model_trains_optimizer_of_before() -> None:
    """An optimizer made before the conversion goes on updating the model."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    deconv_ext.convert(model)
    before = model[0].weight.detach().clone()
    model(torch.randn(2, 4, 5, 6)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


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


# --- what it tells --------------------------------------------------------------------------------------------------


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


def test_verbose_of_the_layer_itself_and_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    deconv_ext.convert(nn.ConvTranspose2d(4, 3, 2), verbose=True)
    deconv_ext.convert(nn.Linear(3, 2), verbose=True)
    deconv_ext.convert(_model())
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "the model itself: converted: ConvTranspose2d(4, 3, kernel_size=(2, 2), stride=(1, 1))",
        "Linear has no transposed convolution",
    ]


# --- compiled layers, replaced forwards -----------------------------------------------------------------------------


def _compiled_layer(model: nn.Sequential, backend: Callable) -> Callable[[Tensor], Tensor]:
    model[0].compile(backend=backend)
    return model


def _compiled_model(model: nn.Sequential, backend: Callable) -> Callable[[Tensor], Tensor]:
    model.compile(backend=backend)
    return model


def _optimized(model: nn.Sequential, backend: Callable) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, backend=backend)


@pytest.mark.parametrize("compiled", [_compiled_layer, _compiled_model, _optimized])
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
    function = compiled(model, backend)
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


# --- parametrized and lazy layers -----------------------------------------------------------------------------------

PARAMETRIZATIONS = {"weight_norm": parametrizations.weight_norm, "spectral_norm": parametrizations.spectral_norm}


@pytest.mark.parametrize("norm", PARAMETRIZATIONS.values(), ids=PARAMETRIZATIONS.keys())
@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_parametrized(theirs: type[nn.Module], ours: type[nn.Module], norm: Callable, device: str) -> None:
    layer = norm(theirs(4, 3, 3)).to(device).eval()
    twin = copy.deepcopy(layer)
    model = nn.Sequential(layer)
    x = _input(theirs, device)
    expected, keys, kind = model(x), model.state_dict().keys(), type(layer)
    assert OPERATOR not in operators_called(lambda: model(x))
    deconv_ext.convert(model)
    assert isinstance(layer, ours)
    assert type(layer).__name__ == kind.__name__
    assert parametrize.is_parametrized(layer, "weight")
    assert model.state_dict().keys() == keys
    torch.testing.assert_close(model(x), expected)
    assert OPERATOR in operators_called(lambda: model(x))
    assert not isinstance(twin, ours)
    copied = copy.deepcopy(layer)
    torch.testing.assert_close(copied(x), expected)
    deconv_ext.revert(model)
    assert parametrize.type_before_parametrizations(layer) is theirs
    assert not isinstance(layer, ours)
    torch.testing.assert_close(model(x), expected)
    parametrize.remove_parametrizations(copied, "weight")
    assert type(copied) is ours
    torch.testing.assert_close(copied(x), expected)


def test_parametrized_trains() -> None:
    theirs = parametrizations.weight_norm(nn.ConvTranspose2d(4, 3, 3))
    ours = deconv_ext.convert(copy.deepcopy(theirs))
    x = torch.randn(2, 4, 5, 6)
    for layer in (theirs, ours):
        layer(x).sin().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


LAZY = [
    (nn.LazyConvTranspose1d, deconv_ext.LazyConvTranspose1d, deconv_ext.ConvTranspose1d),
    (nn.LazyConvTranspose2d, deconv_ext.LazyConvTranspose2d, deconv_ext.ConvTranspose2d),
]


@pytest.mark.parametrize(("theirs", "ours", "final"), LAZY)
@pytest.mark.parametrize("how", ["converted", "made"])
def test_lazy(how: str, theirs: type, ours: type, final: type, device: str) -> None:
    layer = deconv_ext.convert(theirs(3, 3, 2)) if how == "converted" else ours(3, 3, 2)
    model = nn.Sequential(layer.to(device))
    assert type(layer) is ours
    x = _input(final, device)
    result = []
    assert OPERATOR in operators_called(lambda: result.append(model(x)))  # at the first call, too
    assert type(model[0]) is final
    assert "cls_to_become" not in vars(layer)
    expected = deconv_ext.revert(model)(x)
    torch.testing.assert_close(result[0], expected)


@pytest.mark.parametrize(("theirs", "ours", "final"), LAZY)
def test_lazy_reverts_and_loads(theirs: type, ours: type, final: type) -> None:
    layer = deconv_ext.convert(theirs(3, 3, 2))
    layer.load_state_dict(final(4, 3, 3, 2).state_dict())
    assert not layer.has_uninitialized_params()
    assert type(deconv_ext.revert(layer)) is theirs


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
