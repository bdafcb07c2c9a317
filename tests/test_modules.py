"""override() and the layers against torch.nn's, 1-D and 2-D."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import OPERATOR, Kind, assert_same_step, every_kind, operators_called
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import deconv_ext


@every_kind
def test_override_turns_functions_and_layers_within_its_block(kind: Kind, device: str) -> None:
    x, w, b = kind.operands(device)
    layer = kind.torchs(4, 3, 3).to(device)
    functional = getattr(F, kind.theirs.__name__)
    for function in (lambda: functional(x, w, b, stride=2), lambda: layer(x)):
        expected = function()
        with deconv_ext.override():
            assert OPERATOR in operators_called(function)
            torch.testing.assert_close(function(), expected)
        assert OPERATOR not in operators_called(function)


def test_override_ends_with_an_exception(device: str) -> None:
    x, w = torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    with pytest.raises(ZeroDivisionError), deconv_ext.override():
        raise ZeroDivisionError
    assert OPERATOR not in operators_called(lambda: F.conv_transpose2d(x, w))


def test_override_nests_and_trains(device: str) -> None:
    def nested(*operands: Tensor) -> Tensor:
        with deconv_ext.override(), deconv_ext.override():
            return F.conv_transpose2d(*operands)

    x, w = torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    assert_same_step(nested, F.conv_transpose2d, x, w)


@pytest.mark.parametrize("around", [True, False], ids=["around_compiled", "inside_compiled"])
@pytest.mark.parametrize("module", [False, True], ids=["function", "module"])
def test_override_and_compile(module: bool, around: bool, device: str) -> None:
    x = torch.randn(2, 4, 5, 6, device=device)
    layer = nn.ConvTranspose2d(4, 3, 3).to(device)

    def function(x: Tensor) -> Tensor:
        return layer(x) if module else F.conv_transpose2d(x, layer.weight, layer.bias)

    def overridden(x: Tensor) -> Tensor:
        with deconv_ext.override():
            return (compiled if around else function)(x)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function if around else overridden, fullgraph=True, backend=counter)
    torch.testing.assert_close(overridden(x) if around else compiled(x), layer(x))
    assert any(str(node.target).startswith("deconv.conv_transpose2d") for node in counter.graphs[0].graph.nodes)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1, "output_padding": 1},
    "grouped": {"groups": 2, "bias": False, "dilation": 2},
    "numpy": {"stride": np.int64(2), "padding": np.int64(1)},
}


def _pair(kind: Kind, device: str = "cpu", **arguments: Any) -> list[nn.Module]:
    """Ours and torch's, made from the same seed."""
    layers = []
    for make in (kind.layer, kind.torchs):
        torch.manual_seed(3)
        layers.append(make(4, 6, 3, **arguments).to(device))
    return layers


@every_kind
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_layer_is_torchs(arguments: dict[str, Any], kind: Kind, device: str) -> None:
    """Same words, parameters, state and values, batched or not; a state dict fits both ways."""
    ours, theirs = _pair(kind, device, **arguments)
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, kind.torchs)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    x = torch.randn(kind.x, device=device)
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.normal_()
        target.load_state_dict(source.state_dict())
        for one in (x, x[0]):
            torch.testing.assert_close(target(one), source(one))
    assert OPERATOR in operators_called(lambda: ours(x))


def _saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every_kind
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), _saved])
def test_layer_copies(duplicate: Callable[[nn.Module], nn.Module], kind: Kind) -> None:
    layer = kind.layer(4, 6, 3, 2)
    twin = duplicate(layer)
    assert type(twin) is kind.layer
    assert twin.weight is not layer.weight
    x = torch.randn(kind.x)
    assert torch.equal(twin(x), layer(x))


@every_kind
@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("more", [(0, 0), (1, 1), (1, 0)])
def test_output_size(more: tuple[int, int], unbatched: bool, kind: Kind, device: str) -> None:
    """With or without the dimensions of batch and channels."""
    ours, theirs = _pair(kind, device, stride=2, padding=1)
    x = torch.randn(kind.x, device=device)
    size = [2 * extent - 1 + one for extent, one in zip(x.shape[2:], more, strict=False)]
    x = x[0] if unbatched else x
    for given in (size, [*x.shape[: 1 - unbatched], 6, *size]):
        result = ours(x, output_size=given)
        assert list(result.shape[-len(size) :]) == size
        torch.testing.assert_close(result, theirs(x, output_size=given))
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, output_size=[20] * len(size))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_mode_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="zeros"):
        deconv_ext.ConvTranspose2d(4, 3, 3, padding_mode=mode)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_layer_is_made_on_a_device_in_a_dtype(dtype: torch.dtype, kind: Kind, device: str) -> None:
    layer = kind.layer(4, 3, 3, device=device, dtype=dtype)
    assert layer(torch.randn(kind.x, device=device, dtype=dtype)).dtype == dtype
