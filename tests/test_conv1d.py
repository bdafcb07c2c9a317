"""The 1-D operator and its module against torch's, and against the 2-D operator on one row."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close, bound, operators_called
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import deconv_ext

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "vocoder": {"kernel": 16, "stride": 8, "padding": 4},
    "codec": {"kernel": 5, "stride": [3], "padding": (1,), "output_padding": 2},
    "dilated": {"kernel": 3, "padding": 2, "dilation": 4, "output_padding": 3},
    "grouped": {"groups": 2, "stride": 2},
    "depthwise": {"groups": 6, "out_channels": 6, "kernel": 12, "stride": 2, "padding": 5},
    "one_tap": {"kernel": 1, "stride": 3, "output_padding": 1},
    "one_element": {"length": 1, "kernel": 4, "stride": 2, "padding": 1},
}


def _operands(device: str, dtype: torch.dtype = torch.float32, **case: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """Input, weight and bias of a case, and its other arguments."""
    args = {key: case[key] for key in ("stride", "padding", "output_padding", "groups", "dilation") if key in case}
    per_group = case.get("out_channels", 4) // case.get("groups", 1)
    shapes = [
        (2, 6, case.get("length", 9)),
        (6, per_group, case.get("kernel", 3)),
        (per_group * case.get("groups", 1),),
    ]
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes], args


def _leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def channels_innermost(tensor: Tensor) -> Tensor:
    """The same tensor, its channels of stride 1."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


# --- values and derivatives -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_values_and_gradients(name: str, batched: bool, device: str) -> None:
    tensors, args = _operands(device, torch.float64, **CASES[name])
    if not batched:
        tensors[0] = tensors[0][0]
    ours, theirs = _leaves(tensors), _leaves(tensors)
    result, expected = deconv_ext.conv_transpose1d(*ours, **args), F.conv_transpose1d(*theirs, **args)
    assert_close(result, expected.detach(), length=100)
    grad = torch.randn_like(expected)
    for a, b in zip(torch.autograd.grad(result, ours, grad), torch.autograd.grad(expected, theirs, grad), strict=True):
        assert_close(a, b, length=100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_dtypes(dtype: torch.dtype, device: str) -> None:
    tensors, args = _operands(device, dtype, **CASES["vocoder"])
    result = deconv_ext.conv_transpose1d(*tensors, **args)
    exact = [tensor.to(torch.complex128 if dtype.is_complex else torch.float64) for tensor in tensors]
    expected = F.conv_transpose1d(*exact, **args)
    assert result.dtype == dtype
    error = (result.to(expected.dtype) - expected).norm() / expected.norm()
    assert error <= bound(torch.float32 if dtype.is_complex else dtype, 100)


def test_is_a_row(device: str) -> None:
    (x, weight, bias), args = _operands(device, stride=2, padding=1, output_padding=1, dilation=3)
    pairs = {"stride": (1, 2), "padding": (0, 1), "output_padding": (0, 1), "dilation": (1, 3)}
    row = deconv_ext.conv_transpose2d(x.unsqueeze(2), weight.unsqueeze(2), bias, **pairs)
    assert torch.equal(deconv_ext.conv_transpose1d(x, weight, bias, **args), row.squeeze(2))


def test_higher_orders(device: str) -> None:
    tensors, args = _operands(device, torch.float64, **{**CASES["codec"], "length": 3})
    leaves = _leaves(tensors)
    function = lambda *operands: deconv_ext.conv_transpose1d(*operands, **args)  # noqa: E731
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, leaves, check_fwd_over_rev=True)


@pytest.mark.parametrize("in_dims", [(0, None, None), (None, 0, 0), (0, 0, 0), (1, 2, None)])
def test_vmap(in_dims: tuple[int | None, ...], device: str) -> None:
    tensors, args = _operands(device, torch.float64, **CASES["grouped"])
    stacked = [
        tensor if dim is None else torch.stack([tensor, tensor + 1, tensor - 2], dim)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
    result = torch.vmap(lambda *operands: deconv_ext.conv_transpose1d(*operands, **args), in_dims)(*stacked)
    expected = torch.vmap(lambda *operands: F.conv_transpose1d(*operands, **args), in_dims)(*stacked)
    torch.testing.assert_close(result, expected)


def test_autocast(device: str) -> None:
    tensors, args = _operands(device, **CASES["vocoder"])
    ours, theirs = _leaves(tensors), _leaves(tensors)
    with torch.autocast(device, torch.bfloat16):
        result, expected = deconv_ext.conv_transpose1d(*ours, **args), F.conv_transpose1d(*theirs, **args)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    for a, b in zip(torch.autograd.grad(result.sum(), ours), torch.autograd.grad(expected.sum(), theirs), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.1)


@pytest.mark.gpu
def test_autocast_casts_a_weight_once() -> None:
    (x, weight, bias), args = _operands("cuda", **CASES["vocoder"])
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    x = x.bfloat16()
    with torch.autocast("cuda", torch.bfloat16):  # the first region casts what opens regions, too
        deconv_ext.conv_transpose1d(x, weight, bias, **args)
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profile, torch.autocast("cuda", torch.bfloat16):
        for _ in range(3):
            deconv_ext.conv_transpose1d(x, weight, bias, **args)
    names = [event.name for event in profile.events()]
    assert names.count("deconv::conv_transpose2d") == 3
    assert names.count("aten::_to_copy") <= 3  # weight, bias, and what the cache itself is kept by


@pytest.mark.parametrize("convert", [np.int64, torch.tensor], ids=["numpy", "tensor"])
def test_other_integers(convert: Callable[[int], Any], device: str) -> None:
    (x, weight, bias), _ = _operands(device)
    result = deconv_ext.conv_transpose1d(x, weight, bias, convert(2), convert(1))
    torch.testing.assert_close(result, F.conv_transpose1d(x, weight, bias, 2, 1))


# --- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [True, False], ids=["channels_innermost", "contiguous"])
def test_layout_is_kept(inner: bool, dtype: torch.dtype) -> None:
    """Of the result and of the gradient, without a copy."""
    (x, weight, bias), args = _operands("cuda", dtype, **CASES["vocoder"])
    x = (channels_innermost(x) if inner else x).requires_grad_()
    result = deconv_ext.conv_transpose1d(x, weight, bias, **args)
    expected = F.conv_transpose1d(x, weight, bias, **args)
    bounds = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(result, expected, **bounds)
    grad = torch.randn_like(expected)
    by_input = torch.autograd.grad(result, x, channels_innermost(grad) if inner else grad)[0]
    torch.testing.assert_close(by_input, torch.autograd.grad(expected, x, grad)[0], **bounds)
    for tensor in (result, by_input):
        assert (channels_innermost(tensor) if inner else tensor.contiguous()).stride() == tensor.stride()
    with torch.no_grad():
        called = operators_called(lambda: deconv_ext.conv_transpose1d(x, weight, bias, **args))
    assert not called & {"aten::copy_", "aten::clone"}


def test_row_of_inner_channels_is_channels_last() -> None:
    """What the operator is given: views of the operands, in the layout that it knows."""
    seen: list[Tensor] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.deconv.conv_transpose2d.default:
                seen.extend(args[:2])
            return func(*args, **(kwargs or {}))

    (x, weight, bias), args = _operands("cpu", **CASES["vocoder"])
    for inner in (False, True):
        seen.clear()
        given = channels_innermost(x) if inner else x
        with Spy():
            deconv_ext.conv_transpose1d(given, weight, bias, **args)
        assert seen[0].is_contiguous(memory_format=torch.channels_last if inner else torch.contiguous_format)
        assert [tensor.data_ptr() for tensor in seen] == [given.data_ptr(), weight.data_ptr()]


# --- compile and export ---------------------------------------------------------------------------------------------


def test_compile(device: str) -> None:
    tensors, args = _operands(device, **CASES["codec"])
    ours, theirs = _leaves(tensors), _leaves(tensors)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(deconv_ext.conv_transpose1d, fullgraph=True, backend=counter)
    result, expected = compiled(*ours, **args), F.conv_transpose1d(*theirs, **args)
    torch.testing.assert_close(result, expected)
    assert any("deconv.conv_transpose2d" in str(node.target) for node in counter.graphs[0].graph.nodes)
    grad = torch.randn_like(expected)
    for a, b in zip(torch.autograd.grad(result, ours, grad), torch.autograd.grad(expected, theirs, grad), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("inner", [True, False], ids=["channels_innermost", "contiguous"])
def test_export(inner: bool, device: str) -> None:
    model = nn.Sequential(deconv_ext.ConvTranspose1d(6, 4, 5, 3, 1), nn.ReLU()).to(device)
    dynamic = ({0: torch.export.Dim("batch"), 2: torch.export.Dim("length", min=2)},)
    x = torch.randn(3, 6, 7, device=device)
    program = torch.export.export(model, (channels_innermost(x) if inner else x,), dynamic_shapes=dynamic)
    assert any("deconv.conv_transpose2d" in str(node.target) for node in program.graph.nodes)
    for size in ((3, 6, 7), (5, 6, 20)):
        x = torch.randn(size, device=device)
        torch.testing.assert_close(program.module()(x), model(x))


# --- override and errors --------------------------------------------------------------------------------------------


def test_override(device: str) -> None:
    (x, weight, bias), args = _operands(device, **CASES["vocoder"])
    layer = nn.ConvTranspose1d(6, 4, 3).to(device)
    for function in (lambda: F.conv_transpose1d(x, weight, bias, **args), lambda: layer(x)):
        expected = function()
        with deconv_ext.override():
            assert "deconv::conv_transpose2d" in operators_called(function)
            torch.testing.assert_close(function(), expected)
        assert "deconv::conv_transpose2d" not in operators_called(function)


class Known(Tensor):
    """A subclass with an implementation of torch's function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "known" if func is F.conv_transpose1d else super().__torch_function__(func, types, args, kwargs or {})


def test_subclass_gets_torchs_function() -> None:
    (x, weight, bias), args = _operands("cpu")
    assert deconv_ext.conv_transpose1d(x, weight.as_subclass(Known), bias, **args) == "known"
    assert deconv_ext.conv_transpose1d(x.as_subclass(Known), weight, **args) == "known"
    assert deconv_ext.conv_transpose1d(x, weight, bias.as_subclass(Known)) == "known"


def test_torchs_name_replaced(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    (x, weight, bias), args = _operands(device)
    expected = F.conv_transpose1d(x, weight, bias, **args)
    monkeypatch.setattr(F, "conv_transpose1d", deconv_ext.conv_transpose1d)
    torch.testing.assert_close(F.conv_transpose1d(x, weight, bias, **args), expected)
    torch.testing.assert_close(F.conv_transpose1d(x.to(torch.cfloat), weight.to(torch.cfloat)).shape, expected.shape)


X, W, B = (2, 6, 9), (6, 4, 3), (4,)
BAD: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "input_4d": (((2, 6, 9, 1), W, B), {}, r"input must be 2-D .* or 3-D .*, but got size \[2, 6, 9, 1\]"),
    "input_1d": (((9,), W, B), {}, r"input must be 2-D .* or 3-D .*, but got size \[9\]"),
    "weight_2d": ((X, (6, 4), B), {}, r"weight must be 3-D .*, but got size \[6, 4\]"),
    "weight_4d": ((X, (6, 4, 1, 3), B), {}, r"weight must be 3-D .*, but got size \[6, 4, 1, 3\]"),
    "channels": ((X, (5, 4, 3), B), {}, "6.*5|5.*6"),
    "bias": ((X, W, (3,)), {}, "bias"),
    "stride_pair": ((X, W, B), {"stride": (2, 2)}, r"stride must be one integer or a list of 1, but got \[2, 2\]"),
    "padding_empty": ((X, W, B), {"padding": ()}, r"padding must be one integer or a list of 1, but got \[\]"),
    "stride_0": ((X, W, B), {"stride": 0}, "stride must be between 1"),
    "padding_negative": ((X, W, B), {"padding": -1}, "padding must be between 0"),
    "dilation_0": ((X, W, B), {"dilation": [0]}, "dilation must be between 1"),
    "output_padding": ((X, W, B), {"output_padding": 3, "stride": 2}, "output_padding must be smaller"),
    "groups": ((X, W, B), {"groups": 4}, "groups must divide"),
    "no_output": (((2, 6, 1), W, B), {"padding": 2}, "width must not be negative"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str, device: str) -> None:
    shapes, args, text = BAD[name]
    tensors = [torch.randn(shape, device=device) for shape in shapes]
    with pytest.raises(RuntimeError):
        F.conv_transpose1d(*tensors, **args)
    with pytest.raises(RuntimeError, match=text) as info:
        deconv_ext.conv_transpose1d(*tensors, **args)
    assert str(info.value).startswith("conv_transpose1d")
    good, args = _operands(device)
    torch.testing.assert_close(deconv_ext.conv_transpose1d(*good, **args), F.conv_transpose1d(*good, **args))


# --- the module -----------------------------------------------------------------------------------------------------

ARGUMENTS = [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "bias": False, "dilation": 2}]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_module_is_torchs(arguments: dict[str, Any], device: str) -> None:
    modules = []
    for kind in (deconv_ext.ConvTranspose1d, nn.ConvTranspose1d):
        torch.manual_seed(3)
        modules.append(kind(4, 6, 3, **arguments).to(device))
    ours, theirs = modules
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, nn.ConvTranspose1d)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    for x in (torch.randn(2, 4, 7, device=device), torch.randn(4, 7, device=device)):
        torch.testing.assert_close(ours(x), theirs(x))
    assert "deconv::conv_transpose2d" in operators_called(lambda: ours(x))


@pytest.mark.parametrize(("size", "unbatched"), list(itertools.product([[13], [14], [2, 3, 14]], [True, False])))
def test_output_size(size: list[int], unbatched: bool, device: str) -> None:
    layer = deconv_ext.ConvTranspose1d(4, 3, 3, 2, 1).to(device)
    x = torch.randn(2, 4, 7, device=device)
    if unbatched:
        x, size = x[0], size[-2:]
    result = layer(x, output_size=size)
    assert result.shape[-1] == size[-1]
    torch.testing.assert_close(result, nn.ConvTranspose1d.forward(layer, x, size))


def test_output_size_out_of_reach() -> None:
    layer = deconv_ext.ConvTranspose1d(4, 3, 3, 2, 1)
    with pytest.raises(ValueError, match="requested an output size"):
        layer(torch.randn(2, 4, 5), output_size=[20])
