"""What every run on parts needs before it starts: the model checked, the graph cut, the engine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import nn
from torch_geometric.data import Data

from hogwild.cluster.engine import Disorder, Engine, InProcess
from hogwild.cluster.host import Plan, convolution, save_model
from hogwild.cluster.memory import predict_parts, require_memory
from hogwild.cluster.partitioning import Partition, partition
from hogwild.cluster.sources import open_graph
from hogwild.cluster.store import Store
from hogwild.cluster.whole import Whole
from hogwild.cluster.writer import OVERLAP
from hogwild.errors import ConfigError, DataError, FeatureError, is_number, require_positive
from hogwild.graph.inputs import Inputs
from hogwild.models.check import check_model
from hogwild.models.gnn import ConvGNN

Source: TypeAlias = Data | Inputs | Whole | Store | str | Path


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the workers run, and where they keep their files.

    Attributes:
        folder: Where the parts, their checkpoints and their answers are kept. All nodes of a
            cluster must see it. By default a temporary folder.
        partition: How the graph is cut: ``"auto"``, ``"metis"``, ``"coordinates"``, ``"search"``.
        address: Address of a running cluster of Ray; by default Ray starts on this machine.
        cpus: CPUs that Ray reserves for each worker.
        gpus: GPUs that Ray reserves for each worker; with one or more, workers compute on them.
        restarts: How often each worker is started again after its process or node has died.
        disorder: Run all workers in this process, in the order of a seed, with delays and losses.
        overlap: Most rings of other parts' nodes for which a part solves, too. More of them leave
            fewer exchanges, where what a node knows reaches far.
        seed: Seed of the partition.
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

    @classmethod
    def of(cls, verb: str, **options: Any) -> Place:
        """A place from the keywords of a call of ``verb``."""
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(
                    f"{verb}() got an unexpected keyword argument {name!r}; expected some of "
                    f"{', '.join(names)}"
                )
        return cls(**options)

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus", "restarts"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise ConfigError(f"{name}={value!r}; expected a number, 0 or more")


@dataclass
class Setup:
    """A graph in parts, ready for an engine."""

    model: ConvGNN
    store: Store
    folder: Path
    inputs: Inputs | None  # the whole graph, where it is in memory
    partition: Partition | None
    place: Place

    @property
    def keeps(self) -> bool:
        """Whether the folder stays."""
        return self.place.folder is not None

    def plan(self, *, tol: float, checkpoints: Path | None = None, hops: int = 1) -> Plan:
        """The plan of all hosts. ``hops``: at least so many."""
        return Plan(
            store=self.store.folder.absolute(),
            model=save_model(self.model, self.folder / "model.pt"),
            checkpoints=checkpoints,
            tol=tol,
            hops=max(convolution(self.model).hops, hops),
            device="cuda" if self.place.gpus > 0 else "cpu",
        )


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
    """Check a model and a graph, and cut the graph into parts in a folder."""
    found, folder = check_model(model), place.folder
    convolution(found)  # raises where there is not exactly one
    whole: Whole | None = None
    store: Store | None = graph if isinstance(graph, Store) else None
    if isinstance(graph, str | Path):
        graph = opened(graph)
        store = graph if isinstance(graph, Store) else None
    if store is None:
        assert not isinstance(graph, str | Path | Store)
        whole = Whole.of(graph)
        _check_widths(found, int(whole.x.shape[1]), whole.edge_attr)
        whole.require_finite()
    count = store.num_parts if store is not None and workers is None else workers
    count = require_positive("workers", 1 if count is None else count)
    if store is not None:
        _check_widths(found, store.channels, store.edge_dim)
        if store.num_parts != count:
            raise ConfigError(
                f"workers={count}, and the graph in {store.folder} is cut into {store.num_parts} "
                f"parts; expected as many workers as parts"
            )
    with contextlib.ExitStack() as stack:
        where = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="hogwild-")))
        if where.exists() and not where.is_dir():
            raise ConfigError(f"folder={str(folder)!r} is a file; expected a folder")
        where, cut = where.absolute(), None
        try:
            where.mkdir(parents=True, exist_ok=True)
            if store is None:
                assert whole is not None
                store, cut = _cut(whole, count, where / "graph", place)
        except OSError as error:
            raise DataError(
                f"the parts cannot be written to {where} ({error}); expected a folder of your own "
                f"with room for the graph: give another folder"
            ) from error
        inputs = None
        if whole is not None and isinstance(graph, Data | Inputs):
            inputs = Inputs.of(graph)
        yield Setup(found, store, where, inputs, cut, place)


def _check_widths(model: ConvGNN, channels: int, edges: Any) -> None:
    model.features.begin(channels)
    if channels != model.in_channels:
        raise FeatureError(
            f"the graph has {channels} features a node and the model reads {model.in_channels}; "
            f"expected equal numbers"
        )
    width = edges.shape[1] if hasattr(edges, "shape") else edges
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
            sizes = found.num_nodes, found.num_edges, found.num_parts
            if sizes == (whole.num_nodes, whole.num_edges, count) and _same(found, whole):
                found.check()
                return found, None
    cut = partition(whole, count, method=place.partition, seed=place.seed)
    found = Store.write(
        folder, whole, cut.part, num_parts=count, overlap=place.overlap, overwrite=True
    )
    return found, cut


def _same(store: Store, whole: Whole) -> bool:
    """Whether a store holds this graph: all features, edges, weights and fields."""
    names = (list(whole.node_fields), list(whole.edge_fields))
    if names != (store.index["node_fields"], store.index["edge_fields"]):
        return False
    for p in range(store.num_parts):
        part = store.part(p, 1)
        nodes, edges = part.nodes, part.edges
        local = np.concatenate([nodes, part.halo]).astype(np.int64)
        ends = local[part.edge_index] if len(local) else part.edge_index
        if not np.array_equal(whole.edge_index[:, edges], ends):
            return False
        of_nodes = [(whole.x, part.x)]
        of_nodes += [(whole.node_fields[name], value) for name, value in part.node_fields.items()]
        of_edges: list[tuple[Any, Any]] = [
            (whole.edge_attr, part.edge_attr), (whole.edge_weight, part.edge_weight)
        ]  # fmt: skip
        of_edges += [(whole.edge_fields[name], value) for name, value in part.edge_fields.items()]
        if not all(_equal(given[nodes], held[: len(nodes)]) for given, held in of_nodes):
            return False
        for given, held in of_edges:
            if (given is None) != (held is None):
                return False
            if given is not None and not _equal(given[edges], held):
                return False
    return True


def _equal(given: Any, held: Any) -> bool:
    return bool(given.dtype == held.dtype) and np.array_equal(given, held)


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
        require_memory(predict_parts(setup.model, setup.store, plan.hops, plan.overlap))
    if place.disorder is not None or (count == 1 and place.address is None):
        return InProcess(plan, count, place.disorder)
    from hogwild.cluster.actors import Actors

    return Actors(
        plan, count, address=place.address, cpus=place.cpus, gpus=place.gpus,
        restarts=place.restarts, barriers=barriers, slow=slow, every=every,
    )  # fmt: skip
