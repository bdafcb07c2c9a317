"""What the 1-D function adds to the 2-D operator: rows, views and layouts. Other files test both kinds alike."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same_step, operators_called, step
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
    channels = case.get("out_channels", 4)
    weight = (6, channels // case.get("groups", 1), case.get("kernel", 3))
    sizes = [(2, 6, case.get("length", 9)), weight, (channels,)]
    return [torch.randn(size, device=device, dtype=dtype) for size in sizes], args


def _channels_innermost(tensor: Tensor) -> Tensor:
    """The same tensor, its channels of stride 1."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_values_and_gradients(name: str, batched: bool, device: str) -> None:
    (x, *rest), args = _operands(device, torch.float64, **CASES[name])
    operands = [x if batched else x[0], *rest]
    assert_same_step(
        lambda *t: deconv_ext.conv_transpose1d(*t, **args), lambda *t: F.conv_transpose1d(*t, **args), *operands
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_is_a_row_of_the_2d_operator(dtype: torch.dtype, device: str) -> None:
    """The same bits, so the tests of that operator hold here."""
    (x, weight, bias), args = _operands(device, dtype, stride=2, padding=1, output_padding=1, dilation=3)
    pairs = {"stride": (1, 2), "padding": (0, 1), "output_padding": (0, 1), "dilation": (1, 3)}
    row = deconv_ext.conv_transpose2d(x.unsqueeze(2), weight.unsqueeze(2), bias, **pairs)
    assert torch.equal(deconv_ext.conv_transpose1d(x, weight, bias, **args), row.squeeze(2))


def test_higher_orders(device: str) -> None:
    operands, args = _operands(device, torch.float64, **CASES["codec"], length=3)
    leaves = [one.requires_grad_() for one in operands]
    function = lambda *operands: deconv_ext.conv_transpose1d(*operands, **args)  # noqa: E731
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, leaves, check_fwd_over_rev=True)


@pytest.mark.parametrize("in_dims", [(0, None, None), (None, 0, 0), (0, 0, 0), (1, 2, None)])
def test_vmap(in_dims: tuple[int | None, ...], device: str) -> None:
    operands, args = _operands(device, torch.float64, **CASES["grouped"])
    stacked = [
        one if dim is None else torch.stack([one, one + 1, one - 2], dim)
        for one, dim in zip(operands, in_dims, strict=True)
    ]
    ours, theirs = (
        torch.vmap(lambda *t, function=function: function(*t, **args), in_dims)(*stacked)
        for function in (deconv_ext.conv_transpose1d, F.conv_transpose1d)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [True, False], ids=["channels_innermost", "contiguous"])
def test_layout_is_kept(inner: bool, dtype: torch.dtype) -> None:
    """Of the result and of the gradient, without a copy."""
    arrange = _channels_innermost if inner else Tensor.contiguous
    operands, args = _operands("cuda", dtype, **CASES["vocoder"])
    operands[0] = arrange(operands[0])
    ours, theirs = (
        step(lambda *t, function=function: arrange(function(*t, **args)), *operands)
        for function in (deconv_ext.conv_transpose1d, F.conv_transpose1d)
    )
    bound = 2e-2 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)
    with torch.no_grad():
        called = operators_called(lambda: ours.append(deconv_ext.conv_transpose1d(*operands, **args)))
    assert not {"aten::copy_", "aten::clone"} & set(called)
    for tensor in (ours[1], ours[-1]):  # the input's gradient, the result
        assert arrange(tensor).stride() == tensor.stride()


def test_operator_gets_views_in_a_layout_that_it_knows() -> None:
    """A row whose channels are innermost is channels_last."""
    seen: list[Tensor] = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.deconv.conv_transpose2d.default:
                seen.extend(args[:2])
            return func(*args, **(kwargs or {}))

    (x, weight, bias), args = _operands("cpu", **CASES["vocoder"])
    for given, layout in ((x, torch.contiguous_format), (_channels_innermost(x), torch.channels_last)):
        seen.clear()
        with Spy():
            deconv_ext.conv_transpose1d(given, weight, bias, **args)
        assert seen[0].is_contiguous(memory_format=layout)
        assert [tensor.data_ptr() for tensor in seen] == [given.data_ptr(), weight.data_ptr()]


X, W, B = (2, 6, 9), (6, 4, 3), (4,)
BAD: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "input_4d": (((2, 6, 9, 1), W, B), {}, r"input must be 2-D .* or 3-D .*, but got size \[2, 6, 9, 1\]"),
    "input_1d": (((9,), W, B), {}, r"input must be 2-D .* or 3-D .*, but got size \[9\]"),
    "weight_2d": ((X, (6, 4), B), {}, r"weight must be 3-D .*, but got size \[6, 4\]"),
    "weight_4d": ((X, (6, 4, 1, 3), B), {}, r"weight must be 3-D .*, but got size \[6, 4, 1, 3\]"),
    "channels": ((X, (5, 4, 3), B), {}, "6.*5|5.*6"),
    "stride_pair": ((X, W, B), {"stride": (2, 2)}, r"stride must be one integer or a list of 1, but got \[2, 2\]"),
    "padding_empty": ((X, W, B), {"padding": ()}, r"padding must be one integer or a list of 1, but got \[\]"),
    "stride_0": ((X, W, B), {"stride": 0}, "stride must be between 1"),
    "no_output": (((2, 6, 1), W, B), {"padding": 2}, "width must not be negative"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str, device: str) -> None:
    sizes, args, text = BAD[name]
    tensors = [torch.randn(size, device=device) for size in sizes]
    with pytest.raises(RuntimeError):
        F.conv_transpose1d(*tensors, **args)
    with pytest.raises(RuntimeError, match=text) as raised:
        deconv_ext.conv_transpose1d(*tensors, **args)
    assert str(raised.value).startswith("conv_transpose1d")
