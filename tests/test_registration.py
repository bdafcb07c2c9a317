"""What torch's systems see: opcheck, fake kernels, compile, export, FLOP counts, explain."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from helpers import FEW_LAYOUTS, LAYOUTS, SHAPES, arrange, operators_called, step
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import deconv_ext

FORWARD = torch.ops.deconv.conv_transpose2d.default
GRAD_INPUT = torch.ops.deconv.conv_transpose2d_grad_input.default
GRAD_WEIGHT = torch.ops.deconv.conv_transpose2d_grad_weight.default
BACKWARD = torch.ops.deconv.conv_transpose2d_backward.default
OPERATORS = {"forward": FORWARD, "grad_input": GRAD_INPUT, "grad_weight": GRAD_WEIGHT}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    """No graph of another test counts against a recompile limit."""
    torch._dynamo.reset()


def _call(
    direction: str, device: str, *, dtype: torch.dtype = torch.float32, layout: str = "contiguous",
    unbatched: bool = False, needs_grad: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """The operator of a direction and arguments for it."""
    stride, padding, output_padding, groups, dilation = (2, 1), (1, 2), (1, 0), 2, (1, 2)
    conv = (stride, padding, output_padding, groups, dilation)
    x, w, b = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 3), torch.randn(6)
    gy = torch.randn_like(F.conv_transpose2d(x, w, b, *conv))
    x, w, gy = (arrange(t.to(device, dtype), layout) for t in (x, w, gy))
    if unbatched:
        x, gy = x[0], gy[0]
    tensors = [t.detach().requires_grad_(needs_grad) for t in (x, w, b.to(device, dtype), gy)]
    args = {
        "forward": tensors[:3],
        "grad_input": (tensors[3], tensors[1], [5, 6]),
        "grad_weight": (tensors[0], tensors[3], [3, 3]),
        "backward": (tensors[3], *tensors[:2]),
    }[direction]
    return {**OPERATORS, "backward": BACKWARD}[direction], (*args, *conv)


# --- who sees the operator ------------------------------------------------------------------------------------------


def _seen_by_mode(mode: type, hook: str, x: Tensor, w: Tensor) -> str:
    """What reaches the hook of a mode."""
    seen = []

    def see(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(str(func))
        return func(*args, **(kwargs or {}))

    with type("Spy", (mode,), {hook: see})():
        deconv_ext.conv_transpose2d(x, w)
    return str(seen)


def _traced(x: Tensor, w: Tensor, *, pre_dispatch: bool = False) -> str:
    return str(make_fx(lambda x, w: deconv_ext.conv_transpose2d(x, w), pre_dispatch=pre_dispatch)(x, w).graph)


WATCHERS: dict[str, Callable[[Tensor, Tensor], str]] = {
    "dispatch mode": lambda x, w: _seen_by_mode(TorchDispatchMode, "__torch_dispatch__", x, w),
    "function mode": lambda x, w: _seen_by_mode(TorchFunctionMode, "__torch_function__", x, w),
    "make_fx": lambda x, w: _traced(x, w),
    "make_fx, pre_dispatch": lambda x, w: _traced(x, w, pre_dispatch=True),
    "jit.trace": lambda x, w: str(torch.jit.trace(deconv_ext.conv_transpose2d, (x, w), check_trace=False).graph),
    "profiler": lambda x, w: str(operators_called(lambda: deconv_ext.conv_transpose2d(x, w))),
}


@pytest.mark.parametrize("needs_grad", [False, True], ids=["plain", "needs_grad"])
@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_watchers_see_the_operator(watcher: str, needs_grad: bool, device: str) -> None:
    x = torch.randn(1, 4, 5, 6, device=device, requires_grad=needs_grad)
    assert re.search(r"deconv(::|\.)conv_transpose2d", WATCHERS[watcher](x, torch.randn(4, 3, 3, 3, device=device)))


# --- registration ---------------------------------------------------------------------------------------------------


def _declared(function: ast.FunctionDef) -> tuple[list[tuple[str, str, bool]], str]:
    """Name, schema type and optionality of each argument, and the result's type, of a function of the stub."""
    types = {
        "Tensor": "Tensor", "Tensor | None": "Optional[Tensor]", "_Pair": "List[int]", "Sequence[int]": "List[int]",
        "int": "int", "_Direction": "str", "str": "str", "bool": "bool", "tuple[Tensor, Tensor]": "Tensor, Tensor",
    }  # fmt: skip
    arguments, required = function.args.args, len(function.args.args) - len(function.args.defaults)
    described = [(a.arg, types[ast.unparse(a.annotation)], i >= required) for i, a in enumerate(arguments)]
    return described, types[ast.unparse(function.returns)]


def test_the_stub_says_what_the_schemas_say() -> None:
    stub = ast.parse(Path(deconv_ext.__file__).with_name("ops.pyi").read_text(encoding="utf-8"))
    functions = {item.name: item for item in stub.body if isinstance(item, ast.FunctionDef)}
    names = [name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names()
             if name.startswith("deconv::") and not name.startswith("deconv::_")]  # fmt: skip
    assert sorted(functions) == sorted(names)
    for name, function in functions.items():
        operator = getattr(torch.ops.deconv, name)
        assert getattr(deconv_ext.ops, name) is operator
        schema = operator.default._schema
        expected = [(a.name, str(a.type), a.has_default_value()) for a in schema.arguments]
        assert _declared(function) == (expected, ", ".join(str(one.type) for one in schema.returns)), name
        for argument, default in zip(reversed(schema.arguments), reversed(function.args.defaults), strict=False):
            value = ast.literal_eval(default)
            pair = isinstance(argument.default_value, list) and isinstance(value, int)
            assert argument.default_value == ([value, value] if pair else list(value) if value == () else value)


@pytest.mark.parametrize("needs_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("unbatched", [False, True], ids=["4d", "3d"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("direction", [*OPERATORS, "backward"])
def test_opcheck(direction: str, layout: str, unbatched: bool, needs_grad: bool, device: str) -> None:
    """Schema, autograd registration, fake kernel, AOT dispatch with static and dynamic shapes."""
    operator, args = _call(direction, device, layout=layout, unbatched=unbatched, needs_grad=needs_grad)
    torch.library.opcheck(operator, args)


def test_opcheck_without_bias_and_defaults(device: str) -> None:
    x, w = torch.randn(1, 2, 3, 4, device=device), torch.randn(2, 3, 2, 2, device=device)
    torch.library.opcheck(FORWARD, (x, w))
    torch.library.opcheck(FORWARD, (x, w), {"stride": 2, "padding": 1})


@pytest.mark.parametrize("unbatched", [False, True], ids=["4d", "3d"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("needs_grad", [False, True], ids=["plain", "recorded"])
def test_backward_is_both_gradients(needs_grad: bool, layout: str, unbatched: bool, device: str) -> None:
    both, args = _call("backward", device, layout=layout, unbatched=unbatched, needs_grad=needs_grad)
    gy, x, w, *conv = args
    expected = GRAD_INPUT(gy, w, x.shape[-2:], *conv), GRAD_WEIGHT(x, gy, w.shape[-2:], *conv)
    for one, other in zip(both(*args), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert (one.stride(), one.requires_grad) == (other.stride(), needs_grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("direction", OPERATORS)
@pytest.mark.parametrize("one", SHAPES, ids=lambda one: one["name"])
def test_fake_strides_are_real(one: dict, direction: str, dtype: torch.dtype, device: str) -> None:
    """In every pair of layouts. On CUDA exactly; ATen's own fake kernels for the CPU are free along sizes of 1."""
    conv = (one["s"], one["p"], one["op"], one["g"], one["d"])
    x = torch.randn(one["n"], one["ci"], one["h"], one["w"])
    w = torch.randn(one["ci"], one["co"] // one["g"], *one["k"])
    gy = torch.randn_like(F.conv_transpose2d(x, w, None, *conv))
    first, second, rest = {
        "forward": (x, w, (None,)), "grad_input": (gy, w, (x.shape[2:],)), "grad_weight": (x, gy, (one["k"],))
    }[direction]  # fmt: skip
    for a in LAYOUTS:
        for b in FEW_LAYOUTS:
            args = (arrange(first.to(device, dtype), a), arrange(second.to(device, dtype), b), *rest, *conv)
            real = OPERATORS[direction](*args)
            with FakeTensorMode() as mode:
                fake = OPERATORS[direction](*(mode.from_tensor(t) if isinstance(t, Tensor) else t for t in args))
            assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
            strides = zip(fake.shape, fake.stride(), real.stride(), strict=True)
            assert all(f == r for size, f, r in strides if size > 1 or device == "cuda"), (a, b)


# --- compile --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "dynamic", "layout"),
    [
        ("aot_eager", False, "contiguous"),
        ("aot_eager", False, "channels_last"),
        ("aot_eager", True, "contiguous"),
        ("aot_eager", True, "channels_last"),
        pytest.param("inductor", False, "channels_last", marks=pytest.mark.slow),
        pytest.param("inductor", True, "contiguous", marks=pytest.mark.slow),
    ],
)
def test_compile_trains(backend: str, dynamic: bool, layout: str, device: str) -> None:
    """One graph without a break; the same output and gradients as eager, with the same strides."""
    # No extent that varies equals another: torch would take them for one symbol.
    x, w, b = (torch.randn(size, device=device) for size in ((8, 4, 5, 7), (4, 3, 3, 3), (6,)))
    eager = lambda x, w, b: deconv_ext.conv_transpose2d(x, w, b, 2, 1, 1, 2)  # noqa: E731
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(eager, fullgraph=True, dynamic=dynamic, backend=counter)
    for part in [x, x[:2, :, :4, :5], x[:, :, 1:, :]] if dynamic else [x]:
        operands = arrange(part, layout), arrange(w, layout), b
        results, expected = step(compiled, *operands), step(eager, *operands)
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4)  # sums in another order
        assert [one.stride() for one in results] == [one.stride() for one in expected]
    assert counter.frame_count == 1
    targets = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert any(target.startswith("deconv.conv_transpose2d") for target in targets)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
def test_compiled_backward_is_one_call(needs: tuple[bool, bool], device: str) -> None:
    """Of a layer whose input and weight both train; of others the one gradient that is wanted."""
    seen: list[Any] = []

    def compiler(module: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(node.target for node in module.graph.nodes if str(node.target).startswith("deconv"))
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    x, w, b = (t.to(device) for t in (torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 3), torch.randn(3)))
    operands = x.requires_grad_(needs[0]), w.requires_grad_(needs[1]), b.requires_grad_()
    torch.compile(deconv_ext.conv_transpose2d, fullgraph=True, backend=backend)(*operands).sum().backward()
    gradient = {(True, True): BACKWARD, (True, False): GRAD_INPUT, (False, True): GRAD_WEIGHT}[needs]
    assert seen == [FORWARD, gradient]


@pytest.mark.parametrize("operator", [FORWARD, GRAD_INPUT, GRAD_WEIGHT, BACKWARD], ids=str)
def test_compilers_may_choose_the_layout(operator: torch._ops.OpOverload) -> None:
    assert torch.Tag.flexible_layout in operator.tags


@pytest.mark.gpu
@pytest.mark.slow
def test_compiled_layer_takes_the_convolution_s_layout() -> None:
    """Between convolutions, which run in channels_last, nothing is copied back to the traced strides."""
    before, after = (nn.Conv2d(128, 128, 3, padding=1) for _ in range(2))  # fewer stay contiguous
    model = nn.Sequential(before, deconv_ext.ConvTranspose2d(128, 128, 4, 2, 1), after).to("cuda")
    x = torch.randn(4, 128, 16, 16, device="cuda")
    compiled = torch.compile(model)
    _, codes = run_and_get_code(lambda: compiled(x).backward(torch.ones(4, 128, 32, 32, device="cuda")))
    code = "\n".join(codes)
    for name, channels_last in (
        ("conv_transpose2d", "(131072, 1, 4096, 128)"),
        ("conv_transpose2d_backward", "(32768, 1, 2048, 128)"),
    ):
        call = re.search(rf"= torch\.ops\.deconv\.{name}\.default\(", code)
        assert call is not None, code
        first = re.search(r"\(4, 128, \d+, \d+\), (\([\d, ]+\))", code[call.end() :])  # the check of its first result
        assert first is not None
        assert first.group(1) == channels_last, name


def test_compiled_autocast(device: str) -> None:
    x, w = torch.randn(2, 4, 5, 6, device=device), torch.randn(4, 3, 3, 3, device=device)

    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return deconv_ext.conv_transpose2d(x, w)

    result = torch.compile(function, fullgraph=True, backend="aot_eager")(x, w)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, function(x, w))


def test_compiled_error(device: str) -> None:
    """A call that eager refuses fails when compiled too, and the next one works."""
    w = torch.randn(4, 3, 3, 3, device=device)
    compiled = torch.compile(lambda x: deconv_ext.conv_transpose2d(x, w), backend="aot_eager")
    with pytest.raises(RuntimeError):
        compiled(torch.randn(2, 5, 5, 6, device=device))
    x = torch.randn(2, 4, 5, 6, device=device)
    torch.testing.assert_close(compiled(x), deconv_ext.conv_transpose2d(x, w))


# --- export ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_export(dynamic: bool, needs_grad: bool, device: str) -> None:
    """The operator stays in the graph, also when decompositions run; other sizes run where dims are dynamic."""
    layer = deconv_ext.ConvTranspose2d(4, 6, 3, 2, 1).to(device).requires_grad_(needs_grad)
    dims = {i: torch.export.Dim(name, min=2, max=64) for i, name in ((0, "n"), (2, "h"), (3, "w"))}
    x = torch.randn(3, 4, 5, 6, device=device)
    program = torch.export.export(layer, (x,), dynamic_shapes=(dims,) if dynamic else None)
    assert FORWARD not in torch._decomp.decomposition_table  # which Inductor refuses where the environment says CI
    for variant in (program, program.run_decompositions({}), program.run_decompositions()):
        assert [node.target for node in variant.graph.nodes].count(FORWARD) == 1
        for one in [x, torch.randn(2, 4, 7, 9, device=device)] if dynamic else [x]:
            torch.testing.assert_close(variant.module()(one), layer(one))


# --- FLOP counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
def test_flop_counter(groups: int, device: str) -> None:
    """On CUDA each of the three directions counts once; on the CPU the backward is ATen's."""
    x = torch.randn(2, 4, 5, 6, device=device, requires_grad=True)
    w = torch.randn(4, 6 // groups, 3, 3, device=device, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y = deconv_ext.conv_transpose2d(x, w, None, 2, 1, 1, groups)
    one = 2 * x.numel() * (6 // groups) * 9
    assert counter.get_total_flops() == one
    if device == "cuda":
        with FlopCounterMode(display=False) as counter:
            y.sum().backward()
        assert counter.get_total_flops() == 2 * one


# --- what it says about itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("sizes", [(2, 4, 5, 6), (1, 4, 5, 6), (2, 1, 5, 6), (2, 4, 1, 1), (1, 1, 1, 1), (1, 4, 1, 6)])
def test_explain_finds_channels_last_where_torch_does(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    w = torch.empty(sizes[1], 3, 2, 2, device="meta", dtype=dtype)
    for layout in LAYOUTS:
        x = arrange(torch.zeros(sizes, dtype=dtype), layout)
        suggested = torch._prims_common.suggest_memory_format(x) == torch.channels_last and dtype != torch.float64
        text = deconv_ext.explain(torch.empty_strided(x.shape, x.stride(), device="meta", dtype=dtype), w)
        assert f"result: {'channels_last' if suggested else 'contiguous'};" in text, layout


@pytest.mark.parametrize("direction", ["grad_input", "grad_weight"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_explain_of_a_gradient_has_the_layout_of_the_forward(
    direction: str, memory_format: torch.memory_format
) -> None:
    """What `explain` says of a layer's gradient is what the operator says of a gradient in the output's layout."""
    x, w = (
        torch.empty(*size, device="meta").to(memory_format=memory_format) for size in ((8, 64, 40, 40), (64, 64, 4, 4))
    )
    grad = torch.empty(8, 64, 80, 80, device="meta").to(memory_format=memory_format)
    first, second, size = (grad, w, (40, 40)) if direction == "grad_input" else (x, grad, (4, 4))
    expected = torch.ops.deconv.explain(first, second, None, 2, 1, 0, 1, 1, direction, size)
    assert deconv_ext.explain(x, w, None, 2, 1, direction=direction) == expected


def test_show_config() -> None:
    text = deconv_ext.show_config()
    assert deconv_ext.__version__ in text
    assert torch.__version__ in text
    for index in range(torch.cuda.device_count()):
        assert torch.cuda.get_device_name(index) in text
