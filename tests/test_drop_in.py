"""Where torch's function stands in users' code: integers of every kind, subclasses, replaced names, checkpoints."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import KINDS, OPERATOR, Kind, assert_same_step, every_kind, operators_called
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import deconv_ext

TORCHS = F.conv_transpose2d


def _overridden(*args: Any, **kwargs: Any) -> Tensor:
    with deconv_ext.override():
        return F.conv_transpose2d(*args, **kwargs)


CALLS: dict[str, Callable[..., Tensor]] = {
    "function": deconv_ext.conv_transpose2d,
    "operator": torch.ops.deconv.conv_transpose2d,
    "overload": torch.ops.deconv.conv_transpose2d.default,
    "override": _overridden,
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def _operands(device: str, **options: Any) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 4, 5, 6, device=device, **options), torch.randn(4, 3, 3, 3, device=device, **options)


INTEGERS: list[dict[str, Any]] = [
    {"stride": np.int64(2)}, {"stride": np.int32(2), "padding": np.uint8(1)}, {"stride": (np.int64(2), 1)},
    {"padding": torch.tensor(1)}, {"padding": torch.tensor([1])}, {"padding": (torch.tensor(1), 0)},
    {"stride": 3, "output_padding": np.int16(2)}, {"dilation": torch.tensor(2, dtype=torch.int32)},
    {"groups": np.int64(2)}, {"groups": torch.tensor(2)}, {"stride": [np.int64(2)], "dilation": [np.int64(1), 2]},
    {"stride": torch.Size([2, 1])}, {"stride": (2,)}, {"stride": [2], "padding": (1, 0)},
]  # fmt: skip


@every_call
@pytest.mark.parametrize("needs_grad", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("arguments", INTEGERS, ids=str)
def test_integers(arguments: dict[str, Any], needs_grad: bool, call: Callable[..., Tensor], device: str) -> None:
    x, w = _operands(device, requires_grad=needs_grad)
    torch.testing.assert_close(call(x, w, **arguments), TORCHS(x, w, **arguments))


@every_call
def test_what_is_no_integer_is_refused(call: Callable[..., Tensor], device: str) -> None:
    x, w = _operands(device)
    for value in (2.0, np.float64(2), torch.tensor(2.0), torch.tensor([2, 2, 2]), "2", None, True):
        for function in (call, TORCHS):
            with pytest.raises((TypeError, RuntimeError, ValueError), match="stride"):
                function(x, w, None, value)
    torch.testing.assert_close(call(x, w, None, 2), TORCHS(x, w, None, 2))


@pytest.mark.parametrize("direction", ["grad_input", "grad_weight", "backward"])
def test_integers_of_the_gradients(direction: str, device: str) -> None:
    x, w = _operands(device)
    gy = torch.randn_like(TORCHS(x, w, None, 2, 1))
    operands = {"grad_input": (gy, w, [5, 6]), "grad_weight": (x, gy, 3), "backward": (gy, x, w)}[direction]
    operator = getattr(torch.ops.deconv, f"conv_transpose2d_{direction}")
    expected = operator(*operands, (2, 2), (1, 1))
    for arguments in ((2, 1), (np.int64(2), torch.tensor(1))):
        torch.testing.assert_close(operator(*operands, *arguments), expected)
        torch.testing.assert_close(operator.default(*operands, stride=arguments[0], padding=arguments[1]), expected)


def test_integers_of_explain_and_of_1d(device: str) -> None:
    x, w = _operands("meta")
    assert deconv_ext.explain(x, w, None, np.int64(2), torch.tensor(1)) == deconv_ext.explain(x, w, None, 2, 1)
    kind = KINDS["1d"]
    operands = kind.operands(device)
    torch.testing.assert_close(kind.ours(*operands, np.int64(2), torch.tensor(1)), kind.theirs(*operands, 2, 1))


@every_call
@pytest.mark.parametrize("stride", [2, np.int64(2), torch.tensor(2)], ids=["int", "numpy", "tensor"])
@pytest.mark.filterwarnings("ignore")  # jit is deprecated, and warns of tensors that become integers
def test_integers_of_a_jit_trace(stride: Any, call: Callable[..., Tensor], device: str) -> None:
    """Also a padding that follows from a shape, which is a tensor while jit traces."""
    x, w = _operands(device)
    traced = torch.jit.trace(lambda x, w: call(x, w, None, stride, w.shape[2] // 2), (x, w))
    assert OPERATOR in str(traced.graph)
    torch.testing.assert_close(traced(x, w), TORCHS(x, w, None, 2, 1))


class Scaled(Tensor):
    """A weight that is stored halved, known to torch's functions only, as quantised weights are."""

    asked: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        if func in [kind.theirs for kind in KINDS.values()]:
            plain = [a.as_subclass(Tensor) * 2 if isinstance(a, Scaled) else a for a in args]
            return getattr(F, func.__name__)(*plain, **(kwargs or {}))
        if func is torch.ops.deconv.conv_transpose2d.default:
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs)


class Logged(Tensor):
    """Leaves everything to torch."""

    asked: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(func)
        return super().__torch_function__(func, types, args, kwargs)


class Tagged(Tensor):
    """No handler of its own."""

    asked: ClassVar[list[Any]] = []


def _by_layer(layer: type[nn.Module], x: Tensor, w: Tensor) -> Tensor:
    made = layer(4, 3, 3, 2, bias=False, device=x.device)
    made.weight = nn.Parameter(w, requires_grad=w.requires_grad)
    return made(x)


def _by_override(kind: Kind, x: Tensor, w: Tensor) -> Tensor:
    with deconv_ext.override():
        return _by_layer(kind.torchs, x, w)


WAYS: dict[str, Callable[[Kind, Tensor, Tensor], Tensor]] = {
    "function": lambda kind, x, w: kind.ours(x, w, None, 2),
    "module": lambda kind, x, w: _by_layer(kind.layer, x, w),
    "override": _by_override,
}


@every_kind
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("needs_grad", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize("special", [Scaled, Logged, Tagged])
def test_subclasses_get_torchs_function(
    special: type[Tensor], needs_grad: bool, way: Callable[[Kind, Tensor, Tensor], Tensor], kind: Kind, device: str
) -> None:
    """What they hand back to torch runs on the operator."""
    x, w, _ = kind.operands(device)
    expected = kind.theirs(x, w * 2 if special is Scaled else w, None, 2)
    w = w.as_subclass(special).requires_grad_(needs_grad)
    assert OPERATOR in operators_called(lambda: way(kind, x, w))
    special.asked.clear()  # type: ignore[attr-defined]
    result = way(kind, x, w)
    torch.testing.assert_close(result.as_subclass(Tensor), expected)
    assert result.requires_grad is needs_grad
    if special is not Tagged:
        assert [f for f in special.asked if "conv_transpose" in str(f)] == [kind.theirs]  # type: ignore[attr-defined]
    if special is not Scaled:
        assert type(result) is special


@every_kind
@pytest.mark.parametrize("position", range(3))
def test_a_subclass_may_refuse_as_any_operand(position: int, kind: Kind, device: str) -> None:
    class Refuses(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented if func is kind.theirs else super().__torch_function__(func, types, args, kwargs)

    operands = kind.operands(device)
    operands[position] = operands[position].as_subclass(Refuses)
    for call in (kind.ours, kind.theirs):
        with pytest.raises(TypeError, match="conv_transpose"):
            call(*operands)
    with deconv_ext.override(), pytest.raises(TypeError, match="conv_transpose"):
        kind.theirs(*operands)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name of torch's functions stands for ours, as people patch it."""
    for kind in KINDS.values():
        for module in (F, torch):
            monkeypatch.setattr(module, kind.theirs.__name__, kind.ours)


@every_kind
@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
def test_torchs_names_replaced_by_ours(dtype: torch.dtype, kind: Kind, device: str) -> None:
    if dtype.is_complex and device == "cuda":
        pytest.skip("complex convolutions on CUDA are torch's own matter")
    layer = kind.torchs(4, 3, 3, 2, dtype=dtype, device=device)
    x = torch.randn(kind.x, dtype=dtype, device=device)
    expected = kind.theirs(x, layer.weight, layer.bias, 2)
    bounds = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}  # one rounding of either side
    torch.testing.assert_close(layer(x), expected, **bounds)
    with deconv_ext.override():
        torch.testing.assert_close(layer(x), expected, **bounds)
    layer(x).abs().sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.usefixtures("replaced")
def test_torchs_names_replaced_by_ours_where_torch_traces(device: str) -> None:
    layer = nn.ConvTranspose2d(4, 3, 3, 2, device=device)
    x = torch.randn(2, 4, 5, 6, device=device)
    expected = TORCHS(x, layer.weight, layer.bias, 2)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), expected)
    with torch.autocast(device, torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer.to("meta")(x.to("meta")).shape == expected.shape


def _keep_convolutions(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_ours = func is torch.ops.deconv.conv_transpose2d.default
    return CheckpointPolicy.MUST_SAVE if is_ours else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("selective", [False, True], ids=["whole", "selective"])
@pytest.mark.parametrize("way", ["override inside", "convert"])
def test_checkpointed_layers(way: str, selective: bool, device: str) -> None:
    """The ways that override's docstring gives: what is recomputed runs on the operator too."""
    x, w = _operands(device)
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_convolutions)
    options: dict[str, Any] = {"context_fn": contexts} if selective else {}
    call = _overridden if way == "override inside" else deconv_ext.conv_transpose2d  # what a converted layer calls

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda x, w: call(x, w, None, 2).sin(), x, w, use_reentrant=False, **options)

    assert_same_step(ours, lambda x, w: TORCHS(x, w, None, 2).sin(), x, w)
    loss = ours(x.requires_grad_(), w.requires_grad_()).sum()
    assert OPERATOR in operators_called(loss.backward)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("unbatched", [False, True])
def test_no_output_channels(unbatched: bool, layout: torch.memory_format, dtype: torch.dtype) -> None:
    """An empty result, as torch's; zero for the input's gradient, where cuDNN 9.19 raises in the backward."""
    x = torch.randn(2, 4, 5, 6, device="cuda", dtype=dtype).to(memory_format=layout)
    x = (x[0] if unbatched else x).requires_grad_()
    w = torch.randn(4, 0, 3, 3, device="cuda", dtype=dtype, requires_grad=True)
    b = torch.randn(0, device="cuda", dtype=dtype, requires_grad=True)
    y = deconv_ext.conv_transpose2d(x, w, b, 2, 1)
    torch.testing.assert_close(y, TORCHS(x, w, b, 2, 1))
    gradients = torch.autograd.grad(y.sum(), (x, w, b))
    torch.testing.assert_close(gradients, tuple(map(torch.zeros_like, (x, w, b))), rtol=0, atol=0)


def test_no_output_channels_as_torch_has_it_on_this_device(device: str) -> None:
    """On the CPU torch raises, or gives an empty result, by its version."""
    x, w = torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 0, 3, 3, device=device)
    outcomes = []
    for call in (deconv_ext.conv_transpose2d, torch.ops.deconv.conv_transpose2d, TORCHS):
        try:
            outcomes.append(str(call(x, w).shape))
        except RuntimeError as error:
            outcomes.append(str(error).partition(".")[0])
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize("direction", ["forward", "grad_input", "grad_weight"])
def test_no_output_channels_of_meta_tensors(direction: str) -> None:
    x, w = torch.randn(2, 4, 5, 6, device="meta"), torch.randn(4, 0, 3, 3, device="meta")
    assert "plan: none, the weight has no output channels" in deconv_ext.explain(x, w, direction=direction)
    assert deconv_ext.conv_transpose2d(x, w).shape == (2, 0, 7, 8)
