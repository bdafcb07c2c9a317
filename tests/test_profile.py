"""profile: which calls it finds, what it measures, what it says where it cannot, and that the model stays as it was.

Without a GPU the times are those of ATen on both sides: the tests that need times say that kernels serve the CPU.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deconv_ext
from deconv_ext import profiling

pytest.importorskip("deconv_ext.cli.measure", reason="no command line in this installation")
from deconv_ext.cli import measure


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call counts as served, and is timed briefly."""
    monkeypatch.setattr(profiling, "kernels_serve", lambda operand: True)
    monkeypatch.setattr(measure, "_ROUND_MS", 0.1)


class Net(nn.Module):
    """Two layers of a kind, one of ours, a functional call and a 1-D layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList([nn.ConvTranspose2d(4, 4, 2, stride=2), nn.ConvTranspose2d(4, 4, 2, stride=2)])
        self.norm = nn.BatchNorm2d(4)
        self.ours = deconv_ext.ConvTranspose2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.weight = nn.Parameter(torch.randn(4, 2, 3, 3))
        self.line = nn.ConvTranspose1d(2, 3, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for up in self.up:
            x = self.norm(up(x))
        x = self.ours(self.ours(x))
        x = F.dropout(F.conv_transpose2d(x, self.weight, output_padding=1, stride=(2, 3), dilation=2))
        return self.line(x.flatten(2))


def _input() -> Tensor:
    return torch.randn(2, 4, 3, 5)


# --- what it finds --------------------------------------------------------------------------------------------------


def test_finds_every_call() -> None:
    rows = deconv_ext.profile(Net(), _input())
    found = [(row.name, row.input_size, row.output_size, row.calls, row.runs) for row in rows]
    assert found == [
        ("up.0", (2, 4, 3, 5), (2, 4, 6, 10), 1, "torch"),
        ("up.1", (2, 4, 6, 10), (2, 4, 12, 20), 1, "torch"),
        ("ours", (2, 4, 12, 20), (2, 4, 12, 20), 2, "deconv_ext"),
        ("Net", (2, 4, 12, 20), (2, 2, 28, 63), 1, "torch"),
        ("line", (2, 2, 1, 1764), (2, 3, 1, 3528), 1, "torch"),
    ]
    assert [row.groups for row in rows] == [1, 1, 2, 1, 1]
    functional = rows[3]
    assert (functional.stride, functional.output_padding, functional.dilation) == ((2, 3), (1, 1), (2, 2))
    line = rows[4]
    assert line.weight_size == (2, 3, 1, 4)
    assert (line.stride, line.padding, line.output_padding, line.dilation) == ((1, 2), (0, 1), (0, 0), (1, 1))


class _Structured(nn.Sequential):
    def forward(self, images: list[Tensor], *, extra: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": self[0](images[0] + extra["x"]), "count": torch.tensor(len(images))}


def _profiled(model: nn.Module, *inputs: Any, **keywords: Any) -> deconv_ext.LayerProfile:
    """The only row."""
    torch._dynamo.reset()
    (row,) = deconv_ext.profile(model, *inputs, **keywords)
    return row


def test_finds_the_layers_of_any_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Compiled, with inputs in structures and keywords, under autocast and override, or without any."""
    layer = nn.ConvTranspose2d(4, 3, 2)
    inner = nn.Sequential(nn.ReLU(), layer)
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="eager")):
        assert _profiled(wrap(inner), _input()).name == "1"
        assert _profiled(wrap(nn.ConvTranspose2d(4, 3, 2)), _input()).name == "ConvTranspose2d"
    assert _profiled(_Structured(layer), [_input()], extra={"x": _input()}).input_size == (2, 4, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert _profiled(layer, _input()).dtype == torch.bfloat16  # the lower one
    with deconv_ext.override():
        assert _profiled(layer, _input()).runs == "deconv_ext"
    capsys.readouterr()
    assert deconv_ext.profile(nn.Conv2d(4, 3, 2), _input()) == []
    assert capsys.readouterr().out.strip().count("\n") == 0


# --- what it measures -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("timed")
def test_times_and_shares(capsys: pytest.CaptureFixture[str]) -> None:
    rows = deconv_ext.profile(Net(), _input().requires_grad_())
    shown = capsys.readouterr().out
    for row in rows:
        assert row.unmeasured is None
        assert [one.direction for one in row.directions] == ["forward", "grad_input", "grad_weight"]
        assert all(one.torch_ms > 0 < one.ours_ms and one.kernel for one in row.directions)
        assert row.torch_ms == sum(one.torch_ms for one in row.directions)
        assert row.speedup == row.torch_ms / row.ours_ms
        by = row.torch_ms if row.runs == "torch" else row.ours_ms
        assert row.share == row.calls * by / row.step_ms
        assert row.name in shown
        assert f"{row.share:.0%}" in shown
        assert str(row.input_size) in shown
    assert len({row.step_ms for row in rows}) == 1
    assert f"a step: {rows[0].step_ms:.4g} ms" in shown


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(
    ("backward", "input_needs", "weight_needs", "directions"),
    [
        (True, True, True, ["forward", "grad_input", "grad_weight"]),
        (True, False, True, ["forward", "grad_weight"]),
        (True, True, False, ["forward", "grad_input"]),
        (False, True, True, ["forward"]),
    ],
)
def test_times_the_directions_that_the_model_needs(
    backward: bool, input_needs: bool, weight_needs: bool, directions: list[str]
) -> None:
    layer = nn.ConvTranspose2d(4, 3, 2)
    layer.weight.requires_grad_(weight_needs)
    (row,) = deconv_ext.profile(layer, _input().requires_grad_(input_needs), backward=backward)
    assert [one.direction for one in row.directions] == directions


@pytest.mark.usefixtures("timed")
def test_times_what_the_model_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same strides, bias and arguments; each distinct call once; outside override and autocast."""
    seen, overridden = [], []

    class Spy(deconv_ext.override):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            overridden.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    def time_operators(direction: str, first: Any, make_another: Any, device: Any) -> dict[str, measure.Timing]:
        seen.append((direction, first))
        assert torch.equal(make_another().input, first.input) is False
        assert not torch.is_autocast_enabled("cpu")
        before = len(overridden)
        F.conv_transpose2d(first.input, first.weight)
        assert len(overridden) == before
        return {"torch": measure.Timing(2.0, 0), "ours": measure.Timing(1.0, 0)}

    monkeypatch.setattr(measure, "time_operators", time_operators)
    layer = nn.ConvTranspose2d(4, 6, (2, 3), stride=2, padding=1, groups=2)
    model = nn.Sequential(layer, nn.Conv2d(6, 4, 1), nn.Upsample((3, 5)), copy.deepcopy(layer)).bfloat16()
    x = _input().bfloat16().to(memory_format=torch.channels_last).requires_grad_()
    with Spy(), torch.autocast("cpu", torch.bfloat16):
        rows = deconv_ext.profile(model.to(memory_format=torch.channels_last), x)
    assert [row.name for row in rows] == ["0", "3"]
    assert [(row.torch_ms, row.ours_ms, row.speedup) for row in rows] == [(6.0, 3.0, 2.0)] * 2
    assert [direction for direction, _ in seen] == ["forward", "grad_input", "grad_weight"]
    assert seen[0][1].grad_output is None
    operands = seen[1][1]
    assert F.conv_transpose2d in overridden
    assert (operands.input.shape, operands.input.stride()) == (x.shape, x.stride())
    assert (operands.weight.shape, operands.weight.stride()) == (layer.weight.shape, layer.weight.stride())
    assert operands.bias.shape == (6,)
    expected = layer.bfloat16()(x)
    assert (operands.grad_output.shape, operands.grad_output.dtype) == (expected.shape, torch.bfloat16)
    case = operands.case
    assert (case["s"], case["p"], case["g"], case["k"]) == ((2, 2), (1, 1), 2, (2, 3))


@pytest.mark.usefixtures("timed")
def test_a_row_out_of_memory_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = measure.time_operators

    def time_operators(direction: str, first: Any, *rest: Any) -> Any:
        if direction == "grad_weight" and first.case["h"] == 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")
        return right(direction, first, *rest)

    monkeypatch.setattr(measure, "time_operators", time_operators)
    rows = deconv_ext.profile(Net(), _input())
    assert [row.name for row in rows if row.unmeasured] == ["up.1"]
    failed = rows[1]
    assert failed.unmeasured == "CUDA out of memory. Tried to allocate 2.00 GiB."
    assert (failed.torch_ms, failed.ours_ms, failed.speedup, failed.share) == (None, None, None, None)
    assert all(row.share for row in rows if row is not failed)
    assert "not measured: up.1: CUDA out of memory." in capsys.readouterr().out


@pytest.mark.usefixtures("timed")
def test_a_step_out_of_memory_leaves_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    class Greedy(nn.ConvTranspose2d):
        runs = 0

        def forward(self, *inputs: Any) -> Tensor:
            self.runs += 1
            if self.runs > 1:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().forward(*inputs)

    row = _profiled(Greedy(4, 3, 2), _input())
    assert row.torch_ms > 0
    assert (row.step_ms, row.share) == (None, None)
    assert "the step was not measured: CUDA out of memory." in capsys.readouterr().out
    assert _profiled(nn.ConvTranspose2d(4, 3, 2), torch.randn(0, 4, 3, 5)).unmeasured == "its batch is empty"


def test_what_it_says_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on what it cannot measure; all rows with their shapes."""
    rows = deconv_ext.profile(Net(), _input())
    shown = capsys.readouterr().out
    assert all("both sides would be ATen" in row.unmeasured for row in rows)
    assert all((row.directions, row.torch_ms, row.share, row.step_ms) == ((), None, None, None) for row in rows)
    assert shown.count("this build has no kernels for cpu and torch.float32") == 1
    assert all(str(row.input_size) in shown for row in rows)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_refusals_name_the_reason_and_leave_no_hooks() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(4, 3, 2))
    frozen = nn.ConvTranspose2d(4, 3, 2).requires_grad_(False)
    detached = {"loss": lambda y: y.detach().sum()}
    for function, options, error, text in (
        (lambda x: x, {}, TypeError, r"model must be a torch\.nn\.Module, but got function"),
        (nn.LazyConvTranspose2d(3, 2), {}, ValueError, "lazy parameters"),
        (frozen, {}, ValueError, "no tensor of the model's output needs a gradient; pass backward=False"),
        (model, detached, ValueError, "loss gave no tensor that needs a gradient"),
    ):
        with pytest.raises(error, match=text):
            deconv_ext.profile(function, _input(), **options)
    assert len(deconv_ext.profile(frozen, _input(), backward=False)) == 1
    with pytest.raises(RuntimeError, match="expected input"):  # the model's own
        deconv_ext.profile(model, torch.randn(2, 5, 3, 5))
    assert _hooks(model) == 0


# --- the model stays as it was --------------------------------------------------------------------------------------


def _hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_model_is_left_as_it_was(context: Callable[[], Any], training: bool) -> None:
    model, x = Net().train(training), _input().requires_grad_()
    model.up[0].eval()
    model.up[0].weight.grad = torch.ones_like(model.up[0].weight)

    def state() -> list[Any]:
        tensors = [x, *model.parameters(), *model.buffers()]
        copies = [one if one is None else one.detach().clone() for t in tensors for one in (t, t.grad)]
        modes = [module.training for module in model.modules()]
        return [[id(t) for t in tensors], copies, modes, torch.get_rng_state(), torch.backends.cudnn.benchmark]

    before = state()
    with context():
        rows = deconv_ext.profile(model, x)
        assert torch.is_grad_enabled() == (context is torch.enable_grad)
    assert all(row.share for row in rows)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    assert _hooks(model) == 0


# --- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    rows = deconv_ext.profile(Net().cuda(), _input().cuda())
    assert all(row.torch_ms > 0 < row.ours_ms and row.share > 0 for row in rows)
    assert all("family" in one.kernel for row in rows for one in row.directions)
    assert torch.cuda.get_device_name(0) in capsys.readouterr().out
    state = torch.cuda.get_rng_state()
    deconv_ext.profile(Net().cuda().half(), _input().cuda().half(), backward=False)
    assert torch.equal(torch.cuda.get_rng_state(), state)
