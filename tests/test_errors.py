"""Bad input: each call fails before any launch, naming argument, value and range; the same calls fail in torch."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import deconv_ext

ERRORS = (RuntimeError, ValueError)


class Of:
    """Stands for a random tensor of this size, made on the test's device."""

    def __init__(self, *size: int, dtype: torch.dtype = torch.float32) -> None:
        self.size, self.dtype = size, dtype

    def make(self, device: str) -> torch.Tensor:
        """The tensor."""
        return torch.randn(self.size, dtype=self.dtype, device=device)

    def __repr__(self) -> str:
        return f"Of{self.size}"


def _arguments(device: str, **changed: Any) -> dict[str, Any]:
    """A valid call: stride 2, two groups, (2, 4, 5, 6) to (2, 6, 9, 11); with some arguments changed."""
    tensors = {"input": Of(2, 4, 5, 6), "weight": Of(4, 3, 3, 3), "bias": Of(6)}
    valid = {**tensors, "stride": 2, "padding": 1, "output_padding": 0, "groups": 2, "dilation": 1, **changed}
    return {name: value.make(device) if isinstance(value, Of) else value for name, value in valid.items()}


# Changed arguments; the message's pieces in their order, "|" between them.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": Of(4, 5)}, "input must be 3-D|or 4-D|got size [4, 5]"),
    ({"input": Of(1, 2, 4, 5, 6)}, "input must be 3-D|got size [1, 2, 4, 5, 6]"),
    ({"weight": Of(4, 3, 3)}, "weight must be 4-D|got size [4, 3, 3]"),
    ({"weight": Of(4, 3, 3, 3, 1)}, "weight must be 4-D|got size [4, 3, 3, 3, 1]"),
    ({"input": Of(2, 5, 5, 6)}, "input must have 4 channels|[2, 5, 5, 6]|[4, 3, 3, 3]"),
    ({"input": Of(5, 5, 6)}, "input must have 4 channels|[5, 5, 6]"),
    ({"groups": 3}, "groups must divide|groups 3|[4, 3, 3, 3]"),
    ({"groups": 0}, "groups must be at least 1|got 0"),
    ({"groups": -2}, "groups must be at least 1|got -2"),
    ({"stride": (2, 0)}, "stride must be between 1 and|got [2, 0]"),
    ({"stride": -1}, "stride must be between 1 and|got [-1, -1]"),
    ({"dilation": 0}, "dilation must be between 1 and|got [0, 0]"),
    ({"dilation": (1, -3)}, "dilation must be between 1 and|got [1, -3]"),
    ({"padding": -1}, "padding must be between 0 and|got [-1, -1]"),
    ({"padding": (0, -2)}, "padding must be between 0 and|got [0, -2]"),
    ({"output_padding": -1}, "output_padding must be between 0 and|got [-1, -1]"),
    ({"output_padding": 2}, "output_padding must be smaller than stride or dilation|output_padding [2, 2]|stride [2"),
    ({"output_padding": (0, 3), "dilation": (4, 2)}, "output_padding must be smaller|[0, 3]|dilation [4, 2]"),
    ({"padding": 20}, "output's height must|input 5|kernel 3|padding 20|make it -29"),
    ({"padding": (1, 20)}, "output's width must|input 6|padding 20|make it -27"),
    ({"bias": Of(5)}, "bias must be 1-D with 6 elements|got size [5]"),
    ({"bias": Of(6, 1)}, "bias must be 1-D with 6 elements|got size [6, 1]"),
    ({"weight": Of(4, 3, 3, 3, dtype=torch.float64)}, "weight must have input's dtype Float|got Double"),
    ({"input": Of(2, 4, 5, 6, dtype=torch.float16)}, "weight must have input's dtype Half|got Float"),
    ({"bias": Of(6, dtype=torch.float64)}, "bias must have input's dtype Float|got Double"),
    ({"weight": Of(4, 3, 0, 3)}, "weight must have at least 1 element|[4, 3, 0, 3]"),
    ({"input": Of(2, 4, 0, 6)}, "input must have a height and a width of at least 1|[2, 4, 0, 6]"),
    # Lists of a wrong length and other types fail in the dispatcher or here.
    *(({name: [1, 1, 1]}, name) for name in ("stride", "padding", "output_padding", "dilation")),
    *(({"stride": value}, "stride") for value in ([], "two", 1.5, None)),
]


def _refused(function: Any, arguments: dict[str, Any], pieces: str = "") -> None:
    pattern = ".*".join(map(re.escape, pieces.split("|")))
    with pytest.raises((TypeError, *ERRORS), match=f"(?s){pattern}"):
        function(**arguments)


@pytest.mark.parametrize(("changed", "pieces"), BAD, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_bad_arguments(changed: dict[str, Any], pieces: str, device: str) -> None:
    """Refused by the function, plain and recorded, under override and vmap, by plan and is_supported; and by torch."""
    arguments = _arguments(device, **changed)
    _refused(F.conv_transpose2d, arguments)
    operator = torch.ops.deconv.conv_transpose2d
    for function in (deconv_ext.conv_transpose2d, operator, deconv_ext.plan, deconv_ext.is_supported):
        _refused(function, arguments, pieces)
    if all(piece.dim() > 2 for piece in (arguments["input"], arguments["weight"])):
        rest = {key: value for key, value in arguments.items() if key != "input"}
        _refused(torch.vmap(lambda input: deconv_ext.conv_transpose2d(input, **rest)), {"input": arguments["input"]})
    for key in ("input", "weight", "bias"):
        arguments[key].requires_grad_()
    _refused(deconv_ext.conv_transpose2d, arguments, pieces)
    with deconv_ext.override():
        _refused(F.conv_transpose2d, arguments)
    torch.testing.assert_close(
        deconv_ext.conv_transpose2d(**(valid := _arguments(device))), F.conv_transpose2d(**valid)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["input", "weight", "bias"])
def test_mixed_devices(name: str) -> None:
    arguments = _arguments("cuda")
    arguments[name] = arguments[name].cpu()
    where = "input's device cpu, but got cuda:0" if name == "input" else "input's device cuda:0, but got cpu"
    _refused(deconv_ext.conv_transpose2d, arguments, where)
    _refused(F.conv_transpose2d, arguments)
    deconv_ext.conv_transpose2d(**_arguments("cuda"))


_CONV = ((2, 2), (1, 1), (0, 0), 2, (1, 1))
X, W, GY = Of(2, 4, 5, 6), Of(4, 3, 3, 3), Of(2, 6, 9, 11)

BAD_GRADIENTS: list[tuple[str, tuple[Any, ...], str]] = [
    (
        "grad_input",
        (Of(2, 6, 9, 10), W, (5, 6)),
        "grad_output must have 6 channels, height 9 and width 11|[2, 6, 9, 10",
    ),
    ("grad_input", (Of(2, 5, 9, 11), W, (5, 6)), "grad_output must have 6 channels|[2, 5, 9, 11]"),
    ("grad_input", (Of(9, 11), W, (5, 6)), "grad_output must be 3-D|[9, 11]"),
    ("grad_input", (GY, W, (5, 0)), "input_size must be between 1 and|[5, 0]"),
    ("grad_input", (GY, Of(4, 3, 3, 3, dtype=torch.float64), (5, 6)), "weight must have grad_output's dtype F|Double"),
    (
        "grad_weight",
        (X, Of(2, 6, 9, 10), (3, 3)),
        "grad_output must have 6 channels, height 9 and width 11|[2, 6, 9, 1",
    ),
    ("grad_weight", (X, Of(3, 6, 9, 11), (3, 3)), "grad_output must have input's batch size|[2, 4, 5, 6]|[3, 6, 9, 11"),
    ("grad_weight", (Of(4, 5, 6), GY, (3, 3)), "grad_output must have input's batch size|[4, 5, 6]"),
    ("grad_weight", (Of(2, 3, 5, 6), GY, (3, 3)), "groups must divide input's channels|groups 2|[2, 3, 5, 6]"),
    ("grad_weight", (X, Of(2, 5, 9, 11), (3, 3)), "groups must divide grad_output's channels|groups 2|[2, 5, 9, 11]"),
    ("grad_weight", (X, GY, (3, 0)), "kernel_size must be between 1 and|[3, 0]"),
    ("backward", (GY, Of(2, 2, 5, 6), W), "input must have 4 channels|[2, 2, 5, 6]"),
    ("backward", (Of(2, 6, 9, 10), X, W), "grad_output must have 6 channels, height 9 and width 11|[2, 6, 9, 10]"),
    ("backward", (Of(3, 6, 9, 11), X, W), "grad_output must have input's batch size|[3, 6, 9, 11]"),
    ("backward", (GY, Of(5, 6), W), "input must be 3-D|[5, 6]"),
    ("backward", (Of(2, 6, 9, 11, dtype=torch.float64), X, W), "weight must have grad_output's dtype Double|Float"),
]


@pytest.mark.parametrize("needs_grad", [False, True], ids=["plain", "recorded"])
@pytest.mark.parametrize(("direction", "arguments", "pieces"), BAD_GRADIENTS)
def test_bad_arguments_of_the_gradients(
    direction: str, arguments: tuple[Any, ...], pieces: str, needs_grad: bool, device: str
) -> None:
    made = [a.make(device).requires_grad_(needs_grad) if isinstance(a, Of) else a for a in arguments]
    operator = getattr(torch.ops.deconv, f"conv_transpose2d_{direction}")
    _refused(lambda: operator(*made, *_CONV), {}, pieces)


@pytest.mark.parametrize("function", [deconv_ext.explain, deconv_ext.plan])
def test_questions_refuse_too(function: Any) -> None:
    """Of meta tensors, in every direction; and a direction that there is none of."""
    for direction in ("forward", "grad_input", "grad_weight"):
        for changed, pieces in (({"stride": 0}, "stride must be between 1 and"), ({"bias": Of(5)}, "bias must be 1-D")):
            _refused(function, {**_arguments("meta", **changed), "direction": direction}, pieces)
    _refused(function, {**_arguments("meta"), "direction": "sideways"}, "direction must be 'forward', |got 'sideways'")


@pytest.mark.gpu
def test_refusal_launches_nothing() -> None:
    """No memory is taken and no kernel queued by a call that is refused."""
    arguments = _arguments("cuda", stride=0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    _refused(deconv_ext.conv_transpose2d, arguments)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    torch.cuda.synchronize()
