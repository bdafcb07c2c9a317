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


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("where", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("sizes", [((2, 16, 5, 6), (16, 8, 3, 3)), ((8, 64, 64, 64), (64, 128, 4, 4))], ids=str)
def test_plan_is_the_quickest_candidate_and_what_explain_says(sizes: Any, where: str, direction: str) -> None:
    """Also where explain lists a few of many."""
    arguments = (*(torch.empty(size, device=where) for size in sizes), None, 2, 1)
    plan = deconv_ext.plan(*arguments, direction=direction)
    text = deconv_ext.explain(*arguments, direction=direction)
    assert text.startswith(f"{direction} float32 input {sizes[0]} -> output ({sizes[0][0]}, {sizes[1][1]}, ")
    assert f"  plan: {plan.kernel}, about {plan.estimate_ms:.4g} ms\n" in text
    assert f"  workspace: {plan.workspace_bytes} bytes\n" in text
    assert f"  device: {plan.device}, " in text
    assert (plan.direction, plan.served_by, plan.measured_ms) == (direction, "kernels", None)
    assert (listed := re.findall(r"^    (.*): about ([\d.e+-]+) ms$", text, re.MULTILINE))
    assert set(listed) <= {(kernel, f"{ms:.4g}") for kernel, ms in plan.candidates}
    assert (refused := re.findall(r"^    (.*): refused, (.*)$", text, re.MULTILINE))
    assert set(refused) <= set(plan.refusals)
    milliseconds = [ms for _, ms in plan.candidates]
    assert len(milliseconds) > 20 or sizes[0][0] == 2
    assert milliseconds == sorted(milliseconds)
    assert (plan.kernel, plan.estimate_ms) in plan.candidates
    assert plan.estimate_ms == milliseconds[0]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_plan_of_a_call_that_aten_serves(direction: str) -> None:
    plan = deconv_ext.plan(*_operands("cpu", bias=True), 2, 1, direction=direction)
    assert "plan: ATen" in deconv_ext.explain(*_operands("cpu", bias=True), 2, 1, direction=direction)
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


@pytest.mark.gpu
def test_plan_of_an_autotuned_call() -> None:
    x, weight, _ = _operands("cuda")
    with deconv_ext.autotune():
        deconv_ext.conv_transpose2d(x, weight, stride=2)
        assert deconv_ext.plan(x, weight, stride=2).measured_ms > 0
    assert deconv_ext.plan(x, weight, stride=2).measured_ms is None


@pytest.mark.parametrize("dtype", [*_ops.KERNEL_DTYPES, torch.complex64, torch.int64, torch.bool])
@pytest.mark.parametrize("where", PLACES)
def test_is_supported_agrees_with_plan(where: str, dtype: torch.dtype) -> None:
    served = deconv_ext.is_supported(*_operands(where, dtype), 2, 1)
    assert served is (where != "cpu" and dtype in _ops.KERNEL_DTYPES)
    assert served is (deconv_ext.plan(*_operands(where, dtype), 2, 1).served_by == "kernels")


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


def test_calls_on_the_cpu_never_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ops, "_warned", [])

    def calls() -> None:
        for dtype in (torch.float32, torch.complex64):
            x, weight = torch.ones(1, 4, 5, 5, dtype=dtype), torch.ones(4, 3, 2, 2, dtype=dtype, requires_grad=True)
            deconv_ext.conv_transpose2d(x, weight).abs().sum().backward()
            with torch.inference_mode():
                deconv_ext.conv_transpose2d(x, weight)
            deconv_ext.plan(x, weight)
            deconv_ext.is_supported(x, weight)

    assert _warnings_of(calls) == []


def test_unserved_calls_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls warn in Python, all others in C++, which asks Python: one warning in all. No GPU is needed for it."""
    with FakeTensorMode():
        x, weight = torch.empty(1, 4, 5, 5, device="cuda", dtype=torch.complex64), torch.empty(4, 3, 2, 2)
        weight = weight.to(x)

    eager = lambda: _eager.plain_forward(x, weight, None, (1, 1, 0, 0, 0, 0, 1, 1, 1))  # noqa: E731
    below = lambda: torch.ops.deconv._warn_unserved("cuda:1 and Half")  # noqa: E731
    for calls, what in (((eager, below, eager), "cuda:0 and torch.complex64"), ((below, eager), "cuda:1 and Half")):
        monkeypatch.setattr(_ops, "_warned", [])
        (warning,) = _warnings_of(lambda calls=calls: [call() for call in calls])
        assert f"no kernels for {what}" in warning
        assert torch.ops.deconv.build_info() in warning


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_unserved_calls_on_a_gpu_warn_once(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their element type or for want of kernels; what only asks about a call says nothing."""
    x, w = (t.cuda() for t in (torch.ones(1, 4, 5, 5), torch.ones(4, 3, 2, 2)))
    other = [t.to(torch.complex64) for t in (x, w)]
    calls = (deconv_ext.conv_transpose2d, torch.ops.deconv.conv_transpose2d) * 2
    monkeypatch.setattr(_ops, "_warned", [])
    with mode():
        assert _warnings_of(lambda: (deconv_ext.plan(*other), deconv_ext.is_supported(*other), calls[0](x, w))) == []
        assert len(_warnings_of(lambda: [call(*other) for call in calls])) == 1
        monkeypatch.setattr(_ops, "_warned", [])
        monkeypatch.setattr(_ops, "has_kernels", lambda index: False)
        (warning,) = _warnings_of(lambda: [calls[0](x, w) for _ in range(2)])
        assert "no kernels for cuda:0 and torch.float32" in warning
