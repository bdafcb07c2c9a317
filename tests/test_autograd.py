"""Derivatives: both modes, any order, torch.func, vmap, autocast, checkpointing."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import deconv_ext
from deconv_ext import _autograd

# Slow mode compares every entry of the Jacobian.
CONFIGURATIONS = {
    "plain": {},
    "stride": {"stride": 2, "padding": 1, "output_padding": 1},
    "groups": {"stride": (2, 1), "padding": (1, 0), "groups": 2},
    "dilation": {"stride": 2, "padding": (2, 1), "dilation": (1, 3), "output_padding": (0, 2)},
}
_ORDER = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}


@pytest.fixture(params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def conv(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    """(stride, padding, output_padding, groups, dilation)"""
    return tuple({**_ORDER, **request.param}.values())


def _tensors(conv: tuple[Any, ...], device: str, unbatched: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Double-precision input, weight and bias that need gradients."""
    make = lambda *size: torch.randn(size, dtype=torch.float64, device=device, requires_grad=True)  # noqa: E731
    return make(*([] if unbatched else [2]), 4, 3, 2), make(4, 3, 3, 2), make(3 * conv[3])


def _grad_output(x: Tensor, w: Tensor, conv: tuple[Any, ...]) -> Tensor:
    return torch.randn_like(F.conv_transpose2d(x, w, None, *conv)).requires_grad_()


def _function(x: Tensor, w: Tensor, b: Tensor | None, *conv: Any) -> Tensor:
    """The autograd Function that serves CUDA and tracing, on any device."""
    return _autograd._apply_forward(x, w, b, *conv)


FORWARDS = {"operator": deconv_ext.conv_transpose2d, "function": _function}


def _scalar(function: Callable[..., Tensor], conv: tuple[Any, ...]) -> Callable[..., Tensor]:
    """A loss whose first and second derivatives are not constant."""
    return lambda *tensors: function(*tensors, *conv).sin().sum()


# --- numerical checks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("function", FORWARDS.values(), ids=FORWARDS.keys())
def test_gradcheck(function: Callable[..., Tensor], unbatched: bool, conv: tuple[Any, ...], device: str) -> None:
    tensors = _tensors(conv, device, unbatched)
    assert gradcheck(lambda *t: function(*t, *conv), tensors, check_forward_ad=True)


@pytest.mark.parametrize("function", FORWARDS.values(), ids=FORWARDS.keys())
def test_gradgradcheck(function: Callable[..., Tensor], conv: tuple[Any, ...], device: str) -> None:
    assert gradgradcheck(lambda *t: function(*t, *conv), _tensors(conv, device), check_fwd_over_rev=True)


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("direction", ["grad_input", "grad_weight"])
def test_gradients_of_gradient_operators(direction: str, unbatched: bool, conv: tuple[Any, ...], device: str) -> None:
    x, w, _ = _tensors(conv, device, unbatched)
    gy = _grad_output(x, w, conv)
    operator = getattr(torch.ops.deconv, f"conv_transpose2d_{direction}")
    first, second, extent = {"grad_input": (gy, w, (3, 2)), "grad_weight": (x, gy, (3, 2))}[direction]
    args = (extent, *conv)
    assert gradcheck(lambda a, b: operator(a, b, *args), (first, second), check_forward_ad=True)
    assert gradgradcheck(lambda a, b: operator(a, b, *args), (first, second))


def test_gradients_of_both_gradients(conv: tuple[Any, ...], device: str) -> None:
    """A call of the operator for both that is itself differentiated, by either mode."""
    x, w, _ = _tensors(conv, device)
    operands = (_grad_output(x, w, conv), x, w)
    assert gradcheck(lambda *t: torch.ops.deconv.conv_transpose2d_backward(*t, *conv), operands, check_forward_ad=True)


class _Logged(Tensor):
    """A subclass that sees the operators it meets; its data lie in `inner`."""

    inner: Tensor
    seen: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, inner: Tensor) -> "_Logged":
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        return func(*tree_map_only(_Logged, lambda one: one.inner, args), **(kwargs or {}))


@pytest.mark.parametrize("position", range(3))
def test_a_subclass_sees_the_operator_for_both_gradients(position: int, device: str) -> None:
    conv = (2, 1, 1, 1, 1)
    x, w, _ = (t.detach() for t in _tensors(conv, device))
    operands = [_grad_output(x, w, conv).detach(), x, w]
    expected = torch.ops.deconv.conv_transpose2d_backward(*operands, *conv)
    operands[position] = _Logged(operands[position])
    _Logged.seen.clear()
    results = torch.ops.deconv.conv_transpose2d_backward(*operands, *conv)
    assert _Logged.seen == ["deconv.conv_transpose2d_backward.default"]
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


@pytest.mark.parametrize("lazy", ["negated", "conjugated", "zeros"])
def test_gradients_that_are_resolved_late(lazy: str, device: str) -> None:
    """Views with a bit for their sign and zeros without memory, in eager backwards and the operators."""
    conv = (2, 1, 1, 1, 1)
    x, w, b = _tensors(conv, device)
    gy = _grad_output(x, w, conv).detach()
    if lazy == "conjugated":  # what the backward of a conjugated complex number gives
        pair = torch.complex(torch.zeros_like(gy), gy).conj().imag
        assert pair.is_neg()
        late, now = pair, -gy
    else:
        late = (
            torch._neg_view(gy)
            if lazy == "negated"
            else torch._efficientzerotensor(gy.shape, dtype=gy.dtype, device=device)
        )
        now = -gy if lazy == "negated" else torch.zeros_like(gy)
    y = deconv_ext.conv_transpose2d(x, w, b, *conv)
    first, second = (torch.autograd.grad(y, (x, w, b), one, retain_graph=True) for one in (late, now))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    if lazy != "zeros":
        with torch.no_grad():
            first, second = (torch.ops.deconv.conv_transpose2d_backward(one, x, w, *conv) for one in (late, now))
            torch.testing.assert_close(first, second, rtol=0, atol=0)
            late_x, now_x = torch._neg_view(x), -x
            first, second = (deconv_ext.conv_transpose2d(one, w, b, *conv) for one in (late_x, now_x))
            torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_both_gradients_of_nothing_and_in_inference_mode(device: str) -> None:
    conv = (2, 1, 1, 1, 1)
    x, w, _ = (t.detach() for t in _tensors(conv, device))
    gy = _grad_output(x, w, conv).detach()
    by_input, by_weight = torch.ops.deconv.conv_transpose2d_backward(gy[:0], x[:0], w, *conv)
    assert by_input.shape == x[:0].shape
    assert by_weight.count_nonzero() == 0
    with torch.inference_mode():
        results = torch.ops.deconv.conv_transpose2d_backward(gy, x, w, *conv)
    torch.testing.assert_close(results, torch.ops.deconv.conv_transpose2d_backward(gy, x, w, *conv), rtol=0, atol=0)


def test_gradients_of_batched_gradients(conv: tuple[Any, ...], device: str) -> None:
    """`is_grads_batched` vmaps over the backward."""
    x, w, b = _tensors(conv, device)
    output = deconv_ext.conv_transpose2d(x, w, b, *conv)
    many = torch.randn(3, *output.shape, dtype=output.dtype, device=device)
    batched = torch.autograd.grad(output, (x, w, b), many, is_grads_batched=True, retain_graph=True)
    for index in range(3):
        single = torch.autograd.grad(output, (x, w, b), many[index], retain_graph=True)
        for all_of_them, one in zip(batched, single, strict=True):
            torch.testing.assert_close(all_of_them[index], one)


# --- against torch's own operator -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "needs", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_torchs(dtype: torch.dtype, needs: tuple[bool, ...], conv: tuple[Any, ...], device: str) -> None:
    """Also with frozen weights, and with an input that needs no gradient."""
    tensors = [t.detach().to(dtype) for t in _tensors(conv, device)]
    gradients = []
    for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d):
        leaves = [t.clone().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
        _scalar(function, conv)(*leaves).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for ours, theirs, need in zip(*gradients, needs, strict=True):
        assert (ours is not None) is need
        if need:
            torch.testing.assert_close(ours, theirs)


def test_no_graph_without_need(device: str) -> None:
    x, w, _ = _tensors((1, 0, 0, 1, 1), device)
    assert not deconv_ext.conv_transpose2d(x.detach(), w.detach()).requires_grad
    with torch.no_grad():
        assert not deconv_ext.conv_transpose2d(x, w).requires_grad
    with torch.inference_mode():
        assert deconv_ext.conv_transpose2d(x, w).is_inference()


def test_backward_needs_no_graph_of_its_own(device: str) -> None:
    """A plain backward records nothing; `create_graph` does."""
    x, w, _ = _tensors((1, 0, 0, 1, 1), device)
    output = deconv_ext.conv_transpose2d(x, w).sin().sum()
    plain = torch.autograd.grad(output, (x, w), retain_graph=True)
    recorded = torch.autograd.grad(output, (x, w), create_graph=True)
    assert not any(g.requires_grad for g in plain)
    assert all(g.requires_grad for g in recorded)


def test_modified_input_is_noticed(device: str) -> None:
    """Saved tensors are versioned: writing into one before backward is an error, not a wrong gradient."""
    x, w, _ = _tensors((1, 0, 0, 1, 1), device)
    kept = x * 1
    output = deconv_ext.conv_transpose2d(kept, w).sum()
    kept.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_complex_gradients() -> None:
    make = lambda *size: torch.randn(size, dtype=torch.complex128)  # noqa: E731
    x, w, b = make(1, 2, 3, 2), make(2, 2, 2, 3), make(2)
    gradients = []
    for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        function(*leaves, 2, 1).abs().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    assert gradcheck(lambda *t: deconv_ext.conv_transpose2d(*t, 2, 1), leaves)


# --- torch.func -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [grad, jacrev, hessian], ids=lambda t: t.__name__)
@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_transforms(transform: Callable[..., Any], argnum: int, conv: tuple[Any, ...], device: str) -> None:
    tensors = [t.detach() for t in _tensors(conv, device)]
    ours, theirs = (
        transform(_scalar(function, conv), argnums=argnum)(*tensors)
        for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
def test_jvp(which: tuple[int, ...], conv: tuple[Any, ...], device: str) -> None:
    tensors = [t.detach() for t in _tensors(conv, device)]
    tangents = tuple(torch.randn_like(tensors[i]) for i in which)

    def pushed(function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        def of_some(*some: Tensor) -> Tensor:
            every = list(tensors)
            for index, one in zip(which, some, strict=True):
                every[index] = one
            return function(*every, *conv)

        return jvp(of_some, tuple(tensors[i] for i in which), tangents)

    for ours, theirs in zip(pushed(deconv_ext.conv_transpose2d), pushed(F.conv_transpose2d), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_dual_numbers(conv: tuple[Any, ...], device: str) -> None:
    """Forward-mode AD without torch.func, of an unbatched input too."""
    for unbatched in (False, True):
        x, w, b = (t.detach() for t in _tensors(conv, device, unbatched))
        tangents = [torch.randn_like(t) for t in (x, w, b)]
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, tangent) for t, tangent in zip((x, w, b), tangents, strict=True)]
            ours = forward_ad.unpack_dual(deconv_ext.conv_transpose2d(*duals, *conv))
            theirs = forward_ad.unpack_dual(F.conv_transpose2d(*duals, *conv))
            torch.testing.assert_close(ours.primal, theirs.primal)
            torch.testing.assert_close(ours.tangent, theirs.tangent)


def test_vjp(conv: tuple[Any, ...], device: str) -> None:
    tensors = [t.detach() for t in _tensors(conv, device)]
    results = []
    for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d):
        output, pull = vjp(lambda *t, function=function: function(*t, *conv), *tensors)
        results.append((output, *pull(torch.ones_like(output))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_per_sample_gradients(conv: tuple[Any, ...], device: str) -> None:
    x, w, b = (t.detach() for t in _tensors(conv, device))
    samples = torch.randn(5, *x.shape[1:], dtype=x.dtype, device=device)
    for samples_of_one in (samples, samples.unsqueeze(1)):  # 3-D and 4-D inside vmap
        ours, theirs = (
            vmap(grad(_scalar(function, conv), argnums=(0, 1, 2)), in_dims=(0, None, None))(samples_of_one, w, b)
            for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d)
        )
        torch.testing.assert_close(ours, theirs)


# --- vmap of the operators ------------------------------------------------------------------------------------------

SIZE = 3  # of the vmapped dimension


def _looped(operator: Callable[..., Tensor], in_dims: tuple[int | None, ...], operands: tuple[Tensor, ...]) -> Tensor:
    """What vmap means: one call a sample."""
    pick = lambda t, d, i: t if d is None else t.select(d, i)  # noqa: E731
    return torch.stack(
        [operator(*(pick(t, d, i) for t, d in zip(operands, in_dims, strict=True))) for i in range(SIZE)]
    )


def _with_samples(tensor: Tensor, dim: int | None) -> Tensor:
    """`tensor`, or SIZE random tensors of its size stacked along `dim`."""
    if dim is None:
        return tensor
    return torch.randn(SIZE, *tensor.shape, dtype=tensor.dtype, device=tensor.device).movedim(0, dim)


def _check_vmap(
    operator: Callable[..., Tensor], in_dims: tuple[int | None, ...], operands: tuple[Tensor, ...], out_dim: int = 0
) -> None:
    operands = tuple(_with_samples(t.detach(), d) for t, d in zip(operands, in_dims, strict=True))
    result = vmap(operator, in_dims=in_dims, out_dims=out_dim)(*operands)
    torch.testing.assert_close(result.movedim(out_dim, 0), _looped(operator, in_dims, operands))


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("dims", [(0, None), (1, None), (-1, None), (None, 0), (None, 2), (0, 0), (2, 1)], ids=str)
@pytest.mark.parametrize("direction", ["forward", "grad_input", "grad_weight"])
def test_vmap(
    direction: str, dims: tuple[int | None, int | None], unbatched: bool, conv: tuple[Any, ...], device: str
) -> None:
    x, w, _ = _tensors(conv, device, unbatched)
    gy = _grad_output(x, w, conv)
    if direction == "forward":
        _check_vmap(lambda a, b: torch.ops.deconv.conv_transpose2d(a, b, None, *conv), dims, (x, w))
    elif direction == "grad_input":
        _check_vmap(lambda a, b: torch.ops.deconv.conv_transpose2d_grad_input(a, b, (3, 2), *conv), dims, (gy, w))
    else:
        _check_vmap(lambda a, b: torch.ops.deconv.conv_transpose2d_grad_weight(a, b, (3, 2), *conv), dims, (x, gy))


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("dims", [(0, None, None), (None, 1, None), (None, None, 2), (1, 0, None), (-1, 2, 1)], ids=str)
def test_vmap_of_both_gradients(
    dims: tuple[int | None, ...], unbatched: bool, conv: tuple[Any, ...], device: str
) -> None:
    x, w, _ = _tensors(conv, device, unbatched)
    operands = (_grad_output(x, w, conv), x, w)
    for index in range(2):  # a result of which no operand is batched is expanded
        _check_vmap(lambda *t, i=index: torch.ops.deconv.conv_transpose2d_backward(*t, *conv)[i], dims, operands)


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize(
    "dims",
    [
        (None, None, 0),
        (None, None, 1),
        (0, None, None),
        (0, None, 1),
        (1, None, 0),
        (None, 0, None),
        (None, 1, 0),
        (1, 2, 1),
    ],
    ids=str,
)
def test_vmap_with_bias(dims: tuple[int | None, ...], unbatched: bool, conv: tuple[Any, ...], device: str) -> None:
    operator = lambda *t: torch.ops.deconv.conv_transpose2d(*t, *conv)  # noqa: E731
    _check_vmap(operator, dims, _tensors(conv, device, unbatched))


@pytest.mark.parametrize("out_dim", [1, 2, -1])
def test_vmap_out_dims(out_dim: int, device: str) -> None:
    conv = (2, 1, 1, 1, 1)
    operator = lambda *t: torch.ops.deconv.conv_transpose2d(*t, *conv)  # noqa: E731
    _check_vmap(operator, (0, 0, 0), _tensors(conv, device), out_dim)


def test_nested_vmap(device: str) -> None:
    """Per pair of input and weight: a vmap over each."""
    x = torch.randn(2, 1, 4, 3, 2, dtype=torch.float64, device=device)
    w = torch.randn(3, 4, 3, 3, 2, dtype=torch.float64, device=device)
    outer = vmap(vmap(deconv_ext.conv_transpose2d, in_dims=(None, 0)), in_dims=(0, None))
    expected = torch.stack([torch.stack([F.conv_transpose2d(a, b) for b in w]) for a in x])
    torch.testing.assert_close(outer(x, w), expected)


# --- autocast -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, device: str) -> None:
    """The region's dtype inside, float32 gradients at float32 parameters; the same values as torch's operator."""
    x = torch.randn(2, 4, 5, 6, device=device)
    results = []
    for kind in (deconv_ext.ConvTranspose2d, torch.nn.ConvTranspose2d):
        torch.manual_seed(1)
        layer = kind(4, 6, 3, 2, 1).to(device)
        with torch.autocast(device, dtype=dtype):
            output = layer(x)
        assert output.dtype == dtype
        output.float().square().mean().backward()
        assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32
        results.append((output.float(), layer.weight.grad, layer.bias.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=2e-2)


def test_autocast_nested(device: str) -> None:
    """Inner regions decide; a disabled one leaves float32; float64 is untouched; mixed operands meet in one dtype."""
    x, w = torch.randn(1, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)
    call = deconv_ext.conv_transpose2d
    with torch.autocast(device, dtype=torch.bfloat16):
        assert call(x, w).dtype == torch.bfloat16
        with torch.autocast(device, dtype=torch.float16):
            assert call(x, w).dtype == torch.float16
            with torch.autocast(device, enabled=False):
                assert call(x, w).dtype == torch.float32
        assert call(x, w).dtype == torch.bfloat16
        assert call(x.double(), w.double()).dtype == torch.float64
        assert call(x.half(), w.bfloat16(), torch.zeros(3, device=device)).dtype == torch.bfloat16
    assert call(x, w).dtype == torch.float32


# --- checkpointing --------------------------------------------------------------------------------------------------


def test_checkpoint_under_a_mode(device: str) -> None:
    """What is recomputed in the backward is recorded, also where a mode watches."""
    layer = deconv_ext.ConvTranspose2d(4, 3, 3, 2, 1).to(device)
    x = torch.randn(2, 4, 5, 6, device=device, requires_grad=True)
    layer(x).sin().sum().backward()
    expected, x.grad = x.grad, None
    with FlopCounterMode(display=False):
        checkpoint(layer, x, use_reentrant=False).sin().sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_checkpoint_of_both_gradients(device: str) -> None:
    """A recomputation that stops at what it needs, in the middle of a differentiated backward."""
    conv = (2, 1, 1, 1, 1)
    x, w, _ = _tensors(conv, device)
    gy = _grad_output(x, w, conv)

    def function(gy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), torch.ops.deconv.conv_transpose2d_backward(gy, x, w, *conv)[1]

    exponential, _ = checkpoint(function, gy, x, w, use_reentrant=False)
    exponential.sum().backward()
    torch.testing.assert_close(x.grad, x.exp())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant: bool, device: str) -> None:
    layer = deconv_ext.ConvTranspose2d(4, 3, 3, 2, 1, device=device)
    x = torch.randn(2, 4, 5, 6, device=device, requires_grad=True)
    expected = torch.autograd.grad(layer(x).sin().sum(), (x, layer.weight, layer.bias))
    checkpoint(layer, x, use_reentrant=use_reentrant).sin().sum().backward()
    for ours, theirs in zip((x.grad, layer.weight.grad, layer.bias.grad), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("unbatched", [False, True])
def test_bias_gradient_in_half_precision(unbatched: bool, device: str) -> None:
    """Summed in float32: adding ones one after another in float16 would stop at 2048."""
    x = torch.zeros(*([] if unbatched else [2]), 1, 60, 60, dtype=torch.float16, device=device)
    w = torch.zeros(1, 1, 1, 1, dtype=torch.float16, device=device)
    b = torch.zeros(1, dtype=torch.float16, device=device, requires_grad=True)
    deconv_ext.conv_transpose2d(x, w, b).sum(dtype=torch.float32).backward()
    assert b.grad.item() == (3600 if unbatched else 7200)
