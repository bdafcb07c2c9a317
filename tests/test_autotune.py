"""Plans chosen by time: the choice, with times that the tests make up; the switch; and real calls on a GPU."""

import itertools
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import poison

import deconv_ext
from deconv_ext.cli.main import main
from deconv_ext.cli.operands import (
    BOUNDS,
    DIRECTIONS,
    Operands,
    call_explain,
    call_ours,
    dtype_of,
    make_operands,
    sampled_errors,
    torch_in,
)
from deconv_ext.cli.reports import Report, read_csv, title_of
from deconv_ext.workloads import KERNELBENCH, ZOO, Case, case

LAYERS = [
    case("dense", 4, 64, 24, 20, 48, 4, s=2, p=1),
    case("ragged", 2, 33, 13, 17, 65, 3, s=2, p=1, op=1),
    case("blocks_of_the_stride", 4, 32, 16, 16, 64, 2, s=2),
    case("picture", 4, 64, 32, 32, 3, 4, s=2, p=1),
    case("grouped", 2, 64, 14, 14, 64, 3, p=1, g=16),
    case("depthwise", 2, 32, 16, 16, 32, 4, s=2, p=1, g=32),
    case("one_pixel", 16, 100, 1, 1, 64, 4),
]


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    """Off before and after every test, whatever it does, and nothing known from the test before."""
    with deconv_ext.autotune(1), deconv_ext.autotune(2), deconv_ext.autotune(0):
        yield


@pytest.fixture
def core() -> Any:
    """The host core."""
    return pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")


def _problem(one: Case, direction: str = "forward", dtype: str = "bfloat16", layout: str = "contiguous") -> Any:
    from planning import problem_of

    return problem_of(one, direction, dtype, layout)


@pytest.mark.parametrize("dtype", ["float64", "float32", "tf32", "float16"])
def test_every_plan_is_one_of_the_candidates(dtype: str, core: Any) -> None:
    """So it is timed, and `explain` finds it among what was."""
    for one, direction, layout in itertools.product(
        LAYERS + KERNELBENCH + ZOO, DIRECTIONS, ("contiguous", "channels_last")
    ):
        problem = _problem(one, direction, "float32" if dtype == "tf32" else dtype, layout)
        problem.allow_tf32 = dtype == "tf32"
        tuned = core.autotune(problem, 1, lambda plan: plan.estimate_ms)
        assert f"  plan: {tuned.timings[0][0]}, about" in core.explain(problem), (one["name"], direction, layout)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("one", LAYERS, ids=lambda one: one["name"])
def test_the_quickest_is_taken(one: Case, direction: str, core: Any) -> None:
    """Whatever the estimates say, among as many candidates as were asked for, noise or not."""
    problem = _problem(one, direction)
    plans = sorted(plan.estimate_ms for plan in core.candidates(problem))
    for most, seed in itertools.product((1, 4, 16, 10_000), range(3)):
        dice, factors = random.Random(seed), {}

        def time(plan: Any, dice: random.Random = dice, factors: dict[float, float] = factors) -> float:
            factor = factors.setdefault(plan.estimate_ms, dice.uniform(0.5, 2))
            return plan.estimate_ms * factor * dice.uniform(1, 1.01)

        tuned = core.autotune(problem, most, time)
        estimates = sorted(estimate for _, estimate, _ in tuned.timings)
        assert estimates == plans[:most]
        times = [ms for _, _, ms in tuned.timings]
        assert times == sorted(times)
        taken = tuned.plan.estimate_ms
        assert taken * factors[taken] <= 1.035 * min(estimate * factors[estimate] for estimate in estimates)


def test_the_arithmetic_s_choice_stays_within_the_noise(core: Any) -> None:
    problem = _problem(LAYERS[0])
    estimated = core.make_plan(problem).estimate_ms
    for factor, stays in ((0.99, True), (0.97, False)):
        tuned = core.autotune(problem, 8, lambda plan, f=factor: 1.0 if plan.estimate_ms == estimated else f)
        assert (tuned.plan.estimate_ms == estimated) == stays


def test_candidates_that_cannot_run(core: Any) -> None:
    """They are left out, the arithmetic's own among them; without any, its plan remains."""
    problem = _problem(LAYERS[0])
    estimated = core.make_plan(problem).estimate_ms
    tuned = core.autotune(problem, 8, lambda plan: None if plan.estimate_ms == estimated else 1.0)
    assert len(tuned.timings) == 7
    assert tuned.plan.estimate_ms != estimated
    tuned = core.autotune(problem, 8, lambda plan: None)
    assert tuned.timings == []
    assert tuned.plan.estimate_ms == estimated


def test_a_first_slow_run_does_not_count(core: Any) -> None:
    """A kernel's first run loads it."""
    problem = _problem(LAYERS[0])
    met: set[float] = set()

    def time(plan: Any) -> float:
        first = plan.estimate_ms not in met
        met.add(plan.estimate_ms)
        return 100.0 if first else plan.estimate_ms

    tuned = core.autotune(problem, 16, time)
    assert max(ms for _, _, ms in tuned.timings) < 100
    assert tuned.plan.estimate_ms == core.make_plan(problem).estimate_ms


def test_a_clock_that_rises_meets_all_alike(core: Any) -> None:
    """As many runs as there are candidates, and half as many again, take longer than they would later."""
    problem, runs = _problem(LAYERS[0]), 0
    estimated = core.make_plan(problem).estimate_ms

    def time(plan: Any) -> float:
        nonlocal runs
        runs += 1
        return (1.0 if plan.estimate_ms == estimated else 1.2) * (2.0 if runs <= 24 else 1.0)

    tuned = core.autotune(problem, 16, time)
    assert tuned.plan.estimate_ms == estimated
    assert tuned.timings[0][2] == 1


def test_explain_tells_what_was_timed(core: Any) -> None:
    problem = _problem(LAYERS[0])
    estimated = core.make_plan(problem).estimate_ms
    other = core.autotune(problem, 5, lambda plan: 2.0 if plan.estimate_ms == estimated else 1.0)
    text = core.explain(problem, tuned=other)
    assert re.search(r"^  autotuned: of 5 candidates timed, 1 ms; by the estimates .+, 2 ms$", text, re.MULTILINE)
    assert text.count(": 1 ms, about ") == 4
    assert f"plan: {other.timings[0][0]}, about" in text
    same = core.explain(problem, tuned=core.autotune(problem, 5, lambda plan: plan.estimate_ms))
    assert "; by the estimates the same\n" in same
    assert "autotuned" not in core.explain(problem)


def test_what_is_kept(core: Any) -> None:
    """The first choice of a problem, until another number of candidates is asked for; off keeps it, too."""
    tuner, problem = core.Autotuner(), _problem(LAYERS[0])
    other = _problem(LAYERS[0], dtype="float16")
    assert tuner.candidates == 0
    assert tuner.set_candidates(8) == 0
    assert tuner.find(problem) is None
    first = tuner.keep(problem, core.autotune(problem, 8, lambda plan: plan.estimate_ms))
    assert len(tuner.keep(problem, core.autotune(problem, 3, lambda plan: 1.0)).timings) == len(first.timings) == 8
    assert tuner.find(other) is None
    assert tuner.set_candidates(0) == 8
    assert tuner.set_candidates(8) == 0
    assert tuner.find(problem) is not None
    tuner.set_candidates(9)
    assert tuner.find(problem) is None


@pytest.mark.parametrize("candidates", [-1, 100_001, 1.5, True, None, "16"])
def test_refused(candidates: Any) -> None:
    with pytest.raises(ValueError, match=r"candidates must be an integer from 0 \(off\) to 100,000, but got "):
        deconv_ext.autotune(candidates)
    if type(candidates) is int:
        with pytest.raises(RuntimeError, match=rf"must be from 0 \(off\) to 100000, but got {candidates}$"):
            torch.ops.deconv.autotune(candidates)
    assert torch.ops.deconv.autotune(0) == 0


def test_switch_and_context() -> None:
    """The constructor switches, the block's end restores; also after an exception, and nested."""

    def now() -> int:
        before = torch.ops.deconv.autotune(0)
        torch.ops.deconv.autotune(before)
        return before

    with deconv_ext.autotune():
        assert now() == 16
        with deconv_ext.autotune(5):
            assert now() == 5
        with pytest.raises(KeyError), deconv_ext.autotune(5):
            raise KeyError
        assert now() == 16
    assert now() == 0
    deconv_ext.autotune(3)
    assert now() == 3


def test_calls_that_go_to_aten_do_not_mind() -> None:
    x, weight = torch.randn(2, 4, 5, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    with deconv_ext.autotune():
        result = deconv_ext.conv_transpose2d(x, weight, stride=2)
        result.sum().backward()
    assert torch.equal(result, torch.nn.functional.conv_transpose2d(x, weight, stride=2))
    assert "autotuned" not in deconv_ext.explain(x, weight, stride=2)


def _operands(one: Case, mode: str, layout: str) -> Operands:
    device = torch.device("cuda")
    return make_operands(one, dtype_of(mode), device, bias=True).laid_out(layout, device)


def _checked(direction: str, operands: Operands, mode: str, result: torch.Tensor | None = None) -> torch.Tensor:
    """The result of a call, which is right."""
    result = call_ours(direction, operands) if result is None else result
    assert sampled_errors(direction, operands, result, result)[0] <= BOUNDS[mode]
    return result


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("mode", ["bf16", "tf32", "fp32", "fp64"])
@pytest.mark.parametrize("one", LAYERS, ids=lambda one: one["name"])
def test_tuned_calls_are_right(one: Case, mode: str, layout: str) -> None:
    """Every direction: the call that tunes, whose result many plans wrote, and the next, to the same bits."""
    with torch_in(mode), deconv_ext.autotune(6):
        for direction in DIRECTIONS:
            operands = _operands(one, mode, layout)
            assert "autotuned" not in call_explain(direction, operands)
            size = operands.input.numel() * operands.input.element_size()
            poison("cuda", size, 4 * size)
            assert torch.equal(_checked(direction, operands, mode), call_ours(direction, operands))
            text = call_explain(direction, operands)
            (timed,) = re.findall(r"^  autotuned: of (\d+) candidates timed, ([\d.e+-]+) ms; by", text, re.MULTILINE)
            assert 1 <= int(timed[0]) <= 6
            assert 0 < float(timed[1]) < 10


@pytest.mark.gpu
def test_as_many_candidates_as_asked_for() -> None:
    """All of a problem's run to their ends, and after them the quickest, whose result alone is seen."""
    operands = _operands(case("one", 2, 40, 9, 15, 72, 3, s=2, p=1, op=1), "bf16", "nchw")
    counts = []
    for candidates in (1, 2, 400):
        deconv_ext.autotune(candidates)
        _checked("forward", operands, "bf16")
        text = call_explain("forward", operands)
        counts.append(int(re.findall(r"autotuned: of (\d+) candidates", text)[0]))
    assert counts[:2] == [1, 2]
    assert counts[2] > 20


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["bf16", "tf32", "fp32"])
def test_candidates_on_addresses_that_tensor_copies_refuse(mode: str) -> None:
    """Every candidate of such a plan has another behind it, which serves then: one without would do nothing and win."""
    one = case("unaligned", 2, 72, 16, 40, 80, 3, p=1)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        buffer = tensor.new_full((tensor.numel() + 1,), math.nan)
        return buffer[1:].view(tensor.shape).copy_(tensor)

    with torch_in(mode), deconv_ext.autotune(400):
        operands = _operands(one, mode, "nchw").map(moved)
        for direction in DIRECTIONS:
            _checked(direction, operands, mode)


def test_bench_says_whether_plans_are_chosen_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its report and its title; on the CPU there is nothing to choose."""
    monkeypatch.chdir(tmp_path)
    layer = ["bench", "--case", "kb1_81", "--scale", "32", "--device", "cpu", "--dtype", "fp32"]
    layer += ["--direction", "forward", "--layout", "nchw"]
    for arguments, candidates in (([], None), (["--autotune"], "16"), (["--autotune", "5"], "5")):
        assert main([*layer, *arguments, "--csv", "report.csv"]) == 0
        assert read_csv("report.csv").head.get("autotune") == candidates
        assert torch.ops.deconv.autotune(0) == 0
    head = {"gpu": "a GPU", "torch": "2.10"}
    assert "autotuned among 5 plans" in title_of(Report({**head, "autotune": "5"}))
    assert "autotuned" not in title_of(Report(head))
    assert main([*layer, "--autotune", "-1"]) == 2


@pytest.mark.gpu
def test_explain_tells_of_gpu_0_while_it_is_on() -> None:
    """Meta tensors too; off returns to arithmetic."""
    operands = _operands(LAYERS[0], "bf16", "nchw")
    before = call_explain("forward", operands)
    with deconv_ext.autotune():
        _checked("forward", operands, "bf16")
        meta = operands.map(lambda tensor: torch.empty_like(tensor, device="meta"))
        assert "autotuned" in call_explain("forward", operands)
        assert call_explain("forward", meta) == call_explain("forward", operands)
    assert call_explain("forward", operands) == before


@pytest.mark.gpu
def test_the_backward_tunes_too() -> None:
    """In autograd's threads, and below a compiled graph."""
    layer = deconv_ext.ConvTranspose2d(24, 40, 4, 2, 1, device="cuda")
    for size, network in ((18, layer), (22, torch.compile(layer, backend="aot_eager"))):
        x = torch.randn(2, 24, size, size, device="cuda", requires_grad=True)
        with deconv_ext.autotune(4):
            output = network(x)
            output.backward(torch.randn_like(output))
            for direction in DIRECTIONS:
                text = deconv_ext.explain(x, layer.weight, layer.bias, 2, 1, direction=direction)
                assert "autotuned: of 4 candidates" in text, text


@pytest.mark.gpu
def test_nothing_is_tuned_while_a_graph_is_captured() -> None:
    operands = _operands(case("captured", 2, 48, 11, 12, 40, 4, s=2, p=1), "bf16", "nchw")
    call_ours("forward", operands)
    graph = torch.cuda.CUDAGraph()
    with deconv_ext.autotune(), torch.inference_mode():
        with torch.cuda.graph(graph):
            captured = call_ours("forward", operands)
        assert "autotuned" not in call_explain("forward", operands)
        captured.fill_(math.nan)
        graph.replay()
        _checked("forward", operands, "bf16", captured)


@pytest.mark.gpu
def test_streams_and_memory() -> None:
    """The call's own stream is used; and what tuning took is the allocator's again."""
    operands = _operands(case("streamed", 2, 56, 11, 12, 40, 4, s=2, p=1), "bf16", "nchw")
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with deconv_ext.autotune(), torch.cuda.stream(stream):
        result = call_ours("forward", operands)
    stream.synchronize()
    _checked("forward", operands, "bf16", result)
    del result
    assert torch.cuda.memory_allocated() <= held + 2**20
