"""The host core's problems, made from cases; for the tests that have it."""

from typing import Any

import _host_core as core

from deconv_ext.workloads import Case, output_size


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
    first, second, extent, args = pieces(one, direction)
    kinds = (getattr(core.Direction, direction), getattr(core.DType, dtype))
    return core.Problem(*kinds, first, second, extent, args, getattr(core.Layout, layout))


def result_size(one: Case, direction: str) -> list[int]:
    return {
        "forward": [one["n"], one["co"], *output_size(one)],
        "grad_input": [one["n"], one["ci"], one["h"], one["w"]],
        "grad_weight": [one["ci"], one["co"] // one["g"], *one["k"]],
    }[direction]
