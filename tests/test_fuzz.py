"""Random arguments, valid or not: the operator raises where torch's raises, and else gives the same values."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import deconv_ext

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Known difference: torch's operator skips some checks (dtypes, extents of 0) where its result holds no element, and
# there it may fail with other exceptions too.
EMPTY_FAILURES = (RuntimeError, ValueError, IndexError)

small = st.integers(1, 4)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a call, mostly valid: each may also be drawn from a wider range."""

    def mostly(valid: st.SearchStrategy[Any], wild: st.SearchStrategy[Any]) -> Any:
        return draw(wild if draw(st.integers(0, 79)) == 0 else valid)

    def pair(valid: st.SearchStrategy[int], wild: st.SearchStrategy[int]) -> int | list[int]:
        values = [mostly(valid, wild) for _ in range(2)]
        kind = draw(st.integers(0, 99))
        return {0: values[0], 1: values[:1], 2: [*values, 1]}.get(kind, values)

    groups = mostly(st.integers(1, 3), st.integers(-1, 5))
    ci = max(groups, 1) * draw(small)
    co = draw(small)
    image = [mostly(st.integers(1, 6), st.just(0)) for _ in "hw"]
    size = [draw(st.integers(0, 3)), mostly(st.just(ci), st.integers(0, 6)), *image]
    kernel = [mostly(st.integers(1, 5), st.just(0)) for _ in "hw"]
    dims = draw(st.integers(0, 39))
    size = size[1:] if dims < 4 else size[2:] if dims == 4 else [*size, 1] if dims == 5 else size
    bias = draw(st.sampled_from([*[None, co * groups] * 10, co * groups + 1]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    weight_dtype = mostly(st.just(dtype), st.just(torch.float32))
    return {
        "input": torch.randn(size, dtype=dtype),
        "weight": torch.randn([ci, mostly(st.just(co), st.just(0)), *kernel], dtype=weight_dtype),
        "bias": None if bias is None or bias < 0 else torch.randn(bias, dtype=dtype),
        "stride": pair(st.integers(1, 4), st.integers(-1, 9)),
        "padding": pair(st.integers(0, 2), st.integers(-1, 9)),
        "output_padding": pair(st.integers(0, 1), st.integers(-1, 5)),
        "groups": groups,
        "dilation": pair(st.integers(1, 3), st.integers(-1, 5)),
    }


def _outcome(function: Any, arguments: dict[str, Any]) -> torch.Tensor | Exception:
    try:
        return function(**arguments)
    except EMPTY_FAILURES as error:
        return error


def _check_gradients(arguments: dict[str, Any], grad_output: torch.Tensor) -> None:
    x, w = (arguments[key].detach().requires_grad_() for key in ("input", "weight"))
    rest = {key: value for key, value in arguments.items() if key not in ("input", "weight", "bias")}
    by_input, by_weight = torch.autograd.grad(F.conv_transpose2d(x, w, **rest), (x, w), grad_output)
    ours = torch.ops.deconv.conv_transpose2d_grad_input(grad_output, w.detach(), x.shape[-2:], **rest)
    torch.testing.assert_close(ours, by_input)
    ours = torch.ops.deconv.conv_transpose2d_grad_weight(x.detach(), grad_output, w.shape[-2:], **rest)
    torch.testing.assert_close(ours, by_weight)


@settings(max_examples=2000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(calls())
def test_same_outcome_as_torch(arguments: dict[str, Any]) -> None:
    ours, theirs = _outcome(deconv_ext.conv_transpose2d, arguments), _outcome(F.conv_transpose2d, arguments)
    if isinstance(ours, Exception):
        assert isinstance(ours, (RuntimeError, ValueError))
        assert isinstance(theirs, Exception) or theirs.numel() == 0, f"torch accepts what we refuse: {ours}"
        return
    assert not isinstance(theirs, Exception), f"torch refuses what we accept: {theirs}"
    assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())
    torch.testing.assert_close(ours, theirs)
    if ours.numel() > 0:
        _check_gradients(arguments, torch.randn_like(ours))
