r"""What every run on parts needs before it starts: the model checked, the graph cut, the engine,
and the memory.

**Memory.** A solver holds a few vectors for each node and a few numbers for each edge, which are
counted from the model's widths. Predicted bytes are linear in the A owned nodes, the B nodes of the
halo and the E edges: constant + node · (A + B) + edge · E.
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
from hogwild.cluster.engine import Disorder, Engine, InProcess
from hogwild.cluster.host import Plan, convolution
from hogwild.cluster.sources import open_graph
from hogwild.cluster.store import Store
from hogwild.cluster.whole import Whole
from hogwild.errors import (
    CapacityError,
    ConfigError,
    DataError,
    FeatureError,
    is_number,
    require_positive,
)
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs
from hogwild.models.base import GraphModule
from hogwild.models.energy import EnergyConv
from hogwild.models.features import Features
from hogwild.models.gnn import ConvGNN
from hogwild.models.gsd import GSDConv
from hogwild.models.implicit import ImplicitConv
from hogwild.models.wrapped import check_model
from hogwild.nn.picnn import PICNN
from hogwild.problems import streamed

PROCESS = 430 << 20
"""A Python process with torch and this library, before it reads a graph."""
NUMBER = 8
"""Bytes of a float64 or of an index."""
VECTORS = 20
"""Vectors [k, N] that a solver with conjugate gradients holds at a time."""
WORK, HELD = 160, 300
"""Numbers for each edge while networks are evaluated and linearised, at the default widths: of a
block, and of an energy that is held in memory as a whole, at the iterate and at the next one."""
PAIRS = 14
"""Numbers for each edge while graph signal denoising looks for the pairs of nodes that edges
join."""
GATES = 30
"""Gates and biases for each edge at the default widths."""
PLAN, PLAN_EDGES = 18, 1 << 21
"""Numbers for each block of a Hessian while a factorisation is planned, on graphs of at most
so many edges. Larger graphs are seldom planned."""
SHARE = 0.9
"""Share of the available memory that may be used."""
Source: TypeAlias = Data | Inputs | Whole | Store | str | Path


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
    """A graph in parts, ready for an engine."""

    model: ConvGNN
    store: Store | Whole
    folder: Path | None  # None: one worker, without files
    inputs: Inputs | None  # the whole graph, where it is in memory
    partition: Partition | None
    place: Place

    @property
    def keeps(self) -> Path | None:
        """The folder, if it stays."""
        return None if self.place.folder is None else self.folder

    def plan(self, *, tol: float, checkpoints: bool = False, hops: int = 1) -> Plan:
        """The plan of all hosts. ``hops``: at least so many."""
        store: Whole | Path
        model: ConvGNN | Path
        if isinstance(self.store, Whole):
            store, model = self.store, self.model
        else:
            assert self.folder is not None
            store, model = self.store.folder.absolute(), save_model(self.model, self.folder)
        return Plan(
            store=store,
            model=model,
            checkpoints=self.folder / "checkpoints" if checkpoints and self.folder else None,
            tol=tol,
            hops=max(convolution(self.model).hops, hops),
            device="cuda" if self.place.gpus > 0 else "cpu",
        )


def save_model(model: ConvGNN, folder: Path) -> Path:
    """Write a model for all hosts. Ray's object store would lose it with the node that holds it."""
    file = io.BytesIO()
    torch.save(model, file)
    return write_atomically(folder / "model.pt", file.getvalue())


def opened(path: str | Path) -> Whole | Store:
    """The graph in a file, or the parts in a folder."""
    return Store.open(path) if (Path(path) / "index.json").is_file() else open_graph(path)


@contextmanager
def prepared(
    model: nn.Module,
    graph: Source,
    workers: int | None,
    place: Place,
) -> Iterator[Setup]:
    """Check a model and a graph, and cut the graph into parts in a folder; one worker in this
    process needs none."""
    found, folder = check_model(model), place.folder
    convolution(found)  # raises where there is not exactly one
    inputs = Inputs.of(graph) if isinstance(graph, Data | Inputs) else None
    if isinstance(graph, str | Path):
        graph = opened(graph)
    store: Store | Whole = graph if isinstance(graph, Store) else Whole.of(graph)
    count = store.num_parts if workers is None else require_positive("workers", workers)
    if isinstance(store, Whole):
        edges = None if store.edge_attr is None else int(store.edge_attr.shape[1])
        _check_widths(found, int(store.x.shape[1]), edges)
        store.require_finite()
    else:
        _check_widths(found, store.channels, store.edge_dim)
        if store.num_parts != count:
            raise ConfigError(
                f"workers={count}, and the graph in {store.folder} is cut into {store.num_parts} "
                f"parts; expected as many workers as parts"
            )
    if isinstance(store, Whole) and count == 1 and folder is None and place.address is None:
        yield Setup(found, store, None, inputs, None, place)
        return
    with contextlib.ExitStack() as stack:
        where = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="hogwild-")))
        if where.exists() and not where.is_dir():
            raise ConfigError(f"folder={str(folder)!r} is a file; expected a folder")
        where, cut = where.absolute(), None
        try:
            where.mkdir(parents=True, exist_ok=True)
            if isinstance(store, Whole):
                store, cut = _cut(store, count, where / "graph", place)
        except OSError as error:
            raise DataError(
                f"the parts cannot be written to {where} ({error}); expected a folder of your own "
                f"with room for the graph: give another folder"
            ) from error
        yield Setup(found, store, where, inputs, cut, place)


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


def _cut(whole: Whole, count: int, folder: Path, place: Place) -> tuple[Store, Partition | None]:
    """The graph in parts: from the folder, if it holds this graph in as many parts, else new. A
    damaged one is written again."""
    if (folder / "index.json").is_file():
        with contextlib.suppress(FileNotFoundError, DataError):
            found = Store.open(folder)
            same = found.index.get("graph") == whole.checksum()
            if same and found.num_parts == count:
                found.check()
                return found, None
    cut = partition(whole, count, method=place.partition, seed=place.seed)
    found = Store.write(
        folder, whole, cut.part, num_parts=count, overlap=place.overlap, overwrite=True
    )
    return found, cut


def engine_for(
    plan: Plan,
    setup: Setup,
    *,
    barriers: bool = False,
    slow: dict[int, float] | None = None,
    every: float = 5.0,
) -> Engine:
    """One worker or a given disorder: in this process. Several workers: Ray."""
    count, place = setup.store.num_parts, setup.place
    if place.address is None:  # all workers are on this machine
        require_memory(predict_parts(setup.model, setup.store, plan.hops))
    if place.disorder is not None or (count == 1 and place.address is None):
        return InProcess(plan, count, place.disorder)
    from hogwild.cluster.actors import Actors

    return Actors(
        plan, count, address=place.address, cpus=place.cpus, gpus=place.gpus,
        restarts=place.restarts, barriers=barriers, slow=slow, every=every,
    )  # fmt: skip


# -- memory --------------------------------------------------------------------------------------


def predict(model: GraphModule, nodes: int, edges: int, *, edge_weight: bool = False) -> int:
    """Bytes of a process that solves the model's problem on a graph or on a part of one.

    Args:
        model: A model or a convolution.
        nodes: Number of local nodes, N or A + B.
        edges: Number of edges.
        edge_weight: Whether the edges have weights.
    """
    convs = [m for m in model.modules() if isinstance(m, ImplicitConv)]
    if not convs:
        raise TypeError(f"expected a model with implicit layers, got {type(model).__name__}")
    stages = [m for m in model.modules() if isinstance(m, Features) and m.encoder is not None]
    raw = 2 * sum(stage.in_channels for stage in stages)  # features before they are encoded
    # Several layers are solved one after the other.
    largest = max(_layer(conv, nodes, edges, edge_weight) for conv in convs)
    return largest + NUMBER * raw * nodes


def _layer(conv: ImplicitConv, nodes: int, edges: int, edge_weight: bool) -> int:
    r, k = conv.replicas or 1, conv.hidden_channels
    # The features and their copy in the precision of the solve, degrees, batch, row starts.
    node = 2 * conv.in_channels + 8 + VECTORS * r * k
    # Senders and receivers twice: as given, and in the graph; and the order of receivers.
    edge = 5 + (conv.edge_dim or 0) * 2 + 2 * edge_weight
    constant = 0.0
    if isinstance(conv, EnergyConv):
        c = conv.message_channels * (conv.heads or 1 if conv.concat else 1)
        node += r * (c * c + 5 * k * k)
        net = conv.message_nets[0]
        assert isinstance(net, PICNN)
        # 14 at the default widths
        scale = (conv.heads or 1) * (net.convex_channels + sum(net.channels)) / 14
        if conv.rounds == 1 and r * edges >= streamed.LARGE["cpu"]:
            edge += r * (c + k) * k + (conv.heads or 0)
            constant = streamed.BLOCK_EDGES * WORK * scale
            constant += min(streamed.KEEP / NUMBER, r * edges * GATES * scale)
        else:
            edge += int(r * conv.rounds * HELD * scale)
            node += int(r * conv.rounds * HELD * scale) // 2
    elif isinstance(conv, GSDConv):
        edge += PAIRS
        node += 16
    else:
        edge += 4 * r * k
    if edges <= PLAN_EDGES:
        constant += PLAN * edges * (1.0 + 0.5 * edges / max(nodes, 1))  # edges and wedges
    return PROCESS + NUMBER * int(constant + node * nodes + edge * edges)


def predict_parts(model: GraphModule, store: Store | Whole, hops: int = 2) -> list[int]:
    """Predicted bytes of the worker of each part of a store."""
    return [
        predict(model, count.nodes + count.halo, count.edges, edge_weight=store.has_weights)
        for count in store.counts(hops, None)
    ]


def available() -> int | None:
    """Bytes that this process may still use: of the machine, and of its control group if that has
    a limit. ``None`` if the system does not say."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:
            found.append(int(fields["MemAvailable"].split()[0]) << 10)
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if (group / limit).exists() and (group / used).exists():
            most = (group / limit).read_text().strip()
            if most.isdigit():
                found.append(int(most) - int((group / used).read_text()))
    return min(found, default=None)


def require_memory(needed: Sequence[int], limit: int | None = None) -> None:
    """Raise unless workers with these needs, in bytes, fit into memory side by side.

    Args:
        needed: Bytes of each worker on this machine.
        limit: Bytes there are; ``None``: :data:`SHARE` of what is :func:`available`.

    Raises:
        CapacityError: They do not fit.
    """
    if limit is None:
        free = available()
        if free is None:
            return
        limit = int(SHARE * free)
    total = sum(needed)
    if total > limit:
        raise CapacityError(
            f"{len(needed)} worker{'s' if len(needed) > 1 else ''} would need {_size(total)} "
            f"(the largest {_size(max(needed))}), and {_size(limit)} are available; expected a "
            f"graph that fits: use more machines, more parts with fewer of them at a time, or a "
            f"model with fewer channels"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.0f} MiB"
