"""A model's transposed layers turned into ours, and back."""

import warnings
from collections.abc import Callable

from torch import nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from deconv_ext.modules import TORCHS

_OURS = {theirs: ours for ours, theirs in TORCHS.items()}
_Classes = dict[type[nn.Module], type[nn.Module]]
_Filter = Callable[[str, nn.Module], bool]
_LAYERS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _is_layer(module: nn.Module) -> bool:
    scripted_from = getattr(module, "original_name", None)
    return isinstance(module, _LAYERS) or scripted_from in [layer.__name__ for layer in _LAYERS]


def _target(module: nn.Module, classes: _Classes) -> type[nn.Module] | None:
    """The class that `module` gets. A parametrized layer has a class of its own, derived from the layer's."""
    if not is_parametrized(module):
        return classes.get(type(module))
    base = classes.get(type_before_parametrizations(module))
    if base is None:
        return None
    own = {name: value for name, value in vars(type(module)).items() if name not in ("__dict__", "__weakref__")}
    return type(type(module).__name__, (base,), own)


def _why_not(module: nn.Module, classes: _Classes) -> str:
    """Why a layer without a target is left alone."""
    kind = type_before_parametrizations(module)
    if kind in classes.values():
        return "already converted"
    if kind in (nn.ConvTranspose3d, nn.LazyConvTranspose3d):
        return "3-D layers have no operator here"
    if not isinstance(module, _LAYERS):
        return "scripted; convert the model before torch.jit.script"
    return f"{type(module).__qualname__} is a subclass, which may compute something else"


def _swap(model: nn.Module, classes: _Classes, filter: _Filter | None = None) -> list[str]:
    """Changes the classes of `model`'s layers in place; tells for each layer what became of it."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, but got {type(model).__name__}")
    told = []
    for name, module in model.named_modules():
        if not _is_layer(module):
            continue
        target, shown = _target(module, classes), name or "the model itself"
        if target is None:
            told.append(f"{shown}: left alone: {_why_not(module, classes)}")
        elif filter is not None and not filter(name, module):
            told.append(f"{shown}: left alone: filter says no")
        elif "forward" in vars(module):
            told.append(f"{shown}: left alone: its forward was replaced")
            warnings.warn(f"deconv_ext leaves {shown} alone: its forward was replaced", stacklevel=3)
        else:
            told.append(f"{shown}: converted: {module}")
            module.__class__ = target
    return told


def convert(model: nn.Module, *, filter: _Filter | None = None, verbose: bool = False) -> nn.Module:
    """Turns the 1-D and 2-D transposed convolutions of `model` into this package's, in place.

    Parameters, buffers, hooks, parametrizations (weight norm, spectral norm) and names stay; nothing is copied. A layer
    compiled by ``module.compile()`` or ``torch.compile`` compiles again at its next call. Lazy layers become ours at
    their first call.

    Subclasses are left alone, as they may compute something else, and so are scripted and 3-D layers. A layer whose
    ``forward`` was replaced on the instance (accelerate does so) is left alone with a UserWarning that names it:
    convert first, then replace.

    Args:
        model: any module; a transposed convolution itself, too.
        filter: called as ``filter(name, layer)`` for each layer that can be converted, with its qualified name in
            `model` (the first, where a layer stands in several places; "" for `model` itself); a layer for which it
            returns False stays. None (the default) converts all.
        verbose: print a line for each transposed layer: converted, or left alone and why; default False.

    Returns:
        `model` itself.

    Raises:
        TypeError: `model` is not a module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 3, 2), torch.nn.ConvTranspose3d(3, 3, 2))
        >>> model = deconv_ext.convert(model, verbose=True)
        0: converted: ConvTranspose2d(4, 3, kernel_size=(2, 2), stride=(1, 1))
        1: left alone: 3-D layers have no operator here
    """
    told = _swap(model, _OURS, filter)
    if verbose:
        print("\n".join(told) or f"{type(model).__name__} has no transposed convolution")
    return model


def revert(model: nn.Module) -> nn.Module:
    """Turns this package's layers in `model` back into torch's, in place: the inverse of :func:`convert`.

    Parameters are shared, and what convert keeps and leaves alone, this keeps and leaves alone.

    Returns:
        `model` itself.

    Raises:
        TypeError: `model` is not a module.
    """
    _swap(model, TORCHS)
    return model
