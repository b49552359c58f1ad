"""The compiled readout (``source/dense.h``): a small perceptron on every node and, for predictions
of graphs, another one on the mean of every graph's nodes. Autograd sees one function.

Matrix products of a few thousand numbers take BLAS longer to prepare than to compute, above all on
several threads: a training step on small graphs has a dozen of them. The compiled library computes
them on one thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.utils import softmax

from hogwild.errors import GraphError
from hogwild.kernels.native import Library, address, library
from hogwild.nn.mlp import MLP
from hogwild_node.networks import mlp

Network = Callable[[Tensor], Tensor]
POOLS: dict[str, Callable[[Tensor, Tensor | None, int | None], Tensor]] = {
    "mean": global_mean_pool, "add": global_add_pool, "sum": global_add_pool,
    "max": global_max_pool,
}  # fmt: skip
"""How the outputs of a graph's nodes become one."""


def read(
    node: MLP,
    graph: MLP | None,
    h: Tensor,
    batch: Tensor | None = None,
    size: int | None = None,
    pool: str = "mean",
    score: MLP | None = None,
) -> Tensor:
    """Predictions of nodes, [(R,) N, out], or with ``graph`` of graphs, [(R,) G, out].

    Args:
        node: The perceptron on nodes.
        graph: The perceptron on the mean of the nodes' outputs in every graph, or ``None``.
        h: The embeddings, [(R,) N, k].
        batch: The graph of every node, [N]; ``None``: there is one graph.
        size: Number of graphs; ``None``: read from ``batch``.
        pool: One of :data:`POOLS`.
        score: The scores [(R,) N, 1] of nodes, whose softmax over a graph weighs the nodes' outputs
            before they are pooled; ``None``: they are not weighed.
    """
    networks = (node,) if graph is None else (node, graph)
    native = library()
    plain = h.is_cpu and all(unheard(net, MLP) and not net.drops for net in networks)
    if native is not None and plain and not watched() and pool == "mean" and score is None:
        given = [p for net in networks for p in _parameters(net)]
        fits = _fits(networks, h, given)
        named = h.size(-2) > 0 or graph is None if batch is None else _names_graphs(batch, h)
        if fits and named:
            return _read(native, networks, h, given, batch, size)
    return _on_torch(node, graph, h, batch, size, pool, score)


def _on_torch(
    node: Network,
    graph: Network | None,
    h: Tensor,
    batch: Tensor | None,
    size: int | None,
    pool: str = "mean",
    score: Network | None = None,
) -> Tensor:
    y = node(h)
    if graph is None:
        return y
    if score is not None:
        s = score(h)
        y = y * (s.softmax(-2) if batch is None else softmax(s, batch, num_nodes=size, dim=-2))
    if batch is None:  # PyG would drop the dimension of the graphs where there are replicas
        whole: dict[str, Callable[..., Tensor]] = {"mean": y.mean, "max": y.amax}
        return graph(whole.get(pool, y.sum)(-2, keepdim=True))
    return graph(POOLS[pool](y, batch, size))


def _parameters(net: MLP) -> list[Tensor]:
    """All weights, then all biases; fewer where torch has replaced some."""
    return [p for group in net._modules.values() if group is not None for p in items(group) or ()]


@lru_cache(maxsize=64)
def _shapes(lead: tuple[int, ...], *networks: tuple[int, ...]) -> tuple[list[torch.Size], int]:
    """Of perceptrons of these widths: the shapes of all weights and then of all biases, of one
    after the other, and how many numbers they have."""
    shapes: list[torch.Size] = []
    for sizes in networks:
        shapes += [torch.Size((*lead, b, a)) for a, b in pairwise(sizes)]
        shapes += [torch.Size((*lead, b)) for b in sizes[1:]]
    return shapes, sum(shape.numel() for shape in shapes)


def _fits(networks: Sequence[MLP], h: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether the compiled readout takes these tensors, and is faster than torch."""
    node = networks[0]
    lead = () if node.replicas is None else (node.replicas,)
    shapes, numbers = _shapes(lead, *(net.channels for net in networks))
    return (
        h.shape[:-2] == lead
        and h.dim() > 1
        and type(h) in (Tensor, nn.Parameter)
        and h.size(-1) == node.channels[0]
        and h.dtype in (torch.float32, torch.float64)
        and h.size(-2) * numbers <= SMALL
        and readable(given, h.dtype)
        and [p.shape for p in given] == shapes
    )


def _names_graphs(batch: Tensor, h: Tensor) -> bool:
    return batch.dtype == torch.long and batch.shape == (h.size(-2),) and batch.is_contiguous()


@dataclass(frozen=True)
class Reading:
    """A readout that is compiled.

    Attributes:
        native: The compiled library.
        networks: The perceptrons, of nodes and, if graphs are predicted, of graphs.
        shape: What ``source/library.cpp`` is told of the sizes.
        batch: The graph of every node, [N], or ``None``.
        graphs: Number of graphs; ``None``: nodes are predicted.
    """

    native: Library
    networks: tuple[MLP, ...]
    shape: bytes
    batch: Tensor | None
    graphs: int | None

    def call(self, name: str, h: Tensor, given: Sequence[Tensor], *rest: Tensor | None) -> None:
        """Call a function of the library."""
        failed, why = self.native.call(
            name, self.shape, self.networks[0].negative_slope, addresses(given),
            h.dtype == torch.float32, address(h), address(self.batch), *map(address, rest),
        )  # fmt: skip
        if failed == 2:
            raise GraphError(f"{why}; expected numbers from 0 to {(self.graphs or 0) - 1} in batch")
        require((failed, why))

    def on_torch(self, h: Tensor, *given: Tensor) -> Tensor:
        """The same predictions by operations that autograd differentiates again."""
        functions, at = [], 0
        for net in self.networks:
            n = len(net.channels) - 1
            weight, bias = given[at : at + n], given[at + n : at + 2 * n]
            functions.append(partial(mlp, weights=weight, biases=bias, slope=net.negative_slope))
            at += 2 * n
        graph = functions[1] if len(functions) > 1 else None
        return _on_torch(functions[0], graph, h, self.batch, self.graphs)


def _read(
    native: Library,
    networks: tuple[MLP, ...],
    h: Tensor,
    given: Sequence[Tensor],
    batch: Tensor | None,
    size: int | None,
) -> Tensor:
    if not (h.is_contiguous() or h.mT.is_contiguous()):
        h = h.contiguous()  # gradients are laid out like h
    graphs = None
    if len(networks) > 1:
        graphs = 1 if batch is None else size
        if graphs is None:
            graphs = int(batch.max()) + 1 if h.size(-2) else 0  # type: ignore[union-attr]
    numbers = [1 if h.dim() == 2 else h.size(0), h.size(-2), -1 if graphs is None else graphs]
    numbers += [0 if h.dim() == 2 else h.stride(0), h.stride(-2), h.stride(-1)]
    layers = [len(net.channels) - 1 for net in networks]
    widths = [w for net in networks for w in net.channels]
    numbers += [*layers, *widths] if graphs is not None else [*layers, 0, *widths, 0]
    found: Tensor = applied(
        _Read, Reading(native, networks, integers(numbers), batch, graphs), h, *given
    )
    return found


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reading: Reading, h: Tensor, *given: Tensor) -> Tensor:
        lead, graphs, last = h.shape[:-2], reading.graphs, reading.networks[-1].channels[-1]
        out = h.new_empty(*lead, h.size(-2) if graphs is None else graphs, last)
        width = reading.networks[0].channels[-1]
        ctx.mean = None if graphs is None else h.new_empty(*lead, graphs, width)
        reading.call("read", h, given, ctx.mean, out)
        ctx.reading, ctx.layout = reading, (h.shape, h.stride())
        ctx.save_for_backward(h, *given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        reading: Reading = ctx.reading
        h, *given = ctx.saved_tensors
        wanted: Sequence[bool] = ctx.needs_input_grad[1:]
        # Nobody counts what is assigned to `.data` since the forward pass.
        same = (h.shape, h.stride()) == ctx.layout and _fits(reading.networks, h, given)
        if recorded(grad) or not same:
            return None, *by_torch(reading.on_torch, (h, *given), wanted, grad)
        into = torch.empty_like(h) if wanted[0] else None
        sums = h.new_empty(sum(p.numel() for p in given))
        reading.call("read_back", h, given, ctx.mean, grad.contiguous(), into, sums)
        return None, into, *_unflatten_dense_tensors(sums, given)


SMALL = 1 << 20
"""Multiplications up to which one thread is faster than BLAS on several: about half a
millisecond."""


@cache
def _names(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def items(group: nn.Module) -> list[Tensor] | None:
    """The parameters in a list of parameters, which takes longer to give them. ``None``: torch has
    replaced some by functions of others (pruning, parametrisations)."""
    found = group._parameters
    plain = list(found) == _names(len(group))  # type: ignore[arg-type]
    given: list[Tensor] = [p for p in found.values() if p is not None]
    return given if plain and len(given) == len(found) else None


def readable(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether compiled code on a CPU can read these tensors: contiguous ones of this dtype in the
    memory of this process."""
    return all(
        (type(x) is nn.Parameter or type(x) is Tensor)
        and x.is_cpu
        and x.dtype == dtype
        and x.is_contiguous()
        and not x.is_neg()
        for x in tensors
    )


def unheard(net: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether this is the library's own network of this kind, and nobody listens to it."""
    return type(net) is kind and not (
        net._forward_hooks or net._forward_pre_hooks or net._backward_hooks
        or net._backward_pre_hooks or "forward" in net.__dict__ or _has_any_global_hook()
    )  # fmt: skip


def traced() -> bool:
    """Whether torch must see every operation: it compiles, traces, transforms functions,
    differentiates forwards, or somebody else computes (tensors without numbers, for instance)."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


def watched() -> bool:
    """Whether torch must see every operation, or chooses its dtype."""
    return traced() or torch.is_autocast_enabled("cpu")


def applied(function: Any, *given: Any) -> Any:
    """``function.apply(*given)`` of a :class:`torch.autograd.Function`. Where no function is
    transformed, torch's own ``apply`` only looks at every argument once more, which takes as long
    as all else that it does."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*given)
    return super(torch.autograd.Function, function).apply(*given)


def by_torch(
    function: Callable[..., Tensor], given: Sequence[Any], wanted: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of a function of these tensors, of those that are wanted. Autograd records
    these gradients where it records anything now."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # One tensor may be a function of another. Views of both are independent of each other.
        own = [x.view_as(x) if n else x for x, n in zip(given, wanted, strict=True)]
        over = [x for x, needed in zip(own, wanted, strict=True) if needed]
        value = function(*own)
        if not (over and value.requires_grad):
            return (None,) * len(own)
        found = iter(torch.autograd.grad(value, over, grad, create_graph=again, allow_unused=True))
    return tuple(next(found) if needed else None for needed in wanted)


def recorded(grad: Tensor) -> bool:
    """Whether compiled code cannot compute gradients from ``grad``: somebody will differentiate
    them again, or torch computes many of them at once."""
    return torch.is_grad_enabled() or batched(grad)


def batched(grad: Tensor) -> bool:
    """Whether a gradient stands for many (``is_grads_batched``), or for one that is
    transformed."""
    return (
        torch._C._functorch.is_legacy_batchedtensor(grad)
        or torch._C._are_functorch_transforms_active()
    )


def addresses(tensors: Sequence[Tensor]) -> bytes:
    """The addresses of contiguous tensors, as an array for the compiled library."""
    return struct.pack(f"{len(tensors)}P", *[address(x) for x in tensors])


def integers(numbers: Sequence[int]) -> bytes:
    """An array of 64-bit integers for the compiled library."""
    return struct.pack(f"{len(numbers)}q", *numbers)


def require(outcome: tuple[int, str]) -> None:
    """Raise unless a call succeeded."""
    failed, why = outcome
    if failed:
        raise MemoryError(f"the compiled library failed: {why}")


def gather(
    native: Library,
    arrays: Sequence[Tensor],
    sizes: bytes,
    index: Tensor,
    into: Sequence[Tensor],
    lengths: bytes,
) -> None:
    """Write entries of contiguous arrays side by side, by their numbers ``index`` [n], into other
    contiguous arrays side by side, [n] in all. The entry behind the last array is zero. ``sizes``
    and ``lengths`` are the numbers of entries of the arrays."""
    single, to_single = (some[0].dtype == torch.float32 for some in (arrays, into))
    require(
        native.call(
            "gather", len(arrays), addresses(arrays), sizes, single, address(index), len(into),
            addresses(into), lengths, to_single,
        )
    )  # fmt: skip


def strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of features [1 or R, p, n]; replicas may share them."""
    replica, column, row = x.stride()
    return replica if x.size(0) > 1 else 0, column, row


def project(native: Library, weight: Tensor, x: Tensor, shift: Tensor | None) -> Tensor:
    """[R, T, p] @ [1 or R, p, n] + [R, T] -> [R, T, n]."""
    r, t, p = weight.shape
    out, x = weight.new_empty(r, t, x.size(-1)), x.resolve_neg()
    require(
        native.call(
            "project", r, t, p, x.size(-1), address(weight), address(shift), address(x),
            *strides(x), address(out),
        )
    )  # fmt: skip
    return out


def project_back(native: Library, found: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weight [R, T, p] and shift [R, T] of :func:`project`, from those of its
    result."""
    r, t, n = found.shape
    weight, shift, x = found.new_empty(r, t, x.size(-2)), found.new_empty(r, t), x.resolve_neg()
    require(
        native.call(
            "project_back", r, t, x.size(-2), n, address(found), address(x), *strides(x),
            address(weight), address(shift),
        )
    )  # fmt: skip
    return weight, shift
