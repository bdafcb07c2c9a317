"""The Python layer: override() and ConvTranspose2d against torch.nn's."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import operators_called
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import deconv_ext

# --- override -------------------------------------------------------------------------------------------------------


def test_override(device: str) -> None:
    x, w = torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    layer = nn.ConvTranspose2d(4, 3, 3).to(device)
    plain, module = (lambda: F.conv_transpose2d(x, w, stride=2)), (lambda: layer(x))
    for function in (plain, module):
        expected = function()
        with deconv_ext.override():
            assert "deconv::conv_transpose2d" in operators_called(function)
            torch.testing.assert_close(function(), expected)
        assert "deconv::conv_transpose2d" not in operators_called(function)


def test_override_ends_with_an_exception(device: str) -> None:
    x, w = torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    with pytest.raises(ZeroDivisionError), deconv_ext.override():
        raise ZeroDivisionError
    assert "deconv::conv_transpose2d" not in operators_called(lambda: F.conv_transpose2d(x, w))


def test_override_nests_and_trains(device: str) -> None:
    x = torch.randn(2, 4, 5, 6, device=device)
    layer = nn.ConvTranspose2d(4, 3, 3).to(device)
    layer(x).sin().sum().backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    with deconv_ext.override(), deconv_ext.override():
        layer(x).sin().sum().backward()
    torch.testing.assert_close(layer.weight.grad, expected)


@pytest.mark.parametrize("around", [True, False], ids=["around_compiled", "inside_compiled"])
@pytest.mark.parametrize("module", [False, True], ids=["function", "module"])
def test_override_and_compile(module: bool, around: bool, device: str) -> None:
    x = torch.randn(2, 4, 5, 6, device=device)
    layer = nn.ConvTranspose2d(4, 3, 3).to(device)

    def function(x: Tensor) -> Tensor:
        return layer(x) if module else F.conv_transpose2d(x, layer.weight, layer.bias)

    def inside(x: Tensor) -> Tensor:
        with deconv_ext.override():
            return function(x)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function if around else inside, fullgraph=True, backend=counter)
    if around:
        with deconv_ext.override():
            result = compiled(x)
    else:
        result = compiled(x)
    torch.testing.assert_close(result, layer(x))
    targets = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert any(target.startswith("deconv.conv_transpose2d") for target in targets)


# --- the module -----------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "plain": {},
    "strided": {"stride": 2, "padding": 1, "output_padding": 1},
    "grouped": {"stride": (2, 1), "groups": 2, "bias": False, "dilation": (1, 2)},
}


@pytest.fixture(params=ARGUMENTS.values(), ids=ARGUMENTS.keys())
def pair_of_modules(request: pytest.FixtureRequest) -> tuple[nn.ConvTranspose2d, nn.ConvTranspose2d]:
    """Ours and torch's, made from the same seed."""
    modules = []
    for kind in (deconv_ext.ConvTranspose2d, nn.ConvTranspose2d):
        torch.manual_seed(3)
        modules.append(kind(4, 6, (3, 2), **request.param))
    return modules[0], modules[1]


def test_module_is_torchs(pair_of_modules: tuple[nn.ConvTranspose2d, nn.ConvTranspose2d], device: str) -> None:
    ours, theirs = pair_of_modules
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, nn.ConvTranspose2d)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    ours, theirs = ours.to(device), theirs.to(device)
    for x in (torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 5, 6, device=device)):
        torch.testing.assert_close(ours(x), theirs(x))


def test_state_dict_both_ways(pair_of_modules: tuple[nn.ConvTranspose2d, nn.ConvTranspose2d]) -> None:
    ours, theirs = pair_of_modules
    x = torch.randn(2, 4, 5, 6)
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.normal_()
        target.load_state_dict(source.state_dict())
        torch.testing.assert_close(target(x), source(x))


def _pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, _pickled])
def test_module_copies(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    layer = deconv_ext.ConvTranspose2d(4, 6, 3, 2)
    x = torch.randn(2, 4, 5, 6)
    twin = duplicate(layer)
    assert type(twin) is deconv_ext.ConvTranspose2d
    assert twin.weight is not layer.weight
    assert torch.equal(twin(x), layer(x))


def test_module_survives_torch_save(tmp_path: Path) -> None:
    layer = deconv_ext.ConvTranspose2d(4, 6, 3, 2)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = nn.ConvTranspose2d(4, 6, 3, 2)
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))
    assert torch.equal(other.weight, layer.weight)


@pytest.mark.parametrize("size", [[9, 11], [10, 12], [10, 11]])
def test_output_size(size: list[int], device: str) -> None:
    ours, theirs = (kind(4, 3, 3, 2, 1).to(device) for kind in (deconv_ext.ConvTranspose2d, nn.ConvTranspose2d))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 5, 6, device=device)
    result = ours(x, output_size=size)
    assert list(result.shape[2:]) == size
    torch.testing.assert_close(result, theirs(x, output_size=size))


def test_output_size_out_of_reach() -> None:
    layer = deconv_ext.ConvTranspose2d(4, 3, 3, 2, 1)
    with pytest.raises(ValueError, match="requested an output size"):
        layer(torch.randn(2, 4, 5, 6), output_size=[20, 11])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
def test_integers_of_numpy(device: str) -> None:
    kinds, args = (deconv_ext.ConvTranspose2d, nn.ConvTranspose2d), (np.int64(2), np.int64(1))
    ours, theirs = (kind(4, 3, 3, *args).to(device) for kind in kinds)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 5, 6, device=device)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(torch.jit.trace(ours, x)(x), theirs(x))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_mode(mode: str) -> None:
    with pytest.raises(ValueError, match="zeros"):
        deconv_ext.ConvTranspose2d(4, 3, 3, padding_mode=mode)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_module_options(dtype: torch.dtype, device: str) -> None:
    layer = deconv_ext.ConvTranspose2d(4, 3, 3, device=device, dtype=dtype)
    assert layer(torch.randn(2, 4, 5, 6, device=device, dtype=dtype)).dtype == dtype
