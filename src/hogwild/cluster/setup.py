r"""What every run on parts needs before it starts: the model checked, the graph cut, the engine,
and the memory.

**Memory.** A solver holds a few vectors for each node and a few numbers for each edge, which are
counted from the model's widths. Predicted bytes are linear in the A owned nodes, the B nodes of the
halo and the E edges of a part: constant + node · (A + B) + edge · E.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn
from torch_geometric.data import Data

from hogwild.cluster.cutting import METHODS, OVERLAP, Partition, partition
from hogwild.cluster.host import Host, Plan, convolution
from hogwild.cluster.sources import open_graph
from hogwild.cluster.store import Store, digest_of
from hogwild.cluster.worker import Disorder, Executor, InProcess
from hogwild.engines.cpu_large import MOST_CHANNELS, MOST_MESSAGES
from hogwild.errors import (
    AsynchronyError,
    CapacityError,
    ConfigError,
    DataError,
    FeatureError,
    is_number,
    require_positive,
)
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs, whole
from hogwild.kernels.native import library
from hogwild.models.energy import EnergyConv
from hogwild.models.gnn import ConvGNN
from hogwild.models.gsd import GSDConv
from hogwild.models.soft import SoftEnergyConv
from hogwild.models.validation import require_finite
from hogwild.models.wrapped import check_model
from hogwild.nn.networks import PICNN

PROCESS = 430 << 20
"""A Python process with torch and this library, before it reads a graph."""
NUMBER = 8
"""Bytes of a float64 or of an index."""
VECTORS = 20
"""Vectors [k, N] that a solver with conjugate gradients holds at a time."""
PASSES = 320
"""Numbers for each edge while torch evaluates and linearises the networks, which compiled solves
compute in chunks (measured at the default widths)."""
PAIRS = 14
"""Numbers for each edge while graph signal denoising looks for the pairs of nodes that edges
join."""
PLAN, PLAN_EDGES = 18, 1 << 21
"""Numbers for each block of a Hessian while a factorisation is planned, on graphs of at most
so many edges. Larger graphs are seldom planned."""
SHARE = 0.9
"""Share of the available memory that may be used."""
Source: TypeAlias = Data | Inputs | Store | str | Path


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the workers run, and where they keep their files. The attributes are those of
    :func:`hogwild.cluster.infer`.
    """

    folder: str | Path | None = None
    partition: str = "auto"
    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    restarts: int = 5
    disorder: Disorder | None = None
    overlap: int = OVERLAP
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus", "restarts"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise ConfigError(f"{name}={value!r}; expected a number, 0 or more")
        if self.partition not in METHODS:
            raise ConfigError(f"partition={self.partition!r}; expected one of {METHODS}")


@dataclass
class Setup:
    """A graph in parts, ready for an executor."""

    model: ConvGNN
    place: Place
    inputs: Inputs | None  # the whole graph, where it is in memory
    store: Store | None = None  # None: one worker, without files
    folder: Path | None = None  # None likewise
    partition: Partition | None = None

    @property
    def num_nodes(self) -> int:
        """N."""
        whole_graph = self.store or self.inputs
        assert whole_graph is not None
        return whole_graph.num_nodes

    def executor(self, tol: float, *, checkpoints: bool = False) -> Executor:
        """What runs the workers. One worker or a given disorder: in this process. Several workers:
        Ray."""
        place, model, graph = self.place, self.model, self.store or self.inputs
        assert graph is not None
        if isinstance(graph, Store):
            sizes = [(c.nodes + c.halo, c.edges) for c in graph.counts]
        else:
            sizes = [(graph.num_nodes, graph.edge_index.size(1))]
        if place.address is None:  # all workers are on this machine
            require_memory([predict(model, *size) for size in sizes])
        plan = Plan(
            graph=graph.folder.absolute() if isinstance(graph, Store) else graph,
            model=model if self.folder is None else self.folder / "model.pt",
            checkpoints=self.folder / "checkpoints" if checkpoints and self.folder else None,
            tol=tol,
            device="cuda" if place.gpus > 0 else "cpu",
        )
        if place.disorder is not None or (len(sizes) == 1 and place.address is None):
            return InProcess([Host(plan, p) for p in range(len(sizes))], place.disorder)
        from hogwild.cluster.actors import Actors

        return Actors(
            plan, len(sizes), address=place.address, cpus=place.cpus, gpus=place.gpus,
            restarts=place.restarts,
        )  # fmt: skip


@contextmanager
def prepared(
    model: nn.Module, graph: Source, workers: int | None, place: Place, *, hops: int = 1
) -> Iterator[Setup]:
    """Check a model and a graph, and cut the graph into parts in a folder; one worker in this
    process needs none. Parts reach as far as the model does, and at least so many ``hops``."""
    found, folder = check_model(model), place.folder
    conv = convolution(found)  # raises where there is not exactly one
    hops = max(conv.hops, hops)
    given = opened(graph) if isinstance(graph, str | Path) else graph
    if isinstance(given, Store):
        store, inputs = given, None
        _check_widths(found, store.channels, store.edge_dim)
        if workers not in (None, store.num_parts):
            raise ConfigError(
                f"workers={workers}, and the graph in {store.folder} is cut into "
                f"{store.num_parts} parts; expected as many workers as parts"
            )
        if store.hops < hops:
            raise ConfigError(
                f"the parts in {store.folder} reach {store.hops} hop, and this needs {hops}; "
                f"expected Store.write(hops={hops})"
            )
    else:
        store, inputs = None, whole(given)
        attr = inputs.edge_attr
        _check_widths(found, inputs.x.size(1), None if attr is None else attr.size(1))
        for name in ("x", "edge_attr", "edge_weight"):
            require_finite(name, getattr(inputs, name))
        count = 1 if workers is None else require_positive("workers", workers)
        if count == 1 and folder is None and place.address is None:
            yield Setup(found, place, inputs)
            return
    if isinstance(conv, SoftEnergyConv) and conv.heads is not None:
        raise AsynchronyError(
            f"attention (heads={conv.heads}) needs the whole graph, and a part lacks edges of "
            f"its neighbours; expected heads=None, or one worker and no folder"
        )
    with contextlib.ExitStack() as stack:
        where = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="hogwild-")))
        if where.exists() and not where.is_dir():
            raise ConfigError(f"folder={str(folder)!r} is a file; expected a folder")
        where, cut = where.absolute(), None
        try:
            where.mkdir(parents=True, exist_ok=True)
            if inputs is not None:
                store, cut = _cut(inputs, count, where / "graph", place, hops)
            file = io.BytesIO()
            torch.save(found, file)  # Ray's object store would lose it with the node that holds it
            write_atomically(where / "model.pt", file.getvalue())
        except OSError as error:
            raise DataError(
                f"the parts cannot be written to {where} ({error}); expected a folder of your own "
                f"with room for the graph: give another folder"
            ) from error
        yield Setup(found, place, inputs, store, where, cut)


def opened(path: str | Path) -> Data | Store:
    """The graph in a file, or the parts in a folder."""
    return Store.open(path) if (Path(path) / "index.json").is_file() else open_graph(path)


def _check_widths(model: ConvGNN, channels: int, width: int | None) -> None:
    model.features.begin(channels)
    if channels != model.in_channels:
        raise FeatureError(
            f"the graph has {channels} features a node and the model reads {model.in_channels}; "
            f"expected equal numbers"
        )
    if width != model.edge_dim and not (model.edge_dim is None and model.features.ignores_edges):
        raise FeatureError(
            f"the graph has {width or 'no'} features an edge and the model reads "
            f"{model.edge_dim or 'none'}; expected equal numbers"
        )


def _cut(
    graph: Inputs, count: int, folder: Path, place: Place, hops: int
) -> tuple[Store, Partition | None]:
    """The graph in parts: from the folder, if it holds this graph in as many parts, else new. A
    damaged one is written again."""
    with contextlib.suppress(DataError):
        found = Store.open(folder)
        same = found.graph == digest_of(graph) and found.num_parts == count
        if same and found.hops >= hops:
            found.check()
            return found, None
    cut = partition(graph, count, method=place.partition, seed=place.seed)
    found = Store.write(folder, graph, cut.part, overlap=place.overlap, hops=hops, overwrite=True)
    return found, cut


# -- memory --------------------------------------------------------------------------------------


def predict(model: ConvGNN, nodes: int, edges: int) -> int:
    """Bytes of a process that solves the problem of a model with one implicit layer on a graph or
    on a part of one, with N or A + B ``nodes`` and so many ``edges``, which may have weights."""
    conv = convolution(model)
    r, k = conv.replicas or 1, conv.hidden_channels
    # The features and their copy in the precision of the solve, before and after the encoder;
    # degrees, batch, row starts.
    node = 2 * conv.in_channels + 8 + VECTORS * r * k
    if model.features.encoder is not None:
        node += 2 * model.features.in_channels
    # Senders and receivers twice: as given, and in the graph; the order of receivers; weights.
    edge = 5 + 2 * (conv.edge_dim or 0) + 2
    constant = 0.0
    if isinstance(conv, EnergyConv):
        c = conv.message_channels * (conv.heads or 1 if conv.concat else 1)
        node += r * (c * c + 5 * k * k)
        edge += r * (c + k) * k + (conv.heads or 0)
        net = conv.message_nets[0]
        assert isinstance(net, PICNN)
        # 1 at the default widths
        scale = (conv.heads or 1) * (net.convex_channels + sum(net.channels)) / 14
        compiled = library() is not None and k <= MOST_CHANNELS and c <= MOST_MESSAGES
        edge += int((30 if compiled else PASSES) * scale * r)
    elif isinstance(conv, GSDConv):
        edge += PAIRS
        node += 16
    else:
        edge += 4 * r * k
    if edges <= PLAN_EDGES:
        constant += PLAN * edges * (1.0 + 0.5 * edges / max(nodes, 1))  # edges and wedges
    return PROCESS + NUMBER * int(constant + node * nodes + edge * edges)


def available() -> int | None:
    """Bytes that this process may still use: of the machine, and of its control group if that has
    a limit. ``None`` if the system does not say."""
    found = []
    with contextlib.suppress(OSError, IndexError):
        line = Path("/proc/meminfo").read_text().split("MemAvailable:")[1]
        found.append(int(line.split()[0]) << 10)
    with contextlib.suppress(OSError, ValueError):  # "max": there is no limit
        group = Path("/sys/fs/cgroup")
        most, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(most - used)
    return min(found, default=None)


def require_memory(needed: Sequence[int], limit: int | None = None) -> None:
    """Raise unless workers with these needs, in bytes, fit into memory side by side.

    Args:
        needed: Bytes of each worker on this machine.
        limit: Bytes there are; ``None``: :data:`SHARE` of what is :func:`available`.

    Raises:
        CapacityError: They do not fit.
    """
    if limit is None and (free := available()) is not None:
        limit = int(SHARE * free)
    if limit is not None and sum(needed) > limit:
        raise CapacityError(
            f"{len(needed)} worker{'s' if len(needed) > 1 else ''} would need {_size(sum(needed))} "
            f"(the largest {_size(max(needed))}), and {_size(limit)} are available; "
            f"expected a graph that fits: use more machines, more parts with fewer of them at a "
            f"time, or a model with fewer channels"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.0f} MiB"
