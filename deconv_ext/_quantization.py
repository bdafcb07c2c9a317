"""Registers fusers: torch.ao.quantization.fuse_modules folds a batch norm into our layers, as into torch's.

It looks up the layers' exact types. torch imports its table on its own; where it does not, nothing is imported here.
"""

import sys

from deconv_ext.modules import TORCHS

_OURS = {theirs: ours for ours, theirs in TORCHS.items()}


def _register() -> None:
    mappings = sys.modules.get("torch.ao.quantization.fuser_method_mappings")
    fusers = getattr(mappings, "_DEFAULT_OP_LIST_TO_FUSER_METHOD", {})
    for types, fuser in list(fusers.items()):
        fusers.setdefault(tuple(_OURS.get(kind, kind) for kind in types), fuser)


_register()
