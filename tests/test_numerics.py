"""Values and strides: cases x dtype x layout x direction against the float64 oracle, and what the GPU must hold to."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import BY_NAME, CALLS, CASES, DTYPES, Operands, conv_args, is_narrow, operands, reference, run, sum_length
from helpers import FEW_LAYOUTS, LAYOUTS, SHAPES, arrange, assert_close, poison, step
from torch import Tensor

import deconv_ext
from deconv_ext.workloads import case as make_case

GRADIENTS = ("forward", "grad_input", "grad_weight")
PLAIN = ("contiguous", "channels_last")
# On the CPU the operator forwards to ATen: these few cases see every dtype and layout there, the others float32.
CPU_FULL = ("kb1_75", "stylegan2_mod", "rectangular_all", "odd_sizes", "depthwise_multiplier")


def _matrix() -> list[Any]:
    matrix = []
    for one in CASES:
        name = one["name"]
        for dtype in DTYPES:
            for layout in PLAIN:
                for call in CALLS:
                    label = f"{name}-{str(dtype)[6:]}-{layout}-{call}"
                    if name in CPU_FULL or (dtype == torch.float32 and layout == "contiguous"):
                        matrix.append(pytest.param(name, dtype, layout, call, "cpu", id=f"{label}-cpu"))
                    gpu = pytest.param(name, dtype, layout, call, "cuda", marks=pytest.mark.gpu, id=f"{label}-cuda")
                    matrix.append(gpu)
    return matrix


@pytest.mark.parametrize(("name", "dtype", "layout", "call", "on"), _matrix())
def test_against_oracle(name: str, dtype: torch.dtype, layout: str, call: str, on: str) -> None:
    one = BY_NAME[name]
    expected = reference(name, call, is_narrow(dtype))
    values = operands(name, is_narrow(dtype)).to(on, dtype, layout)
    poison(on, expected.numel() * dtype.itemsize)
    result = run(one, call, values)
    assert result.dtype == dtype
    assert result.device.type == on
    assert_close(result, expected, sum_length(one, call))


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["odd_sizes", "long_sum", "kb2_11"])
def test_half_types_round_once(name: str, dtype: torch.dtype, call: str) -> None:
    """Accumulated in float32, bias included: nearly every element is the correctly rounded one."""
    result = run(BY_NAME[name], call, operands(name, True).to("cuda", dtype)).cpu()
    assert (result == reference(name, call, True).to(dtype)).float().mean() > 0.98


# --- strides --------------------------------------------------------------------------------------------------------


def _random_operands(one: dict, device: str, dtype: torch.dtype) -> Operands:
    """Small integers, exact in every dtype and sum."""

    def make(*size: int) -> Tensor:
        return torch.randint(-3, 4, size).to(device, dtype)

    x, w = make(one["n"], one["ci"], one["h"], one["w"]), make(one["ci"], one["co"] // one["g"], *one["k"])
    y = F.conv_transpose2d(x.cpu().double(), w.cpu().double(), None, *conv_args(one))
    return Operands(x, w, make(one["co"]), make(*y.shape))


def _oracle(one: dict, call: str, values: Operands) -> Tensor:
    """The call in float64 by ATen on the CPU."""
    x, w, b, gy = (t.detach().cpu().double().contiguous() for t in (values.x, values.w, values.b, values.gy))
    if call.startswith("forward"):
        return F.conv_transpose2d(x, w, b if call == "forward_bias" else None, *conv_args(one))
    stride, padding, output_padding, groups, dilation = conv_args(one)
    mask = [call == "grad_input", call == "grad_weight", False]
    args = (gy, x, w, None, stride, padding, dilation, True, output_padding, groups, mask)
    return torch.ops.aten.convolution_backward(*args)[mask.index(True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("one", SHAPES, ids=lambda one: one["name"])
def test_strides_are_torchs(one: dict, dtype: torch.dtype, device: str) -> None:
    """Every pair of layouts of input and weight; strides of dimensions of size 1 included."""
    values = _random_operands(one, device, dtype)
    expected = _oracle(one, "forward_bias", values)
    for x_layout in LAYOUTS:
        for w_layout in FEW_LAYOUTS:
            x, w = arrange(values.x, x_layout), arrange(values.w, w_layout)
            theirs = F.conv_transpose2d(x, w, values.b, *conv_args(one))
            ours = deconv_ext.conv_transpose2d(x, w, values.b, *conv_args(one))
            assert ours.stride() == theirs.stride(), (x_layout, w_layout)
            assert torch.equal(ours.cpu().double(), expected), (x_layout, w_layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("layout", PLAIN)
def test_gradient_strides_are_torchs(layout: str, dtype: torch.dtype, device: str) -> None:
    values = _random_operands(SHAPES[0], device, dtype)
    operands = [arrange(t, layout) for t in (values.x, values.w)]
    ours, theirs = (
        step(lambda x, w, function=function: function(x, w, None, *conv_args(SHAPES[0])), *operands)
        for function in (deconv_ext.conv_transpose2d, F.conv_transpose2d)
    )
    assert [one.stride() for one in ours] == [one.stride() for one in theirs]
    torch.testing.assert_close(ours, theirs)


ARRANGED = [
    make_case("ragged", 2, 6, 5, 7, 9, (3, 2), s=(2, 1), p=(1, 0), op=(1, 0), g=3),
    make_case("packed", 2, 16, 5, 6, 24, 3, s=2, p=1),
    make_case("packed_groups", 2, 32, 4, 5, 16, 3, p=1, g=2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("call", GRADIENTS)
@pytest.mark.parametrize("one", ARRANGED, ids=lambda one: one["name"])
def test_any_strides(one: dict, call: str, dtype: torch.dtype, device: str) -> None:
    """Sliced, transposed and misaligned operands, in all pairs of layouts, give the exact values."""
    values = _random_operands(one, device, dtype)
    expected = _oracle(one, call, values)
    first, second = {"forward": ("x", "w"), "grad_input": ("gy", "w"), "grad_weight": ("x", "gy")}[call]
    for a in LAYOUTS:
        for b in FEW_LAYOUTS if device == "cpu" else LAYOUTS:
            arranged = {"x": values.x, "w": values.w, "gy": values.gy}
            arranged[first], arranged[second] = arrange(arranged[first], a), arrange(arranged[second], b)
            poison(device, expected.numel() * dtype.itemsize)
            result = run(one, call, Operands(b=values.b, **arranged))
            assert torch.equal(result.cpu().double(), expected.to(dtype).double()), (a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("call", GRADIENTS)
def test_sequences_seen_as_images(call: str, dtype: torch.dtype, device: str) -> None:
    """(N, T, C) transposed, one column wide: channels are adjacent, and the stride of the only column says nothing."""
    for channels in ((16, 24), (64, 3), (64, 64)):
        one = make_case("sequence", 3, channels[0], 40, 1, channels[1], (4, 1), s=(2, 1), p=(1, 0))
        values = _random_operands(one, device, dtype)
        x, gy = (t[..., 0].mT.contiguous().mT.unsqueeze(-1) for t in (values.x, values.gy))
        assert x.stride()[1:] == (1, channels[0], 1)
        result = run(one, call, Operands(x=x, w=values.w, b=values.b, gy=gy))
        assert torch.equal(result.cpu().double(), _oracle(one, call, values).to(dtype).double()), channels


@pytest.mark.parametrize("call", GRADIENTS)
@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (2, 3), (0, 1), (0,), (1,), (2,), (3,)], ids=str)
def test_expanded(dims: tuple[int, ...], call: str, device: str) -> None:
    """Operands with zero strides along `dims`, each operand in turn."""
    one = ARRANGED[0]
    values = _random_operands(one, device, torch.float32)
    for key in ("x", "w", "gy"):
        tensor = getattr(values, key)
        slim = tensor[tuple(slice(0, 1) if dim in dims else slice(None) for dim in range(4))]
        parts = {"x": values.x, "w": values.w, "gy": values.gy, key: slim.expand_as(tensor)}
        expanded = Operands(b=values.b, **parts)
        assert torch.equal(run(one, call, expanded).cpu().double(), _oracle(one, call, expanded))


def test_bias_of_any_strides(device: str) -> None:
    values = _random_operands(ARRANGED[0], device, torch.float32)
    args = conv_args(ARRANGED[0])
    expected = deconv_ext.conv_transpose2d(values.x, values.w, values.b, *args)
    for bias in (values.b.repeat_interleave(3)[::3], torch.cat([values.b[:1], values.b])[1:]):
        assert torch.equal(deconv_ext.conv_transpose2d(values.x, values.w, bias, *args), expected)
    scalar = values.b[:1].expand(9)
    expected = deconv_ext.conv_transpose2d(values.x, values.w, scalar.contiguous(), *args)
    assert torch.equal(deconv_ext.conv_transpose2d(values.x, values.w, scalar, *args), expected)


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed", "offset_channels_last"])
@pytest.mark.parametrize("call", CALLS)
def test_unbatched(call: str, layout: str, device: str) -> None:
    one = {**ARRANGED[1], "n": 1}
    values = _random_operands(one, device, torch.float32)
    expected = _oracle(one, call, values)
    single = Operands(arrange(values.x, layout)[0], values.w, values.b, arrange(values.gy, layout)[0])
    result = run(one, call, single)
    assert torch.equal(result.cpu().double(), expected if call == "grad_weight" else expected[0])
    if call == "forward":
        assert result.stride() == F.conv_transpose2d(single.x, single.w, None, *conv_args(one)).stride()


@pytest.mark.parametrize("layout", PLAIN)
@pytest.mark.parametrize(
    ("images", "kernel", "padding"),
    [(0, (3, 2), (0, 0)), (2, (2, 3), (1, 1)), (0, (2, 3), (1, 1)), (2, (3, 2), (0, 2))],
    ids=["no_images", "no_height", "no_images_or_height", "no_width"],
)
def test_results_without_elements(
    images: int, kernel: tuple[int, int], padding: tuple[int, int], layout: str, device: str
) -> None:
    """No images, or cropped to nothing: an empty output, and gradients of zeros, as torch has them."""
    x, b = torch.randn(images, 3, 1, 3, device=device), torch.randn(2, device=device)
    w = arrange(torch.randn(3, 2, *kernel, device=device), layout)
    expected = F.conv_transpose2d(x.cpu(), w.cpu(), b.cpu(), 1, padding)
    poison(device, x.nbytes, w.nbytes)
    result, *gradients = step(lambda x, w, b: deconv_ext.conv_transpose2d(x, w, b, 1, padding), x, w, b)
    assert result.shape == expected.shape
    assert result.numel() == 0
    one = make_case("empty", 1, 3, 1, 3, 2, kernel, p=padding)
    gradients += [run(one, call, Operands(x, w, b, result)) for call in ("grad_input", "grad_weight")]
    assert [one.shape for one in gradients] == [x.shape, w.shape, b.shape, x.shape, w.shape]
    assert not any(one.count_nonzero() for one in gradients)


def test_complex_and_integers_go_to_aten(device: str) -> None:
    operands = [torch.randn(size, dtype=torch.complex64, device=device) for size in ((2, 3, 4, 5), (3, 4, 3, 3))]
    integers = [torch.randint(-9, 9, one.shape) for one in operands]  # torch has none on CUDA
    for x, w in (operands, integers):
        assert torch.equal(deconv_ext.conv_transpose2d(x, w, None, 2, 1), F.conv_transpose2d(x, w, None, 2, 1))


# --- repeatability, streams, graphs, devices, sizes -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["odd_sizes", "long_sum", "tiles_8x16x24x25_72_k3_s1"])
def test_bitwise_repeatable(name: str, call: str, dtype: torch.dtype, device: str) -> None:
    values = operands(name).to(device, dtype)
    first = run(BY_NAME[name], call, values)
    for _ in range(4):
        poison(device, first.nbytes)
        assert torch.equal(run(BY_NAME[name], call, values), first)


@pytest.mark.parametrize("position", [0, 1], ids=["input", "weight"])
def test_nan_and_infinity_pass_through(position: int, device: str) -> None:
    """They reach exactly the results that they meet, and no zero hides an infinity."""
    operands = torch.ones(1, 3, 5, 5, device=device), torch.ones(3, 3, 3, 3, device=device)
    operands[position][0, 1, 2, 2] = float("nan")
    operands[position][0, 0, 0, 0] = float("inf")
    operands[1 - position][0, 2] = 0
    ours, theirs = (f(*operands, None, 2, 1) for f in (deconv_ext.conv_transpose2d, F.conv_transpose2d))
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def _copy(target: Operands, source: Operands) -> None:
    for key, one in vars(source).items():
        getattr(target, key).copy_(one, non_blocking=True)


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS)
def test_runs_on_the_current_stream(call: str) -> None:
    """Waits for what the caller's stream has queued, and for nothing else."""
    one = BY_NAME["long_sum"]
    values = operands("long_sum").to("cuda", torch.float32)
    expected = run(one, call, values)
    late = Operands(**{key: torch.full_like(one, float("nan")) for key, one in vars(values).items()})
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(one, call, late)  # the stream's memory is allocated
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        _copy(late, values)
        result = run(one, call, late)
        done = torch.cuda.Event()
        done.record(stream)
    assert not done.query(), "the call waited for the GPU"
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(result, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["odd_sizes", "long_sum"])
def test_cuda_graph(name: str, call: str) -> None:
    """Captured once, replayed on other values."""
    one = BY_NAME[name]
    values = operands(name).to("cuda", torch.float32)
    expected = run(one, call, values)
    static = Operands(**{key: torch.zeros_like(one) for key, one in vars(values).items()})
    run(one, call, static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(one, call, static)
    _copy(static, values)
    graph.replay()
    assert torch.equal(result, expected)


@pytest.mark.gpu
def test_cuda_graph_of_a_training_step() -> None:
    layer = deconv_ext.ConvTranspose2d(5, 7, 3, 2, 1, device="cuda")
    x = torch.randn(2, 5, 6, 7, device="cuda")
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(layer), (x,))
    expected = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    torch.testing.assert_close(torch.autograd.grad(graphed(x).square().sum(), graphed.weight), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS)
def test_second_gpu(call: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    one = BY_NAME["odd_sizes"]
    values = operands("odd_sizes").to("cuda:1", torch.float32)
    assert torch.cuda.current_device() == 0
    result = run(one, call, values)
    assert torch.cuda.current_device() == 0
    assert result.device == torch.device("cuda:1")
    assert_close(result, reference("odd_sizes", call), sum_length(one, call))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("layout", PLAIN)
@pytest.mark.parametrize("call", GRADIENTS)
def test_beyond_32_bit_indices(call: str, layout: str) -> None:
    """An output (grad_output) of 2.2e9 elements, its last corner compared."""
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("less than 12 GB of free GPU memory")
    torch.cuda.empty_cache()
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    one = make_case("huge", 1, 4, 4096, 2100, 64, 2, s=2)
    options = {"device": "cuda", "dtype": torch.float16}
    x = torch.randint(-2, 3, (1, 4, 4096, 2100), **options).contiguous(memory_format=memory_format)
    w = torch.randint(-2, 3, (4, 64, 2, 2), **options).contiguous(memory_format=memory_format)
    if call == "forward":
        result = run(one, call, Operands(x, w, None, None))
        assert result.numel() > 2**31
        expected = F.conv_transpose2d(x[..., -50:, -40:].cpu().double(), w.cpu().double(), None, 2)
        assert torch.equal(result[..., -100:, -80:].cpu().double(), expected)
        return
    gy = torch.empty(1, 64, 8192, 4200, memory_format=memory_format, **options).zero_()
    gy[..., -100:, -80:] = torch.randint(-2, 3, (1, 64, 100, 80), **options)
    result = run(one, call, Operands(x, w, None, gy))
    corner = {**one, "h": 50, "w": 40}
    expected = _oracle(corner, call, Operands(x[..., -50:, -40:], w, torch.zeros(64), gy[..., -100:, -80:]))
    part = result if call == "grad_weight" else result[..., -50:, -40:]
    assert torch.equal(part.cpu().double(), expected.half().double())
    if call == "grad_input":
        assert result[..., :-50, :].count_nonzero() == 0
