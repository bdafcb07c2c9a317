"""Autocast: the casts of a region's weights, how long they last, and what makes them anew."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import KINDS, operators_called, step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import deconv_ext
from deconv_ext import _autocast


def _parameters(device: str) -> tuple[Tensor, nn.Parameter, nn.Parameter]:
    make = lambda *size: nn.Parameter(torch.randn(size, device=device))  # noqa: E731
    return torch.randn(2, 4, 5, 6, device=device), make(4, 3, 3, 3), make(3)


def _cast(device: str, weight: Tensor) -> Tensor:
    """The weight as a call of the operator would read it."""
    return _autocast.lowered_once(device, torch.empty(0, device=device), weight, None)[1]


def _region(device: str, dtype: torch.dtype = torch.bfloat16, **options: Any) -> torch.autocast:
    return torch.autocast(device, dtype, **options)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "no_grad"])
def test_a_weight_is_cast_once_a_region(recorded: bool, device: str) -> None:
    _, w, b = _parameters(device)
    with torch.set_grad_enabled(recorded):
        with _region(device):
            first = _cast(device, w)
            assert first.dtype == torch.bfloat16
            assert first.requires_grad is recorded
            assert _cast(device, w) is first
            assert _cast(device, b) is not first
            with _region(device):
                assert _cast(device, w) is first
            assert _cast(device, w) is first
        with _region(device):
            assert _cast(device, w) is not first


CHANGES: dict[str, Callable[[nn.Parameter], Any]] = {
    "written": lambda w: w.detach().add_(1),
    "replaced": lambda w: setattr(w, "data", w.detach() + 1),
    "frozen": lambda w: w.requires_grad_(False),
    "optimizer": lambda w: torch.optim.SGD([w], lr=1.0).step(setattr(w, "grad", torch.ones_like(w))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_cast_again(change: str, device: str) -> None:
    _, w, _ = _parameters(device)
    with _region(device):
        before = _cast(device, w)
        CHANGES[change](w)
        after = _cast(device, w)
        assert after is not before
        assert after.requires_grad is w.requires_grad
        torch.testing.assert_close(after.detach(), w.detach().to(torch.bfloat16), rtol=0, atol=0)


def test_states_that_ask_for_another_cast(device: str) -> None:
    """No gradient is lost after a call under no_grad; inner regions have their own dtype, or no cache."""
    _, w, _ = _parameters(device)
    with _region(device):
        with torch.no_grad():
            assert not _cast(device, w).requires_grad
        recorded = _cast(device, w)
        assert recorded.requires_grad
        with _region(device, torch.float16):
            assert _cast(device, w).dtype == torch.float16
        assert _cast(device, w).dtype == torch.bfloat16
        with _region(device, cache_enabled=False):
            assert _cast(device, w) is not _cast(device, w)
    with _region(device, cache_enabled=False):
        assert _cast(device, w) is not _cast(device, w)


def test_only_trained_parameters_are_kept(device: str) -> None:
    """torch's conditions: a leaf in float32 that needs a gradient, and no view."""
    _, w, _ = _parameters(device)
    others = [w.detach(), w * 1, w.detach().requires_grad_()[:2], w.detach()[:2].requires_grad_(), w.half()]
    with _region(device):
        for one in others:
            assert _cast(device, one) is not _cast(device, one)
        assert _cast(device, bfloat16 := w.detach().bfloat16()) is bfloat16
        assert _cast(device, double := w.detach().double()) is double


def test_casts_die_with_the_region_and_with_the_weight(device: str) -> None:
    gc.disable()  # no cycle keeps them
    try:
        _, w, _ = _parameters(device)
        with _region(device):
            cast = weakref.ref(_cast(device, w))
            assert cast() is not None
        assert cast() is None
        with _region(device), torch.no_grad():
            cast = weakref.ref(_cast(device, w))
            assert cast() is not None
            del w
            assert cast() is None
        _, w, _ = _parameters(device)
        with _region(device):
            cast = weakref.ref(_cast(device, w))
            torch.clear_autocast_cache()
            assert cast() is None
    finally:
        gc.enable()


CALLS = {
    "function": (KINDS["2d"], deconv_ext.conv_transpose2d),
    "operator": (KINDS["2d"], torch.ops.deconv.conv_transpose2d),
    "1-D function": (KINDS["1d"], deconv_ext.conv_transpose1d),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("name", CALLS)
def test_several_calls_in_a_region(name: str, calls: int, dtype: torch.dtype, device: str) -> None:
    """As torch's; gradients, in float32, of one cast add up in the region's dtype, as they do there."""
    kind, ours = CALLS[name]
    operands = kind.operands(device)

    def run(call: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with _region(device, dtype):
            result = torch.stack([call(x * (i + 1), w, b, 2) for i in range(calls)])
        assert result.dtype == dtype
        return result.float() / calls

    ours, theirs = (step(functools.partial(run, call), *operands) for call in (ours, kind.theirs))
    torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=0.1)


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_a_region_cast_their_weights_once(name: str, device: str) -> None:
    """Weight, bias, and an empty tensor that tells the region."""
    kind, call = CALLS[name]
    if device == "cpu" and name == "1-D function":
        pytest.skip("on the CPU the row's weight is a view, which is not kept")
    x, w, b = (one.requires_grad_() for one in kind.operands(device))
    x = x.detach().bfloat16()
    with _region(device):  # the first region casts what opens regions, too
        call(x, w, b)

    def region() -> None:
        with _region(device):
            for _ in range(4):
                call(x, w, b)

    assert operators_called(region).count("aten::_to_copy") <= 3


def test_nested_regions(device: str) -> None:
    """Inner regions decide; a disabled one leaves float32; float64 is untouched; mixed operands meet in one dtype."""
    x, w = torch.randn(1, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    call = deconv_ext.conv_transpose2d
    with _region(device):
        assert call(x, w).dtype == torch.bfloat16
        with _region(device, torch.float16):
            assert call(x, w).dtype == torch.float16
            with torch.autocast(device, enabled=False):
                assert call(x, w).dtype == torch.float32
        assert call(x, w).dtype == torch.bfloat16
        assert call(x.double(), w.double()).dtype == torch.float64
        assert call(x.half(), w.bfloat16(), torch.zeros(3, device=device)).dtype == torch.bfloat16
    assert call(x, w).dtype == torch.float32


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_in_a_region(use_reentrant: bool, device: str) -> None:
    """The first call opens the region in the forward, and not in what is recomputed."""
    x, w, b = _parameters(device)
    x.requires_grad_()
    call = lambda x: deconv_ext.conv_transpose2d(x, w, b, 2).sin()  # noqa: E731
    gradients = []
    for run in (call, lambda x: checkpoint(call, x, use_reentrant=use_reentrant)):
        x.grad = None
        with _region(device):
            loss = call(x).sum() + run(x).sum()
        loss.backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=5e-2)


@pytest.mark.gpu
def test_a_captured_graph_casts_what_its_replays_find() -> None:
    """Also where the region had cast the weight before the capture; and casts of the capture serve no later call."""
    x, w, b = _parameters("cuda")
    with torch.no_grad(), _region("cuda"):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            deconv_ext.conv_transpose2d(x, w, b)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = deconv_ext.conv_transpose2d(x, w, b)
        w.add_(1)
        graph.replay()
        torch.testing.assert_close(captured, deconv_ext.conv_transpose2d(x, w, b), rtol=0, atol=0)
    torch.cuda.synchronize()
