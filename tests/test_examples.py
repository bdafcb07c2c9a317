"""Each program of examples/ runs, in small."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="no examples beside these tests")

SMALL = {
    "unet_inference": "--size 32 --width 4 --batch 1",
    "train_dcgan": "--width 2 --batch 4 --steps 2 --backend eager",
    "profile_maskrcnn": "--size 64 --images 1",
}


def _run(name: str, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    path = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *SMALL[name].split(), "--device", device])
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)


def test_unet_inference(device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = _run("unet_inference", device, monkeypatch, capsys)
    assert re.search(r"^torch +[\d.]+ ms a batch\ndeconv_ext +[\d.]+ ms a batch\n", text)
    found = re.search(r"difference of the results: (.+)$", text)
    assert found is not None
    assert float(found[1]) < 2e-2


def test_train_dcgan(device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    text = _run("train_dcgan", device, monkeypatch, capsys)
    found = re.search(r"^step     2: generator ([\d.]+), discriminator ([\d.]+)$", text, re.MULTILINE)
    assert found is not None
    assert all(0 < float(loss) < 20 for loss in found.groups())


def test_profile_maskrcnn(device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision")
    text = _run("profile_maskrcnn", device, monkeypatch, capsys)
    assert "roi_heads.mask_predictor.conv5_mask" in text
    assert ("of the step; the kernels:" in text) == (device == "cuda")
