"""plan and is_supported, and the one warning of CUDA calls that ATen serves."""

import dataclasses
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import deconv_ext
from deconv_ext import _eager, _ops

DIRECTIONS = ("forward", "grad_input", "grad_weight")
PLACES = ["meta", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _operands(device: str, dtype: torch.dtype = torch.float32, bias: bool = False) -> list[Any]:
    sizes = [(2, 16, 5, 6), (16, 8, 3, 3), (8,)]
    x, weight, bias_of_8 = (torch.empty(size, device=device, dtype=dtype) for size in sizes)
    return [x, weight, bias_of_8 if bias else None]


# --- plan -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("where", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_plan_says_what_explain_says(where: str, direction: str) -> None:
    arguments = (*_operands(where), 2, 1)
    plan = deconv_ext.plan(*arguments, direction=direction)
    text = deconv_ext.explain(*arguments, direction=direction)
    assert f"  plan: {plan.kernel}, about {plan.estimate_ms:.4g} ms\n" in text
    assert f"  workspace: {plan.workspace_bytes} bytes\n" in text
    assert f"  device: {plan.device}, " in text
    assert (plan.direction, plan.served_by, plan.measured_ms) == (direction, "kernels", None)
    listed = re.findall(r"^    (.*): about ([\d.e+-]+) ms$", text, re.MULTILINE)
    assert listed
    estimates = {kernel: f"{ms:.4g}" for kernel, ms in plan.candidates}
    assert all(estimates[kernel] == ms for kernel, ms in listed)
    refused = re.findall(r"^    (.*): refused, (.*)$", text, re.MULTILINE)
    assert refused
    assert set(refused) <= set(plan.refusals)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_plan_is_the_quickest_candidate(direction: str) -> None:
    """Also where explain lists a few of many."""
    x, weight = torch.empty(8, 64, 64, 64, device="meta"), torch.empty(64, 128, 4, 4, device="meta")
    plan = deconv_ext.plan(x, weight, None, 2, 1, direction=direction)
    milliseconds = [ms for _, ms in plan.candidates]
    assert len(milliseconds) > 20
    assert milliseconds == sorted(milliseconds)
    assert (plan.kernel, plan.estimate_ms) in plan.candidates
    assert plan.estimate_ms == milliseconds[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_plan_of_a_call_that_aten_serves(direction: str) -> None:
    plan = deconv_ext.plan(*_operands("cpu", bias=True), 2, 1, direction=direction)
    assert (plan.served_by, plan.kernel, plan.family, plan.device) == ("ATen", "ATen", "ATen", "cpu")
    assert (plan.estimate_ms, plan.measured_ms, plan.workspace_bytes, plan.candidates) == (None, None, None, ())
    assert plan.refusals == (("kernels", "this build has no kernels for cpu and Float"),)


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("igemm_sm90 family, 64 channels x (1 images, 8 rows, 8 columns) in 32 pixels, weights in place", "igemm_sm90"),
        (
            "sub_pixel family, the output in blocks of the stride, igemm_sm90 family, 64 channels",
            "sub_pixel, igemm_sm90",
        ),
        ("ATen", "ATen"),
    ],
)
def test_plan_names_the_families(kernel: str, family: str) -> None:
    plan = dataclasses.replace(deconv_ext.plan(*_operands("meta")), kernel=kernel)
    assert plan.family == family


def test_plan_is_frozen_and_hashable() -> None:
    plan = deconv_ext.plan(*_operands("meta"))
    assert plan == deconv_ext.plan(*_operands("meta"))
    assert len({plan, deconv_ext.plan(*_operands("meta"))}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.kernel = "other"  # type: ignore[misc]


def test_plan_refuses_an_unknown_direction() -> None:
    with pytest.raises(ValueError, match=r"direction must be 'forward', .* but got 'sideways'"):
        deconv_ext.plan(*_operands("meta"), direction="sideways")


@pytest.mark.gpu
def test_plan_of_an_autotuned_call() -> None:
    x, weight, _ = _operands("cuda")
    with deconv_ext.autotune():
        deconv_ext.conv_transpose2d(x, weight, stride=2)
        assert deconv_ext.plan(x, weight, stride=2).measured_ms > 0
    assert deconv_ext.plan(x, weight, stride=2).measured_ms is None


# --- is_supported ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*_ops.KERNEL_DTYPES, torch.complex64, torch.int64, torch.bool])
@pytest.mark.parametrize("where", PLACES)
def test_is_supported_agrees_with_plan(where: str, dtype: torch.dtype) -> None:
    served = deconv_ext.is_supported(*_operands(where, dtype), 2, 1)
    assert served is (where != "cpu" and dtype in _ops.KERNEL_DTYPES)
    assert served is (deconv_ext.plan(*_operands(where, dtype), 2, 1).served_by == "kernels")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"stride": 0}, "stride must be between 1 and"),
    ({"groups": 3}, "groups must divide"),
    ({"padding": 20}, "output's height must"),
    ({"weight": torch.empty(4, 3, 3)}, "weight must be 4-D"),
    ({"weight": torch.empty(16, 8, 3, 3, dtype=torch.float64)}, "weight must have input's dtype Float, but got Double"),
    ({"bias": torch.empty(5)}, "bias must be 1-D with 8 elements"),
]


@pytest.mark.parametrize("function", [deconv_ext.plan, deconv_ext.is_supported])
@pytest.mark.parametrize(("changed", "message"), BAD, ids=[message for _, message in BAD])
@pytest.mark.parametrize("where", PLACES)
def test_invalid_arguments_raise(function: Any, changed: dict[str, Any], message: str, where: str) -> None:
    """As the call itself does, whatever serves it."""
    x, weight, bias = _operands(where, bias=True)
    placed = {name: value.to(where) if isinstance(value, torch.Tensor) else value for name, value in changed.items()}
    with pytest.raises(RuntimeError, match=message):
        function(**{"input": x, "weight": weight, "bias": bias, **placed})


@pytest.mark.parametrize("direction", ["grad_input", "grad_weight"])
def test_invalid_arguments_of_a_gradient_raise(direction: str) -> None:
    for where in ("meta", "cpu"):
        with pytest.raises(RuntimeError, match="bias must be 1-D with 8 elements"):
            deconv_ext.plan(*_operands(where)[:2], torch.empty(5, device=where), direction=direction)


# --- warnings -------------------------------------------------------------------------------------------------------


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not warned yet."""
    monkeypatch.setattr(_ops, "_warned", [])


def _warnings_of(calls: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls()
    return [str(one.message) for one in caught if "deconv_ext" in str(one.message)]


def test_import_is_silent() -> None:
    """Without a GPU too, and in a build without kernels."""
    code = "import torch, warnings; warnings.simplefilter('error'); import deconv_ext"
    environment = {"PYTHONPATH": str(Path(deconv_ext.__file__).parent.parent), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.usefixtures("unwarned")
def test_calls_on_the_cpu_never_warn() -> None:
    def calls() -> None:
        for dtype in (torch.float32, torch.complex64):
            x, weight = torch.ones(1, 4, 5, 5, dtype=dtype), torch.ones(4, 3, 2, 2, dtype=dtype, requires_grad=True)
            deconv_ext.conv_transpose2d(x, weight).abs().sum().backward()
            with torch.inference_mode():
                deconv_ext.conv_transpose2d(x, weight)
            deconv_ext.plan(x, weight)
            deconv_ext.is_supported(x, weight)

    assert _warnings_of(calls) == []


@pytest.mark.usefixtures("unwarned")
def test_unserved_calls_warn_once() -> None:
    """Eager calls warn in Python, all others in C++, which asks Python: one warning in all. No GPU is needed for it."""
    with FakeTensorMode():
        x, weight = torch.empty(1, 4, 5, 5, device="cuda", dtype=torch.complex64), torch.empty(4, 3, 2, 2)
        weight = weight.to(x)

    def calls() -> None:
        for _ in range(2):
            _eager.plain_forward(x, weight, None, (1, 1), (0, 0), (0, 0), 1, (1, 1))
            torch.ops.deconv._warn_unserved("cuda:0 and Half")

    (warning,) = _warnings_of(calls)
    assert "no kernels for cuda:0 and torch.complex64" in warning
    assert torch.ops.deconv.build_info() in warning


@pytest.mark.usefixtures("unwarned")
def test_calls_below_autograd_warn_once() -> None:
    def calls() -> None:
        torch.ops.deconv._warn_unserved("cuda:1 and Half")
        torch.ops.deconv._warn_unserved("cuda:2 and Half")

    (warning,) = _warnings_of(calls)
    assert "no kernels for cuda:1 and Half" in warning


@pytest.mark.gpu
@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_unserved_calls_on_a_gpu_warn_once(mode: Any) -> None:
    """By their element type; what only asks about a call says nothing."""
    x, weight = (t.cuda() for t in (torch.ones(1, 4, 5, 5), torch.ones(4, 3, 2, 2)))
    other = [t.to(torch.complex64) for t in (x, weight)]

    def calls() -> None:
        with mode():
            for _ in range(2):
                deconv_ext.conv_transpose2d(*other)
                torch.ops.deconv.conv_transpose2d(*other)

    assert _warnings_of(lambda: (deconv_ext.plan(*other), deconv_ext.is_supported(*other))) == []
    assert _warnings_of(lambda: deconv_ext.conv_transpose2d(x, weight)) == []
    assert len(_warnings_of(calls)) == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("unwarned")
def test_a_gpu_without_kernels_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ops, "has_kernels", lambda index: False)
    x, weight = torch.ones(1, 4, 5, 5, device="cuda"), torch.ones(4, 3, 2, 2, device="cuda")
    (warning,) = _warnings_of(lambda: [deconv_ext.conv_transpose2d(x, weight) for _ in range(2)])
    assert "no kernels for cuda:0 and torch.float32" in warning
