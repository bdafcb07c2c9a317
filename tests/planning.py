"""The host core's problems, made from cases, and what tells its plans apart; for the tests that have it."""

import re
from typing import Any

import _host_core as core

from deconv_ext.workloads import Case, case, output_size


def pieces(one: Case, direction: str) -> tuple[list[int], list[int], list[int], Any]:
    """What a direction reads, the extent it is told, and its arguments."""
    x, w = [one["n"], one["ci"], one["h"], one["w"]], [one["ci"], one["co"] // one["g"], *one["k"]]
    y = [one["n"], one["co"], *output_size(one)]
    args = core.ConvArgs(list(one["s"]), list(one["p"]), list(one["op"]), one["g"], list(one["d"]))
    first, second, extent = {
        "forward": (x, w, []), "grad_input": (y, w, [one["h"], one["w"]]), "grad_weight": (x, y, list(one["k"]))
    }[direction]  # fmt: skip
    return first, second, extent, args


def problem_of(one: Case, direction: str, dtype: str = "float32", layout: str = "contiguous") -> Any:
    """`dtype` may be tf32: float32 with TF32 allowed."""
    first, second, extent, args = pieces(one, direction)
    kinds = (getattr(core.Direction, direction), getattr(core.DType, dtype.replace("tf32", "float32")))
    problem = core.Problem(*kinds, first, second, extent, args, getattr(core.Layout, layout))
    problem.allow_tf32 = dtype == "tf32"
    return problem


def result_size(one: Case, direction: str) -> list[int]:
    return {
        "forward": [one["n"], one["co"], *output_size(one)],
        "grad_input": [one["n"], one["ci"], one["h"], one["w"]],
        "grad_weight": [one["ci"], one["co"] // one["g"], *one["k"]],
    }[direction]


def _option_names() -> list[str]:
    """What DECONV_KERNELS may name, as its error lists it."""
    try:
        core.make_plan(problem_of(case("any", 1, 1, 1, 1, 1, 1), "forward"), kernels="-")
    except core.InvalidArgument as error:
        return str(error).partition("(")[2].partition(")")[0].split(", ")
    raise AssertionError("'-' is no name")


OPTIONS = _option_names()
FAMILIES = [name for name in OPTIONS if "." not in name]


def plans_of(plan: Any) -> list[Any]:
    """The plan, and where it is a lowering's the plans inside."""
    return [plan, *plans_of(plan.inner)] if plan.inner else [plan]


def names_of(plan: Any) -> list[str]:
    return [each.kernel for each in plans_of(plan)]


def launch_of(plan: Any) -> tuple[int, int]:
    """The blocks and bytes of shared memory that the plan's kernel is launched with."""
    text = plans_of(plan)[-1].launch
    blocks, shared = (re.search(pattern, text) for pattern in (r"(\d+) (?:persistent )?blocks", r"(\d+) bytes of sh"))
    assert blocks, text
    return int(blocks[1]), int(shared[1]) if shared else 0


def words_of(plan: Any, dtype: str = "float32") -> str:
    """The plan's description."""
    return str(plan.describe(getattr(core.DType, dtype.replace("tf32", "float32"))))


def kinds_of(plan: Any, dtype: str = "float32") -> set[Any]:
    """The kernel's ways that this plan takes, whatever their sizes, and the instance of its template."""
    instances = {tuple(each.instance) for each in plans_of(plan) if each.instance}
    return {re.sub(r"\d+", "#", words_of(plan, dtype)), *instances}
