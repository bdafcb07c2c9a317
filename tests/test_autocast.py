"""Autocast: the casts of a region's weights, how long they last, and what makes them anew."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
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


def test_a_region_is_silent(device: str) -> None:
    """Telling regions apart saves nothing for a backward, so a checkpoint counts the same tensors twice."""
    _, w, _ = _parameters(device)
    packed: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t)
    with _region(device), hooks:
        _cast(device, w)
    assert not packed


# --- through the operator -------------------------------------------------------------------------------------------


def _steps(call: Callable[..., Tensor], device: str, calls: int) -> list[Tensor]:
    """Outputs and gradients of a layer that is called several times in one region."""
    torch.manual_seed(0)
    x, w, b = _parameters(device)
    with _region(device):
        outputs = [call(x * (i + 1), w, b, 2) for i in range(calls)]
    torch.stack(outputs).float().square().mean().backward()
    assert w.grad is not None
    assert b.grad is not None
    return [*(y.detach() for y in outputs), w.grad, b.grad]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("name", ["function", "operator"])
def test_several_calls_in_a_region(name: str, calls: int, device: str) -> None:
    """As torch's; gradients of one cast add up in the region's dtype, as they do there."""
    ours = {"function": deconv_ext.conv_transpose2d, "operator": torch.ops.deconv.conv_transpose2d}[name]
    results = (_steps(call, device, calls) for call in (ours, nn.functional.conv_transpose2d))
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)


def test_an_optimizer_step_between_two_regions_and_within_one(device: str) -> None:
    x, w, b = _parameters(device)
    with torch.no_grad(), _region(device):
        before = deconv_ext.conv_transpose2d(x, w, b)
        w.add_(1)
        within = deconv_ext.conv_transpose2d(x, w, b)
    with torch.no_grad(), _region(device):
        after = deconv_ext.conv_transpose2d(x, w, b)
    assert not torch.equal(before, within)
    torch.testing.assert_close(within, after, rtol=0, atol=0)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_in_a_region(use_reentrant: bool, device: str) -> None:
    """The first call opens the region in the forward, and not in what is recomputed."""
    x, w, b = _parameters(device)
    x.requires_grad_()

    def function(x: Tensor) -> Tensor:
        return deconv_ext.conv_transpose2d(x, w, b, 2).sin()

    gradients = []
    for run in (function, lambda x: checkpoint(function, x, use_reentrant=use_reentrant)):
        x.grad = None
        with _region(device):
            y = deconv_ext.conv_transpose2d(x, w, b, 2).sum() + run(x).sum()
        y.float().backward()
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
