"""The operators on DTensors: the placements that a call runs in, and those of its results.

Each operator contracts two of (input, weight, output) over an index that the third lacks. A mesh dimension may split
one index, as in an einsum; a tensor without that index is replicated, or a result of partial sums:

    index                   input      weight     output     bias
    N  samples              Shard(0)              Shard(0)
    I  input channels       Shard(1)   Shard(0)
    O  output channels                 Shard(1)   Shard(1)   Shard(0)
    G  groups, if several   Shard(1)   Shard(0)   Shard(1)   Shard(0)

An operand may also keep its partial sums if the others are replicated. Each mesh dimension takes the choice that moves
the fewest elements; sharded rows and columns are gathered. One rank alone adds the bias to partial sums.
"""

import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deconv_ext._ops import backward, forward, grad_input, grad_weight

# The operands and the results of each operator; "output" is the output or its gradient.
_OPERATORS = {
    forward: (("input", "weight", "bias"), ("output",)),
    grad_input: (("output", "weight"), ("input",)),
    grad_weight: (("input", "output"), ("weight",)),
    backward: (("output", "input", "weight"), ("input", "weight")),
}
_INDICES = {"input": "NI", "weight": "IO", "output": "NO", "bias": "O"}  # of the leading dimensions
_RANKS = {"input": (3, 4), "weight": (4,), "output": (3, 4), "bias": (1,)}
_DEFAULTS = (None, None, None, 1, 0, 0, 1, 1)
_BIAS, _GROUPS = 2, 6  # positions of arguments

_Placements = dict[str, Any]  # of the operands or the results, on one mesh dimension


@functools.cache
def _register() -> None:
    from torch.distributed.tensor import DTensor

    for op in _OPERATORS:
        torch.library.register_torch_dispatch(op.name(), DTensor, _run)


def register_if_loaded() -> None:
    """Serve DTensors once their module is loaded; importing it here would take longer than the whole package."""
    if "torch.distributed.tensor" in sys.modules:
        _register()


def _indices(role: str, batched: bool) -> str:
    return _INDICES[role] if batched else _INDICES[role].replace("N", "")


def _sizes(tensors: dict[str, Tensor], groups: int) -> dict[str, int]:
    """The extent of each index; empty if the tensors do not fit together, which the operator explains."""
    if groups < 1 or any(tensor.dim() not in _RANKS[role] for role, tensor in tensors.items()):
        return {}
    sizes: dict[str, int] = {}
    for role, tensor in tensors.items():
        for dim, index in enumerate(_indices(role, tensor.dim() != 3)):
            extent = tensor.shape[dim] * (groups if (role, index) == ("weight", "O") else 1)
            if sizes.setdefault(index, extent) != extent:
                return {}
    return {} if sizes["I"] % groups or sizes["O"] % groups else sizes


def _placement(role: str, index: str, batched: bool, missing: Any) -> Any:
    """How a tensor is placed where `index` is split; `missing` if it lacks the index."""
    from torch.distributed.tensor import Shard

    indices = _indices(role, batched)
    if index == "G":
        index = "I" if "I" in indices else "O"
    return Shard(indices.index(index)) if index in indices else missing


def _splits(index: str, extent: int, ranks: int) -> bool:
    """Whether each rank gets whole groups, or at least one of the others: no kernel gets an empty shard."""
    return extent % ranks == 0 if index == "G" else -(-extent // ranks) * (ranks - 1) < extent


def _choices(
    tensors: dict[str, Any], results: tuple[str, ...], axis: int, extents: dict[str, int]
) -> Iterator[tuple[str | None, _Placements, _Placements]]:
    """The index that mesh dimension `axis` may split, if any, with the placements of the operands and the results."""
    from torch.distributed.tensor import Partial, Replicate

    yield None, dict.fromkeys(tensors, Replicate()), dict.fromkeys(results, Replicate())
    ranks = next(iter(tensors.values())).device_mesh.size(axis)
    for index, extent in extents.items():
        if _splits(index, extent, ranks):
            operands = {role: _placement(role, index, "N" in extents, Replicate()) for role in tensors}
            yield index, operands, {role: _placement(role, index, "N" in extents, Partial()) for role in results}
    for summed, tensor in tensors.items():
        if summed != "bias" and tensor.placements[axis] == Partial():
            operands = {role: Partial() if role == summed else Replicate() for role in tensors}
            yield None, operands, {role: Replicate() if role == summed else Partial() for role in results}


def _moved(tensor: Any, axis: int, wanted: Any) -> float:
    """The elements that a redistribution to `wanted` moves on mesh dimension `axis`, roughly."""
    placement = tensor.placements[axis]
    if placement == wanted or placement.is_replicate():
        return 0
    if wanted.is_replicate():  # all-reduce or all-gather
        return tensor.numel() * (2 if placement.is_partial() else 1)
    return tensor.numel() * (1 if placement.is_partial() else 1 / tensor.device_mesh.size(axis))


def _choose(
    tensors: dict[str, Any], results: tuple[str, ...], extents: dict[str, int]
) -> tuple[list[_Placements], list[_Placements]]:
    """The cheapest placements of operands and results on each mesh dimension; leaves one rank's share in `extents`."""
    by_operand, by_result = [], []
    mesh = next(iter(tensors.values())).device_mesh
    for axis in range(mesh.ndim):
        index, operands, placed = min(
            _choices(tensors, results, axis, extents),
            key=lambda choice: sum(_moved(tensor, axis, choice[1][role]) for role, tensor in tensors.items()),
        )
        by_operand.append(operands)
        by_result.append(placed)
        if index is not None:  # an uneven share is split no further
            extent, ranks = extents[index], mesh.size(axis)
            extents[index] = extent // ranks if extent % ranks == 0 else 1
    return by_operand, by_result


def _checked(op: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """The operands as DTensors of one mesh, or an error that names the one that is not."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = next(tensor.device_mesh for tensor in tensors.values() if isinstance(tensor, DTensor))
    checked = {}
    for role, tensor in tensors.items():
        name = f"{op.name()}: {'grad_output' if role == 'output' else role}"
        if not isinstance(tensor, DTensor):
            if not DTensor._op_dispatcher._allow_implicit_replication:
                raise RuntimeError(
                    f"{name} is a plain tensor next to DTensors; it must be a DTensor on {mesh}: "
                    "call torch.distributed.tensor.distribute_tensor"
                )
            tensor = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
        if tensor.device_mesh != mesh:
            raise RuntimeError(f"{name} is on {tensor.device_mesh}; it must be on {mesh} as the other operands")
        if any(type(placement) not in (Replicate, Shard, Partial) for placement in tensor.placements):
            raise RuntimeError(
                f"{name} is placed as {tensor.placements}; "
                "each placement must be Replicate(), Shard(dim) or Partial(): redistribute it first"
            )
        checked[role] = tensor
    return checked


def _shard(tensor: Any, placements: list[Any]) -> Tensor:
    """This rank's part of `tensor` under `placements`."""
    if list(tensor.placements) != placements:
        tensor = tensor.detach().redistribute(placements=placements)
    return tensor.to_local()


def _place(local: Tensor, role: str, mesh: Any, placements: list[Any], sizes: dict[str, int], groups: int) -> Any:
    """A result's shards as one DTensor, dense in the order of the shards' strides."""
    from torch.distributed.tensor import DTensor

    shape = list(local.shape)
    for dim, index in enumerate(_indices(role, "N" in sizes)):
        shape[dim] = sizes[index] // (groups if (role, index) == ("weight", "O") else 1)
    strides, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (local.stride(dim), -dim)):
        strides[dim] = step
        step *= shape[dim]
    if local.is_meta:  # a rank outside the mesh
        local = torch.empty(0, dtype=local.dtype)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides))


@torch.no_grad()
def _run(_class: Any, op: Any, _types: Any, args: tuple[Any, ...], _kwargs: Any) -> Any:
    """A call with DTensors: redistribute the operands, run the operator on each rank's shards, place the results."""
    roles, results = _OPERATORS[op]
    args = (*args, *_DEFAULTS[len(args) :])
    tensors = _checked(op, {role: arg for role, arg in zip(roles, args, strict=False) if arg is not None})
    groups = args[_GROUPS]
    sizes = _sizes(tensors, groups)
    extents = {index: extent for index, extent in sizes.items() if groups == 1 or index == "N"}
    if sizes and groups > 1:
        extents["G"] = groups
    by_operand, by_result = _choose(tensors, results, extents)

    mesh = tensors[roles[0]].device_mesh
    here = mesh.get_coordinate()
    if here is None:  # outside the mesh, only shapes matter
        shards = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors.values()]
        local_args = [*shards, *args[len(shards) :]]
    else:
        shards = [_shard(tensor, [by[role] for by in by_operand]) for role, tensor in tensors.items()]
        local_args = [*shards, *args[len(shards) :]]
        local_args[_GROUPS] = extents.get("G", groups)
        if op is forward and any(at and by["output"].is_partial() for at, by in zip(here, by_result, strict=True)):
            local_args[_BIAS] = None
    outputs = op(*local_args)
    placed = [
        _place(output, role, mesh, [by[role] for by in by_result], sizes, groups)
        for role, output in zip(results, outputs if len(results) > 1 else [outputs], strict=True)
    ]
    return placed[0] if len(placed) == 1 else tuple(placed)
