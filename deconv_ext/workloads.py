"""Transposed 2D convolutions that people run, as plain data, and the arithmetic on them.

A case is a dict: ``name``, ``n`` (batch), ``ci``, ``h``, ``w`` (input channels and size in pixels), ``co`` (output
channels), ``k`` (kernel), ``s`` (stride), ``p`` (padding), ``op`` (output_padding), ``d`` (dilation), each a pair
(height, width), and ``g`` (groups).

``KERNELBENCH`` holds the transposed 2D convolutions of KernelBench level 1 (``kb1_*``) and level 2 (``kb2_*``) at that
benchmark's own sizes. ``ZOO`` holds layers of well-known networks, ``REAL`` and ``REAL1D`` (1-D layers as images of one
row) layers read in public repositories, all named after their networks. ``SWEEP`` varies one property of one layer at a
time; a name says which, and its value: ``sweep_channels_0064``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

__all__ = [
    "ALL_CASES",
    "CASES",
    "KERNELBENCH",
    "KINDS",
    "REAL",
    "REAL1D",
    "SUITES",
    "SWEEP",
    "ZOO",
    "Case",
    "case",
    "flops",
    "kind_of",
    "load_cases",
    "minimal_bytes",
    "output_size",
    "parse_shape",
    "scale_down",
    "select",
    "shape_of",
    "suite_of",
    "sweep_point",
]

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]


class Case(TypedDict):
    """One transposed convolution; see the module's docstring for the keys."""

    name: str
    n: int
    ci: int
    h: int
    w: int
    co: int
    k: Pair
    s: Pair
    p: Pair
    op: Pair
    d: Pair
    g: int


def case(
    name: str,
    n: int,
    ci: int,
    h: int,
    w: int,
    co: int,
    k: IntOrPair,
    s: IntOrPair = 1,
    p: IntOrPair = 0,
    op: IntOrPair = 0,
    d: IntOrPair = 1,
    g: int = 1,
) -> Case:
    """One case; ``k``, ``s``, ``p``, ``op`` and ``d`` are an int for both axes or a pair (height, width).

    Raises:
        ValueError: if a pair is no two ints in range, or the groups divide not both channel counts.
    """
    if g < 1 or ci % g or co % g:
        raise ValueError(f"case {name}: g is {g}; it must be a positive divisor of ci ({ci}) and of co ({co})")
    return Case(
        name=name, n=n, ci=ci, h=h, w=w, co=co, g=g,
        k=_pair(name, "k", k, 1), s=_pair(name, "s", s, 1), p=_pair(name, "p", p, 0), op=_pair(name, "op", op, 0),
        d=_pair(name, "d", d, 1),
    )  # fmt: skip


def _pair(name: str, key: str, value: IntOrPair, minimum: int) -> Pair:
    pair = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    if len(pair) != 2 or not all(isinstance(element, int) and element >= minimum for element in pair):
        raise ValueError(
            f"case {name}: {key} is {value!r}; it must be an int of at least {minimum} or two of them (height, width)"
        )
    return pair[0], pair[1]


KERNELBENCH: list[Case] = [
    case("kb1_57", 8, 64, 1024, 1024, 64, 3),
    case("kb1_65", 8, 64, 512, 512, 64, (3, 7)),
    case("kb1_69", 64, 64, 128, 256, 128, (3, 5)),
    case("kb1_71", 8, 32, 512, 1024, 32, 3),
    case("kb1_75", 16, 32, 128, 256, 64, (3, 5), s=(2, 3), p=(1, 2), d=(2, 1), g=4),
    case("kb1_78", 8, 32, 512, 1024, 32, (3, 7), p=(1, 3)),
    case("kb1_81", 16, 32, 64, 128, 64, 3, s=5, p=1, d=2),
    case("kb2_02", 128, 64, 128, 128, 64, 3, s=2, p=1, op=1),
    case("kb2_05", 32, 64, 256, 256, 64, 4, s=2, p=1, op=1),
    case("kb2_10", 128, 64, 256, 256, 64, 3, p=1),
    case("kb2_11", 512, 64, 32, 32, 128, 5, p=1),
    case("kb2_36", 16, 64, 128, 128, 128, 3, s=2, p=1, op=1),
    case("kb2_42", 16, 64, 512, 512, 128, 3),
    case("kb2_91", 128, 64, 64, 64, 128, 4, s=2, p=1, op=1),
]

ZOO: list[Case] = [
    case("dcgan1", 128, 100, 1, 1, 512, 4),
    case("dcgan2", 128, 512, 4, 4, 256, 4, s=2, p=1),
    case("dcgan3", 128, 256, 8, 8, 128, 4, s=2, p=1),
    case("dcgan4", 128, 128, 16, 16, 64, 4, s=2, p=1),
    case("dcgan5_rgb", 128, 64, 32, 32, 3, 4, s=2, p=1),
    case("cyclegan_up1", 8, 256, 64, 64, 128, 3, s=2, p=1, op=1),
    case("cyclegan_up2", 8, 128, 128, 128, 64, 3, s=2, p=1, op=1),
    case("pix2pix_mid", 16, 1024, 16, 16, 512, 4, s=2, p=1),
    case("pix2pix_last", 16, 128, 128, 128, 3, 4, s=2, p=1),
    case("unet_up4", 16, 1024, 32, 32, 512, 2, s=2),
    case("unet_up1", 16, 128, 256, 256, 64, 2, s=2),
    case("pose_up1", 64, 768, 16, 12, 256, 4, s=2, p=1),
    case("pose_up2", 64, 256, 32, 24, 256, 4, s=2, p=1),
    case("maskrcnn", 512, 256, 14, 14, 256, 2, s=2),
    case("sam_up2", 32, 64, 128, 128, 32, 2, s=2),
    case("dpt_x4", 16, 256, 24, 24, 256, 4, s=4),
    case("fcn32s", 4, 21, 16, 16, 21, 64, s=32, p=16),
    case("fcn8s_dw", 8, 21, 64, 64, 21, 16, s=8, p=4, g=21),
    case("dw_k4s2_512", 32, 512, 32, 32, 512, 4, s=2, p=1, g=512),
    case("dw_k3s1_256", 32, 256, 64, 64, 256, 3, p=1, g=256),
    case("fsrcnn_last", 16, 56, 270, 480, 1, 9, s=4, p=4, op=3),
    case("stylegan2_mod", 1, 16 * 256, 32, 32, 16 * 256, 3, s=2, g=16),
    case("resnext_g32", 32, 512, 28, 28, 512, 3, s=2, p=1, op=1, g=32),
    case("b1_latency", 1, 64, 32, 32, 64, 4, s=2, p=1),
]

# Layers of real networks. Arguments were read in the named repository's file; batch and size follow from the network's
# usual input. After the file: t = training, i = inference, the precision, and what follows the layer in the network.
REAL: list[Case] = [
    # facebookresearch/sam2 and sam3 sam/mask_decoder.py:65; i fp16/bf16, 64 prompts a batch; (+ skip) LayerNorm2d, GELU
    case("r_sam_up1", 64, 256, 64, 64, 64, 2, s=2),
    # facebookresearch/sam3 sam3/model/necks.py:47-61, 1008 px (NVIDIA/TensorRT#4829 quotes it); i/t bf16; GELU
    case("r_sam3_neck_a", 1, 1024, 72, 72, 512, 2, s=2),
    # facebookresearch/detectron2 modeling/backbone/vit.py:414; t fp16, 1024 px; LayerNorm + GELU
    case("r_vitdet_b_up", 4, 768, 64, 64, 384, 2, s=2),
    # DepthAnything/Depth-Anything-V2 depth_anything_v2/dpt.py:62-68, 518 px; i fp16; conv 3x3
    case("r_dav2_l_x4", 8, 256, 37, 37, 256, 4, s=4),
    case("r_dav2_s_x4", 32, 48, 37, 37, 48, 4, s=4),
    # apple/ml-depth-pro src/depth_pro/network/encoder.py:82, decoder.py:146, depth_pro.py:186, 1536 px; i fp16
    case("r_depthpro_latent_c", 1, 256, 384, 384, 256, 2, s=2),
    case("r_depthpro_fuse", 1, 256, 192, 192, 256, 2, s=2),  # then 1x1 conv
    # huggingface/transformers models/clipseg/modeling_clipseg.py (CLIPSegDecoder), 352 px; i fp32; nothing
    case("r_clipseg_x16", 16, 64, 22, 22, 1, 16, s=16),
    # ultralytics/ultralytics nn/modules/block.py class Proto (YOLOv8/11-seg), 640 px; t amp; conv+BN+SiLU
    case("r_yolo_proto_l", 16, 256, 80, 80, 256, 2, s=2),
    # mindee/doctr models/detection/differentiable_binarization/pytorch.py:151-154, 1024 px; BN + ReLU, then sigmoid
    case("r_dbnet_up1", 4, 64, 256, 256, 64, 2, s=2),
    # mindee/doctr models/detection/linknet/pytorch.py:70,136; t; BN + ReLU, + skip
    case("r_ocr_linknet_dec", 4, 128, 32, 32, 128, 3, s=2, p=1, op=1),
    # mindee/doctr models/table_structure/tablecenternet/pytorch.py:85 (IDAUp of DLA, CenterNet, FairMOT)
    case("r_dla_ida_f2", 4, 64, 128, 128, 64, 4, s=2, p=1, g=64),
    # facebookresearch/detectron2 modeling/roi_heads/keypoint_head.py:248; t/i; interpolate
    case("r_keypoint_rcnn", 128, 512, 14, 14, 17, 4, s=2, p=1),
    # open-mmlab/OpenPCDet models/backbones_2d/base_bev_backbone.py:51, no bias; t/i; BN + ReLU, concat
    case("r_pillars_s1", 4, 64, 248, 216, 128, 1),
    case("r_pillars_s4", 4, 256, 62, 54, 128, 4, s=4),
    case("r_bevfusion_s2", 2, 256, 90, 90, 256, 2, s=2),
    # PRBonn/lidar-bonnetal decoders/darknet.py:96 (RangeNet++ 64x2048); t; BN + LeakyReLU
    case("r_rangenet_dec1", 8, 64, 64, 1024, 32, (1, 4), s=(1, 2), p=(0, 1)),
    # ROCm/MIOpen#3952: public figure cuDNN 9.19 on a B300, bf16, 0.069 ms (560 TFLOP/s)
    case("r_miopen3952", 1, 512, 128, 128, 256, 3, s=2, p=1, op=1),
    # huggingface/diffusers models/unets/unet_stable_cascade.py:351 (channels from memory); i bf16; blocks
    case("r_cascade_b_up", 2, 640, 64, 64, 320, 2, s=2),
    # advimman/lama saicinpainting/training/modules/ffc.py:350 (ngf 64, 3 steps); t at 256 px, i at 2 K; BN + ReLU
    case("r_lama_up1_2k", 1, 512, 192, 256, 256, 3, s=2, p=1, op=1),
    # same repository pix2pixhd.py:424 (pix2pixHD, 1024x512); t; InstanceNorm + ReLU
    case("r_pix2pixhd_up1", 4, 1024, 32, 64, 512, 3, s=2, p=1, op=1),
    # NVlabs/stylegan2-ada-pytorch torch_utils/ops/conv2d_resample.py:145, training/networks.py; t fp16 shared weights,
    # i per-sample weights (groups = batch); blur, demodulate + noise, bias + leaky ReLU
    case("r_sg2ada_fused", 1, 8 * 128, 256, 256, 8 * 64, 3, s=2, g=8),
    # hzwer/ECCV2022-RIFE model/IFNet.py:37, model/refine.py:20 (1080p); i fp16; interpolate / PReLU
    case("r_rife_block2", 1, 90, 272, 480, 5, 4, s=2, p=1),
    case("r_rife_unet_up3", 1, 64, 544, 960, 16, 4, s=2, p=1),
    # NVIDIA/flownet2-pytorch networks/FlowNetS.py:28-42 (384x512); t; LeakyReLU, concat
    case("r_flownets_deconv2", 8, 386, 48, 64, 64, 4, s=2, p=1),
    # Rudrabha/Wav2Lip models/wav2lip.py:62-80; i batch 128; BN + ReLU, concat
    case("r_wav2lip_first", 128, 1024, 1, 1, 512, 3),
    # xavysp/DexiNed model.py:104 (up_scale 4), 352 px; t; conv 1x1, ReLU
    case("r_dexined_k16", 8, 16, 88, 88, 16, 16, s=2, p=7),
    # InterDigitalInc/CompressAI models/utils.py:161 (N 192, M 320); t 256 px, i Kodak; inverse GDN
    case("r_compressai_3", 16, 192, 64, 64, 192, 5, s=2, p=2, op=1),
    case("r_compressai_rgb", 16, 192, 128, 128, 3, 5, s=2, p=2, op=1),
    # NM512/dreamerv3-torch networks.py:541 (depth 32), 16 x 64 frames; t fp16; LayerNorm + SiLU
    case("r_dreamer_up3", 1024, 64, 16, 16, 32, 4, s=2, p=1),
    # NVIDIA/physicsnemo nn/module/utils/patch_embed.py:155 (Pangu surface, 721x1440); t/i; crop
    case("r_pangu_surface", 1, 384, 181, 360, 4, 4, s=4),
    # MIC-DKFZ/dynamic-network-architectures building_blocks/unet_decoder.py:55 (nnU-Net 2-D, 512 px); t amp; concat
    case("r_nnunet2d_up1", 12, 64, 256, 256, 32, 2, s=2),
    # Project-MONAI/MONAI networks/nets/cell_sam_wrapper.py:71-74; t; BN + ReLU
    case("r_cellsam_up1", 2, 256, 64, 64, 128, 3, s=2, p=1, op=1),
    # facebookresearch/demucs demucs/hdemucs.py:287 (HTDemucs, 7.8 s segments), crop of 2 rows each side; GELU
    case("r_htdemucs_1", 4, 384, 8, 336, 192, (8, 1), s=(4, 1)),
    case("r_htdemucs_4", 4, 48, 512, 336, 16, (8, 1), s=(4, 1)),
    # ZFTurbo/Music-Source-Separation-Training models/mdx23c_tfc_tdf_v3.py:79 (vocals), no bias; t amp; concat
    case("r_mdx23c_up5", 6, 256, 128, 512, 128, 2, s=2),
    # same repository models/scnet/scnet.py:155 (config_musdb18_scnet); t amp; crop, concat
    case("r_scnet_mid", 10, 32, 201, 259, 16, (4, 1), s=(4, 1)),
    case("r_kb2_93", 128, 64, 64, 64, 128, 4, s=2),  # add, min, GELU, multiply
    case("r_kb3_45_up1", 8, 128, 32, 256, 64, 2, s=2),
]

# 1-D layers, vocoders and audio codecs most of them, as images of one row.
REAL1D: list[Case] = [
    case("r1_hifigan_t1", 16, 512, 1, 32, 256, (1, 16), s=(1, 8), p=(0, 4)),
    case("r1_hifigan_t4", 16, 64, 1, 4096, 32, (1, 4), s=(1, 2), p=(0, 1)),
    case("r1_hifigan_i4", 1, 64, 1, 110080, 32, (1, 4), s=(1, 2), p=(0, 1)),
    # NVIDIA/BigVGAN bigvgan.py:307, bigvgan_v2_24khz_100band_256x.json, 10 s; i fp16
    case("r1_bigvgan_3", 1, 384, 1, 15008, 192, (1, 4), s=(1, 2), p=(0, 1)),
    # descriptinc/descript-audio-codec dac/model/dac.py:99 (44 kHz, rates 8 8 4 2), 10 s; i; residual unit
    case("r1_dac_1", 1, 1536, 1, 861, 768, (1, 16), s=(1, 8), p=(0, 4)),
    # huggingface/diffusers autoencoders/autoencoder_oobleck.py:124 (Stable Audio Open, 47 s); i fp16; residual unit
    case("r1_oobleck_1", 1, 2048, 1, 1024, 1024, (1, 16), s=(1, 8), p=(0, 4)),
    # ACE-Step's decoder as timed in huggingface/candle#3383 (length estimate: 60 s)
    case("r1_acestep_2", 1, 1024, 1, 15000, 512, (1, 12), s=(1, 6), p=(0, 3)),
    # facebookresearch/encodec encodec/modules/seanet.py:205 (24 kHz, ratios 8 5 4 2), 10 s; i; crop, residual unit
    case("r1_encodec_2", 1, 256, 1, 6000, 128, (1, 10), s=(1, 5)),
    # real-stanford/diffusion_policy conv1d_components.py:18 (LeRobot too): tiny lengths, t batch 256; concat
    case("r1_diffpolicy_1", 256, 512, 1, 4, 512, (1, 4), s=(1, 2), p=(0, 1)),
    # ScalingIntelligence/KernelBench level 1
    case("r1_kb1_64", 64, 128, 1, 65536, 128, (1, 3)),
    case("r1_kb1_79", 16, 32, 1, 131072, 64, (1, 3), s=(1, 2), p=(0, 1), d=(1, 2)),
]

CASES: list[Case] = KERNELBENCH + ZOO + REAL

_SWEEP_BASE = {"n": 16, "ci": 64, "h": 64, "w": 64, "co": 64, "k": 4, "s": 2, "p": 1}
_SWEEP_CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# What varies: the keys of a case that take the value, and the values, in rising order.
_SWEEP_AXES: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    "channels": (("ci", "co"), _SWEEP_CHANNELS),
    "in_channels": (("ci",), _SWEEP_CHANNELS),
    "out_channels": (("co",), _SWEEP_CHANNELS),
    "kernel": (("k",), range(1, 12)),
    "stride": (("s",), range(1, 5)),
    "groups": (("g",), (1, 2, 4, 8, 16, 32, 64)),
    "image": (("h", "w"), (15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129)),
    "dilation": (("d",), range(1, 4)),
    "output_padding": (("op",), range(2)),
}


def _sweep() -> Iterator[Case]:
    for axis, (keys, values) in _SWEEP_AXES.items():
        for value in values:
            yield case(f"sweep_{axis}_{value:04d}", **{**_SWEEP_BASE, **dict.fromkeys(keys, value)})


SWEEP: list[Case] = list(_sweep())

SUITES: dict[str, list[Case]] = {
    "kernelbench": KERNELBENCH, "zoo": ZOO, "real": REAL, "real1d": REAL1D, "all": CASES, "sweep": SWEEP,
}  # fmt: skip
ALL_CASES: list[Case] = CASES + REAL1D + SWEEP
_NAMED = {case["name"]: suite for suite, cases in SUITES.items() if suite != "all" for case in cases}


def sweep_point(name: str) -> tuple[str, int] | None:
    """The axis and the value that the name of a sweep's case says; None for the name of another case.

    Example:
        >>> sweep_point("sweep_in_channels_0064")
        ('in_channels', 64)
    """
    found = re.fullmatch(r"sweep_(\w+)_(\d+)", name)
    return (found[1], int(found[2])) if found else None


def suite_of(name: str) -> str:
    """The suite that holds the case of this name; "" for a case of the user's own."""
    return _NAMED.get(name, "")


def shape_of(case: Case) -> str:
    """A case without its name: input, output channels, then each argument that is not the default.

    Example:
        >>> shape_of(case("mine", 16, 256, 64, 64, 128, (4, 3), s=2, p=1, g=4))
        '16x256x64x64 to 128 k4x3 s2 p1 g4'
    """
    words = ["x".join(str(case[key]) for key in ("n", "ci", "h", "w")), "to", str(case["co"])]
    for key, default in _DEFAULTS.items():
        height, width = case[key] if key != "g" else (case["g"], case["g"])
        if (height, width) != (default, default):
            words.append(f"{key}{height}" if height == width else f"{key}{height}x{width}")
    return " ".join(words)


def parse_shape(name: str, shape: str) -> Case:
    """The case called ``name`` of which :func:`shape_of` wrote ``shape``.

    Raises:
        ValueError: if ``shape`` is not of that form.
    """
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+) to (\d+)((?: [a-z]+\d+(?:x\d+)?)*)", shape)
    if not found:
        raise ValueError(f"shape of {name} is {shape!r}; it must be like '16x256x64x64 to 128 k4x3 s2 p1 g4'")
    arguments: dict[str, Any] = {"k": 1}
    for key, values in re.findall(r"([a-z]+)([\dx]+)", found[6]):
        numbers = [int(value) for value in values.split("x")]
        arguments[key] = numbers if len(numbers) == 2 else numbers[0]
    return case(name, *(int(value) for value in found.groups()[:5]), **arguments)


_DEFAULTS: dict[Literal["k", "s", "p", "op", "d", "g"], int] = {"k": 1, "s": 1, "p": 0, "op": 0, "d": 1, "g": 1}


def kind_of(case: Case) -> str:
    """The kind of a layer, by what decides its speed.

    "depthwise" (one input or output channel a group), "grouped", "few channels" (at most 16 on one side), "1x1 or
    kernel = stride" (no two taps meet in a pixel), "stride 1", "stride 2 and up" (taps overlap).
    """
    channels = case["ci"] // case["g"], case["co"] // case["g"]
    if case["g"] > 1:
        return "depthwise" if 1 in channels else "grouped"
    if min(channels) <= _FEW:
        return "few channels"
    if case["d"] == (1, 1) and all(k <= s for k, s in zip(case["k"], case["s"], strict=True)):
        return "1x1 or kernel = stride"
    return "stride 1" if case["s"] == (1, 1) else "stride 2 and up"


_FEW = 16
KINDS = ("stride 1", "stride 2 and up", "1x1 or kernel = stride", "few channels", "grouped", "depthwise")


def load_cases(path: str | PathLike[str]) -> list[Case]:
    """The cases of a JSON file: a list of objects with the keys of a case, ``s``, ``p``, ``op``, ``d``, ``g`` optional.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no JSON, no list, or an entry has a missing, unknown or ill-typed key.
    """
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)
    if not isinstance(entries, list):
        raise ValueError(f"{path}: it holds a {type(entries).__name__}; it must hold a list of cases")
    return [_parse(f"{path}, case {index}", entry) for index, entry in enumerate(entries)]


def _parse(where: str, entry: Any) -> Case:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: it is {entry!r}; it must be an object with the keys {', '.join(_KEYS)}")
    missing = [key for key in _REQUIRED if key not in entry]
    unknown = [key for key in entry if key not in _KEYS]
    if missing or unknown:
        raise ValueError(f"{where}: missing keys {missing}, unknown keys {unknown}; the keys are {', '.join(_KEYS)}")
    for key in ("n", "ci", "h", "w", "co", "g"):
        if not isinstance(entry.get(key, 1), int) or entry.get(key, 1) < 1:
            raise ValueError(f"{where}: {key} is {entry[key]!r}; it must be a positive int")
    return case(**entry)


_KEYS = tuple(Case.__annotations__)
_REQUIRED = ("name", "n", "ci", "h", "w", "co", "k")


def select(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases called ``names``, in the order of ``cases``; all of them if ``names`` is empty.

    Raises:
        ValueError: if no case has one of the names.
    """
    known = [case["name"] for case in cases]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"case {', '.join(unknown)}: unknown; the names are {', '.join(known)}")
    return [case for case in cases if not names or case["name"] in names]


def output_size(case: Case) -> Pair:
    """The output's height and width in pixels (the size is not checked: it may be zero or negative)."""
    height, width = (
        (size - 1) * case["s"][axis]
        - 2 * case["p"][axis]
        + case["d"][axis] * (case["k"][axis] - 1)
        + case["op"][axis]
        + 1
        for axis, size in enumerate((case["h"], case["w"]))
    )
    return height, width


def flops(case: Case) -> int:
    """Floating-point operations of any of the three directions: two for each input element times weight it meets.

    Products that padding crops away are counted, as is the custom.
    """
    kernel = case["k"][0] * case["k"][1]
    return 2 * case["n"] * case["ci"] * case["h"] * case["w"] * (case["co"] // case["g"]) * kernel


def minimal_bytes(case: Case, itemsize: int) -> int:
    """Bytes of input, weight and output together, ``itemsize`` bytes an element.

    Every direction reads two of the three and writes the third, so none moves less.
    """
    height, width = output_size(case)
    input_elements = case["n"] * case["ci"] * case["h"] * case["w"]
    weight_elements = case["ci"] * (case["co"] // case["g"]) * case["k"][0] * case["k"][1]
    return itemsize * (input_elements + weight_elements + case["n"] * case["co"] * height * width)


def scale_down(case: Case, divisor: int) -> Case:
    """The case with batch, image size, groups and channels a group divided by ``divisor``, none below 1.

    Kernel, stride, padding, output_padding and dilation stay; so do grouping (at least two groups where there were
    several) and an output of at least one pixel.

    Raises:
        ValueError: if ``divisor`` is below 1.
    """
    if divisor < 1:
        raise ValueError(f"divisor is {divisor}; it must be at least 1")

    def divided(value: int) -> int:
        return max(1, value // divisor)

    groups = max(divided(case["g"]), min(case["g"], 2))
    small: Case = {
        **case, "n": divided(case["n"]), "h": divided(case["h"]), "w": divided(case["w"]), "g": groups,
        "ci": groups * divided(case["ci"] // case["g"]), "co": groups * divided(case["co"] // case["g"]),
    }  # fmt: skip
    while output_size(small)[0] < 1:
        small["h"] += 1
    while output_size(small)[1] < 1:
        small["w"] += 1
    return small
