"""Derivatives: both modes, any order, torch.func, vmap, checkpointing."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same_step
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import deconv_ext
from deconv_ext import _autograd

# (stride, padding, output_padding, groups, dilation). Slow mode compares every entry of the Jacobian.
CONFIGURATIONS = {
    "plain": (1, 0, 0, 1, 1),
    "stride": (2, 1, 1, 1, 1),
    "groups": ((2, 1), (1, 0), 0, 2, 1),
    "dilation": (2, (2, 1), (0, 2), 1, (1, 3)),
}
STRIDED = CONFIGURATIONS["stride"]
every_configuration = pytest.mark.parametrize("conv", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
every_dims = pytest.mark.parametrize("unbatched", [False, True])


def _tensors(
    conv: tuple[Any, ...], device: str, unbatched: bool = False, requires_grad: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Double-precision input, weight and bias."""
    options: dict[str, Any] = {"dtype": torch.float64, "device": device, "requires_grad": requires_grad}
    sizes = ([*([] if unbatched else [2]), 4, 3, 2], [4, 3, 3, 2], [3 * conv[3]])
    x, w, b = (torch.randn(size, **options) for size in sizes)
    return x, w, b


def _grad_output(x: Tensor, w: Tensor, conv: tuple[Any, ...]) -> Tensor:
    return torch.randn_like(F.conv_transpose2d(x, w, None, *conv)).detach().requires_grad_(x.requires_grad)


def _operator_call(
    direction: str, conv: tuple[Any, ...], device: str, unbatched: bool = False, requires_grad: bool = True
) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """An operator as a function of tensors alone, and such tensors."""
    x, w, b = _tensors(conv, device, unbatched, requires_grad)
    gy = _grad_output(x, w, conv)
    name, operands, extent = {
        "forward": ("", (x, w, b), ()),
        "grad_input": ("_grad_input", (gy, w), ((3, 2),)),
        "grad_weight": ("_grad_weight", (x, gy), ((3, 2),)),
        "backward": ("_backward", (gy, x, w), ()),
    }[direction]
    operator = getattr(torch.ops.deconv, f"conv_transpose2d{name}")
    return lambda *t: operator(*t, *extent, *conv), operands


# --- numerical checks -----------------------------------------------------------------------------------------------


@every_dims
@every_configuration
@pytest.mark.parametrize("function", [deconv_ext.conv_transpose2d, _autograd._apply_forward], ids=["eager", "Function"])
def test_gradcheck(function: Callable[..., Tensor], unbatched: bool, conv: tuple[Any, ...], device: str) -> None:
    """Both modes, batched gradients and second order; on any device also the Function of CUDA and tracing."""
    tensors = _tensors(conv, device, unbatched)
    assert gradcheck(lambda *t: function(*t, *conv), tensors, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda *t: function(*t, *conv), tensors, check_fwd_over_rev=True)


@every_dims
@every_configuration
@pytest.mark.parametrize("direction", ["grad_input", "grad_weight", "backward"])
def test_gradients_of_gradient_operators(direction: str, unbatched: bool, conv: tuple[Any, ...], device: str) -> None:
    function, operands = _operator_call(direction, conv, device, unbatched)
    assert gradcheck(function, operands, check_forward_ad=True)
    if direction != "backward":
        assert gradgradcheck(function, operands)


class _Logged(Tensor):
    """A subclass that sees the operators it meets; its data lie in `inner`."""

    inner: Tensor
    seen: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, inner: Tensor) -> "_Logged":
        logged = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[attr-defined]
        logged.inner = inner
        return logged

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        return func(*tree_map_only(_Logged, lambda one: one.inner, args), **(kwargs or {}))


@pytest.mark.parametrize("position", range(3))
def test_a_subclass_sees_the_operator_for_both_gradients(position: int, device: str) -> None:
    function, operands = _operator_call("backward", STRIDED, device, requires_grad=False)
    expected = function(*operands)
    _Logged.seen.clear()
    results = function(*(_Logged(one) if index == position else one for index, one in enumerate(operands)))
    assert _Logged.seen == ["deconv.conv_transpose2d_backward.default"]
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


@pytest.mark.parametrize("lazy", ["negated", "conjugated", "zeros"])
def test_operands_that_are_resolved_late(lazy: str, device: str) -> None:
    """Views with a bit for their sign and zeros without memory, in eager backwards and the operators."""
    x, w, b = _tensors(STRIDED, device)
    gy = _grad_output(x, w, STRIDED).detach()
    late, now = {
        "negated": lambda: (torch._neg_view(gy), -gy),
        # what the backward of a conjugated complex number gives
        "conjugated": lambda: (torch.complex(torch.zeros_like(gy), gy).conj().imag, -gy),
        "zeros": lambda: (torch._efficientzerotensor(gy.shape, dtype=gy.dtype, device=device), torch.zeros_like(gy)),
    }[lazy]()
    y = deconv_ext.conv_transpose2d(x, w, b, *STRIDED)
    first, second = (torch.autograd.grad(y, (x, w, b), one, retain_graph=True) for one in (late, now))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    if lazy != "zeros":
        assert late.is_neg()
        with torch.no_grad():
            first, second = (torch.ops.deconv.conv_transpose2d_backward(one, x, w, *STRIDED) for one in (late, now))
            torch.testing.assert_close(first, second, rtol=0, atol=0)
            first, second = (deconv_ext.conv_transpose2d(one, w, b, *STRIDED) for one in (torch._neg_view(x), -x))
            torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_both_gradients_of_nothing_and_in_inference_mode(device: str) -> None:
    function, (gy, x, w) = _operator_call("backward", STRIDED, device, requires_grad=False)
    by_input, by_weight = function(gy[:0], x[:0], w)
    assert by_input.shape == x[:0].shape
    assert by_weight.count_nonzero() == 0
    with torch.inference_mode():
        results = function(gy, x, w)
    torch.testing.assert_close(results, function(gy, x, w), rtol=0, atol=0)


# --- what is recorded -----------------------------------------------------------------------------------------------


@every_configuration
@pytest.mark.parametrize("needs", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_torchs(dtype: torch.dtype, needs: tuple[int, ...], conv: tuple[Any, ...], device: str) -> None:
    """Also with frozen weights, and with an input that needs no gradient."""
    tensors = [t.detach().to(dtype) for t in _tensors(conv, device)]
    gradients = []
    for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d):
        leaves = [t.clone().requires_grad_(bool(need)) for t, need in zip(tensors, needs, strict=True)]
        function(*leaves, *conv).sin().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert [one is not None for one in gradients[0]] == [bool(need) for need in needs]
    torch.testing.assert_close(*([one for one in side if one is not None] for side in gradients))


def test_a_graph_is_recorded_where_it_is_needed(device: str) -> None:
    """A plain backward records nothing; `create_graph` does."""
    x, w, _ = _tensors(STRIDED, device)
    assert not deconv_ext.conv_transpose2d(x.detach(), w.detach()).requires_grad
    with torch.no_grad():
        assert not deconv_ext.conv_transpose2d(x, w).requires_grad
    with torch.inference_mode():
        assert deconv_ext.conv_transpose2d(x, w).is_inference()
    output = deconv_ext.conv_transpose2d(x, w).sin().sum()
    assert not any(g.requires_grad for g in torch.autograd.grad(output, (x, w), retain_graph=True))
    assert all(g.requires_grad for g in torch.autograd.grad(output, (x, w), create_graph=True))


def test_modified_input_is_noticed(device: str) -> None:
    """Saved tensors are versioned: writing into one before backward is an error, not a wrong gradient."""
    x, w, _ = _tensors(STRIDED, device)
    kept = x * 1
    output = deconv_ext.conv_transpose2d(kept, w).sum()
    kept.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_complex_gradients() -> None:
    operands = [torch.randn(size, dtype=torch.complex128) for size in ((1, 2, 3, 2), (2, 2, 2, 3), (2,))]
    ours, theirs = (lambda *t, f=f: f(*t, 2, 1) for f in (deconv_ext.conv_transpose2d, F.conv_transpose2d))
    assert_same_step(ours, theirs, *operands)
    assert gradcheck(ours, [one.requires_grad_() for one in operands])


# --- torch.func -----------------------------------------------------------------------------------------------------


def _loss(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss whose first and second derivatives are not constant."""
    return lambda *t: function(*t).sin().sum()


def _pushed(function: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor) -> list[Any]:
    """Tangents of one, of two and of all operands."""
    results = []
    for which in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
        every = (x, w, b)

        def of_some(*some: Tensor, which: tuple[int, ...] = which, every: tuple[Tensor, ...] = every) -> Tensor:
            return function(*({**dict(enumerate(every)), **dict(zip(which, some, strict=True))}.values()))

        chosen = tuple(every[index] for index in which)
        results.append(jvp(of_some, chosen, tuple(one.cos() for one in chosen)))
    return results


def _dual(function: Callable[..., Tensor], *operands: Tensor) -> tuple[Tensor, Tensor]:
    """Forward-mode AD without torch.func."""
    with forward_ad.dual_level():
        primal, tangent = forward_ad.unpack_dual(function(*(forward_ad.make_dual(t, t.cos()) for t in operands)))
        return primal.clone(), tangent.clone()


def _pulled(function: Callable[..., Tensor], *operands: Tensor) -> tuple[Tensor, ...]:
    output, pull = vjp(function, *operands)
    return (output, *pull(output.cos()))


def _per_sample(function: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return vmap(grad(_loss(function), argnums=(0, 1, 2)), in_dims=(0, None, None))(x, w, b)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, *t: grad(_loss(f), argnums=(0, 1, 2))(*t),
    "jacrev": lambda f, *t: jacrev(_loss(f), argnums=(0, 1, 2))(*t),
    "hessian": lambda f, *t: hessian(_loss(f), argnums=(0, 1, 2))(*t),
    "jvp": _pushed,
    "dual numbers": _dual,
    "vjp": _pulled,
    "gradients of samples, 3-D inside": _per_sample,
    "gradients of samples, 4-D inside": lambda f, x, w, b: _per_sample(f, x.unsqueeze(1), w, b),
}


@every_configuration
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transforms_give_what_they_give_of_torchs(
    transform: Callable[..., Any], conv: tuple[Any, ...], device: str
) -> None:
    operands = _tensors(conv, device, requires_grad=False)
    ours, theirs = (
        transform(lambda *t, function=function: function(*t, *conv), *operands)
        for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d)
    )
    torch.testing.assert_close(ours, theirs)


# --- vmap of the operators ------------------------------------------------------------------------------------------

SAMPLES = 3


def _check_vmap(
    function: Callable[..., Any], in_dims: tuple[int | None, ...], operands: tuple[Tensor, ...], out_dim: int = 0
) -> None:
    """The same as one call a sample."""
    stacked = [
        one if dim is None else torch.randn(SAMPLES, *one.shape, dtype=one.dtype, device=one.device).movedim(0, dim)
        for one, dim in zip(operands, in_dims, strict=True)
    ]
    result = vmap(function, in_dims=in_dims, out_dims=out_dim)(*stacked)
    pick = lambda t, dim, i: t if dim is None else t.select(dim, i)  # noqa: E731
    one_by_one = [function(*(pick(t, dim, i) for t, dim in zip(stacked, in_dims, strict=True))) for i in range(SAMPLES)]
    torch.testing.assert_close(result.movedim(out_dim, 0), torch.stack(one_by_one))


BATCHED_PAIRS = [(0, None), (1, None), (-1, None), (None, 0), (None, 2), (0, 0), (2, 1)]
BATCHED = {
    "forward": [
        *((*pair, None) for pair in BATCHED_PAIRS), (None, None, 0), (None, None, 1), (0, None, 1), (1, None, 0),
        (None, 1, 0), (1, 2, 1),
    ],
    "grad_input": BATCHED_PAIRS,
    "grad_weight": BATCHED_PAIRS,
    "backward": [(0, None, None), (None, 1, None), (None, None, 2), (1, 0, None), (-1, 2, 1)],
}  # fmt: skip


@every_dims
@every_configuration
@pytest.mark.parametrize(("direction", "in_dims"), [(key, dims) for key in BATCHED for dims in BATCHED[key]], ids=str)
def test_vmap(
    direction: str, in_dims: tuple[int | None, ...], unbatched: bool, conv: tuple[Any, ...], device: str
) -> None:
    """A result of both gradients of which no operand is batched is expanded."""
    function, operands = _operator_call(direction, conv, device, unbatched, requires_grad=False)
    for index in range(2) if direction == "backward" else [...]:
        _check_vmap(lambda *t, index=index: function(*t)[index], in_dims, operands)
    if direction == "forward" and None not in in_dims:
        for out_dim in (1, 2, -1):
            _check_vmap(function, in_dims, operands, out_dim)
    if direction == "forward" and in_dims[2] is None:
        _check_vmap(lambda x, w: function(x, w, None), in_dims[:2], operands[:2])


def test_nested_vmap(device: str) -> None:
    """Per pair of input and weight: a vmap over each."""
    x = torch.randn(2, 1, 4, 3, 2, dtype=torch.float64, device=device)
    w = torch.randn(3, 4, 3, 3, 2, dtype=torch.float64, device=device)
    outer = vmap(vmap(deconv_ext.conv_transpose2d, in_dims=(None, 0)), in_dims=(0, None))
    expected = torch.stack([torch.stack([F.conv_transpose2d(a, b) for b in w]) for a in x])
    torch.testing.assert_close(outer(x, w), expected)


# --- checkpointing --------------------------------------------------------------------------------------------------


WATCHED = functools.partial(FlopCounterMode, display=False)


@pytest.mark.parametrize(
    ("use_reentrant", "mode"), [(False, nullcontext), (True, nullcontext), (False, WATCHED)], ids=str
)
def test_checkpoint(use_reentrant: bool, mode: Callable[[], Any], device: str) -> None:
    """What is recomputed in the backward is recorded, also where a mode watches."""
    operands = _tensors(STRIDED, device)
    function = lambda *t: deconv_ext.conv_transpose2d(*t, *STRIDED).sin()  # noqa: E731
    expected = torch.autograd.grad(function(*operands).sum(), operands)
    with mode():
        checkpoint(function, *operands, use_reentrant=use_reentrant).sum().backward()
    torch.testing.assert_close(tuple(one.grad for one in operands), expected, rtol=0, atol=0)


def test_checkpoint_of_both_gradients(device: str) -> None:
    """A recomputation that stops at what it needs, in the middle of a differentiated backward."""
    both, (gy, x, w) = _operator_call("backward", STRIDED, device)
    exponential, _ = checkpoint(lambda gy, x, w: (x.exp(), both(gy, x, w)[1]), gy, x, w, use_reentrant=False)
    exponential.sum().backward()
    torch.testing.assert_close(x.grad, x.exp())


@every_dims
def test_bias_gradient_in_half_precision(unbatched: bool, device: str) -> None:
    """Summed in float32: adding ones one after another in float16 would stop at 2048."""
    x = torch.zeros(*([] if unbatched else [2]), 1, 60, 60, dtype=torch.float16, device=device)
    w = torch.zeros(1, 1, 1, 1, dtype=torch.float16, device=device)
    b = torch.zeros(1, dtype=torch.float16, device=device, requires_grad=True)
    deconv_ext.conv_transpose2d(x, w, b).sum(dtype=torch.float32).backward()
    assert b.grad.item() == (3600 if unbatched else 7200)
