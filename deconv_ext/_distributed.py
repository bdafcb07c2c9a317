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
import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

# The operands and the results of each operator; "output" is the output or its gradient.
_OPERATORS = {
    "deconv::conv_transpose2d": (("input", "weight", "bias"), ("output",)),
    "deconv::conv_transpose2d_grad_input": (("output", "weight"), ("input",)),
    "deconv::conv_transpose2d_grad_weight": (("input", "output"), ("weight",)),
    "deconv::conv_transpose2d_backward": (("output", "input", "weight"), ("input", "weight")),
}
_INDICES = {"input": "NI", "weight": "IO", "output": "NO", "bias": "O"}  # of the leading dimensions
_RANKS = {"input": (3, 4), "weight": (4,), "output": (3, 4), "bias": (1,)}
_DEFAULTS = (None, None, None, 1, 0, 0, 1, 1)
_BIAS, _GROUPS = 2, 6  # positions of arguments

_ByRole = dict[str, Any]  # placements of the operands or of the results


@functools.cache
def _register() -> None:
    from torch.distributed.tensor import DTensor

    for name in _OPERATORS:
        torch.library.register_torch_dispatch(name, DTensor, _run)


def register_if_loaded() -> None:
    """Serve DTensors once their module is loaded; importing it here would take longer than the whole package."""
    if "torch.distributed.tensor" in sys.modules:
        _register()


def _indices(role: str, batched: bool) -> str:
    return _INDICES[role] if batched else _INDICES[role].replace("N", "")


def _sizes(shapes: dict[str, torch.Size], groups: int) -> dict[str, int]:
    """The extent of each index; empty if the tensors do not fit together, which the operator explains."""
    if groups < 1 or any(len(shape) not in _RANKS[role] for role, shape in shapes.items()):
        return {}
    sizes: dict[str, int] = {}
    for role, shape in shapes.items():
        for index, extent in zip(_indices(role, len(shape) != 3), shape, strict=False):
            whole = extent * groups if (role, index) == ("weight", "O") else extent
            if sizes.setdefault(index, whole) != whole:
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
    given: _ByRole, results: tuple[str, ...], ranks: int, extents: dict[str, int]
) -> Iterator[tuple[str | None, _ByRole, _ByRole]]:
    """The index that a mesh dimension may split, if any, with the placements of the operands and of the results."""
    from torch.distributed.tensor import Partial, Replicate

    yield None, dict.fromkeys(given, Replicate()), dict.fromkeys(results, Replicate())
    for index, extent in extents.items():
        if _splits(index, extent, ranks):
            operands = {role: _placement(role, index, "N" in extents, Replicate()) for role in given}
            yield index, operands, {role: _placement(role, index, "N" in extents, Partial()) for role in results}
    for summed, placement in given.items():
        if summed != "bias" and placement == Partial():
            operands = {role: Partial() if role == summed else Replicate() for role in given}
            yield None, operands, {role: Replicate() if role == summed else Partial() for role in results}


def _moved(given: Any, wanted: Any, ranks: int) -> float:
    """The share of a tensor that a redistribution moves, roughly."""
    if given == wanted or given.is_replicate():
        return 0
    if wanted.is_replicate():  # all-reduce or all-gather
        return 2 if given.is_partial() else 1
    return 1 if given.is_partial() else 1 / ranks


def _leading(role: str, sizes: dict[str, int], groups: int) -> list[int]:
    """The first dimensions of a whole tensor."""
    if role == "weight" and sizes:
        return [sizes["I"], sizes["O"] // groups]
    return [sizes[index] for index in _INDICES[role] if index in sizes]


class _Plan(NamedTuple):
    """What a call with DTensors does on this rank."""

    operands: list[list[Any]]  # placements to run with
    results: list[list[Any]]
    leading: list[list[int]]  # the first dimensions of each whole result
    groups: int  # of this rank
    adds_bias: bool


def _make_plan(
    name: str, mesh: Any, shapes: tuple[torch.Size, ...], placements: tuple[tuple[Any, ...], ...], groups: int
) -> _Plan:
    roles, results = _OPERATORS[name]
    whole = dict(zip(roles, shapes, strict=False))
    sizes = _sizes(whole, groups)
    extents = {index: extent for index, extent in sizes.items() if groups == 1 or index == "N"}
    if sizes and groups > 1:
        extents["G"] = groups
    by_axis: list[tuple[_ByRole, _ByRole]] = []
    for axis in range(mesh.ndim):
        ranks = mesh.size(axis)
        given = {role: placed[axis] for role, placed in zip(roles, placements, strict=False)}

        def cost(choice: Any, given: _ByRole = given, ranks: int = ranks) -> float:
            return sum(math.prod(whole[role]) * _moved(given[role], choice[1][role], ranks) for role in whole)

        index, operands, placed = min(_choices(given, results, ranks, extents), key=cost)
        by_axis.append((operands, placed))
        if index is not None:  # an uneven share is split no further
            extents[index] = extents[index] // ranks if extents[index] % ranks == 0 else 1
    here = mesh.get_coordinate() or [0] * mesh.ndim
    adds_bias = "bias" not in whole or all(
        at == 0 or not by["output"].is_partial() for at, (_, by) in zip(here, by_axis, strict=True)
    )
    return _Plan(
        operands=[[operands[role] for operands, _ in by_axis] for role in whole],
        results=[[placed[role] for _, placed in by_axis] for role in results],
        leading=[_leading(role, sizes, groups) for role in results],
        groups=extents.get("G", groups),
        adds_bias=adds_bias,
    )


_cached_plan = functools.lru_cache(maxsize=4096)(_make_plan)


def _checked(name: str, operands: list[tuple[str, Any]]) -> list[Any]:
    """The operands as DTensors of one mesh, or an error that names the one that is not."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = next(tensor.device_mesh for _, tensor in operands if isinstance(tensor, DTensor))
    checked = []
    for role, tensor in operands:
        which = f"{name}: {'grad_output' if role == 'output' else role}"
        if not isinstance(tensor, DTensor):
            if not DTensor._op_dispatcher._allow_implicit_replication:
                raise RuntimeError(
                    f"{which} is a plain tensor next to DTensors; it must be a DTensor on {mesh}: "
                    "call torch.distributed.tensor.distribute_tensor"
                )
            tensor = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
        if tensor.device_mesh != mesh:
            raise RuntimeError(f"{which} is on {tensor.device_mesh}; it must be on {mesh} as the other operands")
        if any(type(placement) not in (Replicate, Shard, Partial) for placement in tensor.placements):
            raise RuntimeError(
                f"{which} is placed as {tensor.placements}; "
                "each placement must be Replicate(), Shard(dim) or Partial(): redistribute it first"
            )
        checked.append(tensor)
    return checked


def _shard(tensor: Any, placements: list[Any]) -> Tensor:
    """This rank's part of `tensor` under `placements`."""
    if list(tensor.placements) != placements:
        tensor = tensor.detach().redistribute(placements=placements)
    return tensor.to_local()


def _place(local: Tensor, mesh: Any, placements: list[Any], leading: list[int]) -> Any:
    """A result's shards as one DTensor, dense in the order of the shards' strides."""
    from torch.distributed.tensor import DTensor

    shape = torch.Size([*leading, *local.shape[len(leading) :]])
    strides, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (local.stride(dim), -dim)):
        strides[dim] = step
        step *= shape[dim]
    if local.is_meta:  # a rank outside the mesh
        local = torch.empty(0, dtype=local.dtype)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=tuple(strides))


@torch.no_grad()
def _run(_class: Any, op: Any, _types: Any, args: tuple[Any, ...], _kwargs: Any) -> Any:
    """A call with DTensors: redistribute the operands, run the operator on each rank's shards, place the results."""
    args = (*args, *_DEFAULTS[len(args) :])
    name = op.name()
    tensors = _checked(name, [pair for pair in zip(_OPERATORS[name][0], args, strict=False) if pair[1] is not None])
    mesh = tensors[0].device_mesh
    key = (name, mesh, tuple(t.shape for t in tensors), tuple(t.placements for t in tensors), args[_GROUPS])
    try:
        plan = _cached_plan(*key)
    except TypeError:  # symbolic sizes have no hash
        plan = _make_plan(*key)
    if mesh.get_coordinate() is None:  # outside the mesh only shapes matter
        shards = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors]
        outputs = op(*shards, *args[len(shards) :])
    else:
        shards = [_shard(tensor, placements) for tensor, placements in zip(tensors, plan.operands, strict=True)]
        local_args = [*shards, *args[len(shards) :]]
        local_args[_GROUPS] = plan.groups
        if not plan.adds_bias:
            local_args[_BIAS] = None
        outputs = op(*local_args)
    if len(plan.results) == 1:
        return _place(outputs, mesh, plan.results[0], plan.leading[0])
    return tuple(_place(*of) for of in zip(outputs, (mesh, mesh), plan.results, plan.leading, strict=True))
