"""Exported models: ONNX checked with onnxruntime, packages of AOTInductor."""

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deconv_ext

MODELS = {
    "strided": (lambda: nn.ConvTranspose2d(4, 3, (3, 2), (2, 3), 1, (1, 2)), (2, 4, 5, 6)),
    "grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False, dilation=(1, 2)), (2, 4, 5, 6)),
    "unbatched": (lambda: nn.ConvTranspose2d(4, 3, 3, 2), (4, 5, 6)),
    "1d": (lambda: nn.ConvTranspose1d(4, 3, 8, 4, 2), (2, 4, 7)),
    "1d_grouped_unbatched": (lambda: nn.ConvTranspose1d(4, 4, 3, 2, 1, 1, groups=4, dilation=2), (4, 7)),
}


@pytest.fixture
def onnxruntime() -> Any:
    """onnxruntime, where it and the exporter's own needs are installed."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    return pytest.importorskip("onnxruntime")


def _export(*args: Any, **kwargs: Any) -> Any:
    table = deconv_ext.onnx_table()
    return torch.onnx.export(*args, dynamo=True, verbose=False, custom_translation_table=table, **kwargs)


def _operators(program: Any) -> list[str]:
    return [node.op_type for node in program.model.graph]


def _run(onnxruntime: Any, program: Any, *inputs: Tensor) -> Tensor:
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, feed)[0])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_onnx(name: str, dynamic: bool, onnxruntime: Any) -> None:
    make, shape = MODELS[name]
    model = deconv_ext.convert(nn.Sequential(make(), nn.ReLU()).eval())
    spatial = range(len(shape) - (1 if name.startswith("1d") else 2), len(shape))
    shapes = (dict.fromkeys(spatial, torch.export.Dim.DYNAMIC),) if dynamic else None
    program = _export(model, (torch.randn(shape),), dynamic_shapes=shapes)
    assert _operators(program).count("ConvTranspose") == 1
    assert {node.domain for node in program.model.graph} == {""}
    for more in (0, 3) if dynamic else (0,):
        x = torch.randn([extent + more * (axis in spatial) for axis, extent in enumerate(shape)])
        torch.testing.assert_close(_run(onnxruntime, program, x), model(x))


@torch.no_grad()
def test_onnx_of_an_exported_program_and_of_the_function(onnxruntime: Any) -> None:
    class Function(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return deconv_ext.conv_transpose2d(x, weight, stride=2, padding=(1, 0))

    x, weight = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 3)
    exported = torch.export.export(Function(), (x, weight))
    assert any("deconv" in str(node.target) for node in exported.graph.nodes)
    program = _export(exported)
    assert _operators(program) == ["ConvTranspose"]
    torch.testing.assert_close(_run(onnxruntime, program, x, weight), Function()(x, weight))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles with g++")
@torch.no_grad()
def test_aotinductor_package(tmp_path: Path) -> None:
    layers = nn.ConvTranspose2d(4, 3, 3, 2, 1), nn.Flatten(2), nn.ConvTranspose1d(3, 2, 8, 4, 2)
    model = deconv_ext.convert(nn.Sequential(*layers))
    dynamic = ({0: torch.export.Dim("batch", min=2), 2: torch.export.Dim("height", min=2)},)
    program = torch.export.export(model, (torch.randn(2, 4, 5, 6),), dynamic_shapes=dynamic)
    assert sum("deconv.conv_transpose2d" in str(node.target) for node in program.graph.nodes) == 2
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2"), inductor_configs=quick
    )
    loaded = torch._inductor.aoti_load_package(path)
    for size in ((2, 4, 5, 6), (3, 4, 9, 6)):
        x = torch.randn(size)
        torch.testing.assert_close(loaded(x), model(x))
