"""``python -m deconv_ext profile``: a model's transposed convolutions, layer by layer, against torch's operator."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import torch
from torch import nn

import deconv_ext
from deconv_ext.cli.operands import device_of, dtype_of, torch_in

_MODES = ("fp32", "tf32", "fp16", "bf16")
_LOWER = ("fp16", "bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODULE:CALLABLE", help="what returns the model, called without arguments")
    parser.add_argument(
        "--input", type=_shape, action="append", required=True, metavar="N,C,H,W",
        help="the shape of an input tensor, of random numbers (repeatable, in the model's order)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype",
        choices=_MODES,
        default="bf16",
        help="16 bits by autocast, fp32 is strict; default: %(default)s",
    )
    parser.add_argument("--layout", choices=("nchw", "channels_last"), default="nchw", help="default: %(default)s")
    parser.add_argument("--forward", action="store_true", help="without a backward")
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")


def main(args: argparse.Namespace) -> int:
    """Profiles the model and prints the table; 0, or 2 without transposed layers.

    Raises:
        ValueError: the model or the input is unusable.
    """
    device = device_of(args.device)
    model = load(args.model).to(device)
    inputs = [torch.randn(shape, device=device) for shape in args.input]
    if args.layout == "channels_last":
        form: dict[str, Any] = {"memory_format": torch.channels_last}  # torch's annotation of `to` lacks it
        model = model.to(**form)
        inputs = [_channels_last(one) for one in inputs]
    lower = torch.autocast(device.type, dtype_of(args.dtype), enabled=args.dtype in _LOWER)
    with torch_in(args.dtype), lower:
        try:
            layers = deconv_ext.profile(model, *inputs, backward=not args.forward)
        except RuntimeError as error:
            raise ValueError(f"{args.model} does not run on --input: {str(error).partition(chr(10))[0]}") from error
    return 0 if layers else 2


def load(name: str) -> nn.Module:
    """The model that "module:callable" returns; the module may lie in the current folder.

    Raises:
        ModuleNotFoundError: there is no such module.
        ValueError: the name has another form, or what it names returns no module.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"the model is {name!r}; it must be MODULE:CALLABLE, such as my_models:make_unet")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    make = getattr(importlib.import_module(module_name), attribute, None)
    if not callable(make):
        raise ValueError(f"the model is {name!r}; {module_name} has no callable {attribute}")
    try:
        model = make()
    except TypeError as error:
        raise ValueError(f"the model is {name!r}; it must be callable without arguments: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is {name!r}; it must return a torch.nn.Module, but gave {type(model).__name__}")
    return model


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _shape(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
