"""Inference on a graph in parts, without barriers: :func:`infer`."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.cluster.bound import error_bar
from hogwild.cluster.engine import Engine, InProcess, Watch
from hogwild.cluster.host import Plan, convolution, save_model
from hogwild.cluster.local import Disorder
from hogwild.cluster.memory import predict_parts, require_memory
from hogwild.cluster.partitioning import Partition, partition
from hogwild.cluster.result import GUARANTEES, ClusterRun
from hogwild.cluster.sources import open_graph
from hogwild.cluster.store import Store
from hogwild.cluster.trace import Trace
from hogwild.cluster.whole import Whole
from hogwild.cluster.worker import Status
from hogwild.errors import AsynchronyError, ConfigError, FeatureError, is_number, require_positive
from hogwild.graph.inputs import Inputs
from hogwild.models.check import check_model
from hogwild.models.gnn import ConvGNN
from hogwild.models.gsd import GSDConv
from hogwild.models.mode import evaluating

Source: TypeAlias = Data | Inputs | Whole | Store | str | Path
KINDS = ("auto", "solve", "messages", "gradient", "fixed-point")
GATHER = 50_000_000
"""Most numbers of all embeddings that are gathered in this process without being asked for."""


@dataclass
class Setup:
    """A graph in parts, ready for an engine."""

    model: ConvGNN
    store: Store
    folder: Path
    inputs: Inputs | None  # the whole graph, where it is in memory
    partition: Partition | None
    keeps: bool  # whether the folder stays


def opened(path: str | Path) -> Whole | Store:
    """The graph in a file, or the parts in a folder."""
    return Store.open(path) if (Path(path) / "index.json").is_file() else open_graph(path)


@contextmanager
def prepared(
    model: nn.Module,
    graph: Source,
    workers: int | None,
    folder: str | Path | None,
    method: str,
    seed: int,
) -> Iterator[Setup]:
    """Check a model and a graph, and cut the graph into parts in a folder."""
    found = check_model(model)
    conv = convolution(found)
    whole: Whole | None = None
    store: Store | None = graph if isinstance(graph, Store) else None
    if isinstance(graph, str | Path):
        graph = opened(graph)
        store = graph if isinstance(graph, Store) else None
    if store is None:
        assert not isinstance(graph, str | Path | Store)
        whole = Whole.of(graph)
        _check_widths(found, int(whole.x.shape[1]), whole.edge_attr)
    count = store.num_parts if store is not None and workers is None else workers
    count = require_positive("workers", 1 if count is None else count)
    if store is not None:
        _check_widths(found, store.channels, store.edge_dim)
        if store.num_parts != count:
            raise ConfigError(
                f"workers={count}, and the graph in {store.folder} is cut into {store.num_parts} "
                f"parts; expected as many workers as parts"
            )
    if getattr(conv, "normalize", True) is False and conv.hops == 1:
        # The eigenvalue of the whole graph is not in the parts.
        raise ConfigError(
            "the model was built with normalize=False, which divides by an eigenvalue of the whole "
            "graph; expected normalize=True for a graph in parts"
        )
    with contextlib.ExitStack() as stack:
        where = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="hogwild-")))
        if where.exists() and not where.is_dir():
            raise ConfigError(f"folder={str(folder)!r} is a file; expected a folder")
        where.mkdir(parents=True, exist_ok=True)
        where = where.absolute()
        cut = None
        if store is None:
            assert whole is not None
            store, cut = _cut(whole, count, where / "graph", method, seed)
        inputs = None
        if whole is not None and isinstance(graph, Data | Inputs):
            inputs = Inputs.of(graph)
        yield Setup(found, store, where, inputs, cut, folder is not None)


def _check_widths(model: ConvGNN, channels: int, edges: Any) -> None:
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


def _cut(
    whole: Whole, count: int, folder: Path, method: str, seed: int
) -> tuple[Store, Partition | None]:
    """The graph in parts: from the folder, if it holds this graph in as many parts, else new."""
    if (folder / "index.json").is_file():
        with contextlib.suppress(FileNotFoundError):
            found = Store.open(folder)
            sizes = found.num_nodes, found.num_edges, found.num_parts
            if sizes == (whole.num_nodes, whole.num_edges, count) and _same(found, whole):
                return found, None
    cut = partition(whole, count, method=method, seed=seed)
    return Store.write(folder, whole, cut.part, num_parts=count, overwrite=True), cut


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
    address: str | None,
    cpus: float,
    gpus: float,
    restarts: int,
    barriers: bool,
    slow: dict[int, float] | None,
    disorder: Disorder | None,
    every: float = 5.0,
) -> Engine:
    """One worker or a given disorder: in this process. Several workers: Ray."""
    count = setup.store.num_parts
    if address is None:  # all workers are on this machine
        require_memory(predict_parts(setup.model, setup.store, plan.hops, plan.overlap))
    if disorder is not None or (count == 1 and address is None):
        return InProcess(plan, count, disorder)
    from hogwild.cluster.actors import Actors

    return Actors(
        plan, count, address=address, cpus=cpus, gpus=gpus, restarts=restarts,
        barriers=barriers, slow=slow, every=every,
    )  # fmt: skip


def infer(
    model: nn.Module,
    graph: Source,
    workers: int | None = None,
    *,
    tol: float = 1e-6,
    work: str = "auto",
    folder: str | Path | None = None,
    partition: str = "auto",
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    restarts: int = 5,
    seconds: float | None = None,
    barriers: bool = False,
    slow: dict[int, float] | None = None,
    disorder: Disorder | None = None,
    gather: bool | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> ClusterRun:
    """The embeddings and predictions of a model on a graph that is cut into parts.

    Every part has a worker of its own, which solves for its nodes with the embeddings of other
    parts as last received. Nobody waits for anybody. The result is that of ``model(graph)``, and
    has a bound on the distance from it.

    Args:
        model: A model with one implicit layer, such as :class:`~hogwild.EnergyGNN`.
        graph: A PyG ``Data``, ``Inputs``, a :class:`~hogwild.cluster.Whole`, a
            :class:`~hogwild.cluster.Store`, or the path of a file or a store.
        workers: Number of parts and workers; by default 1, or the parts of a store. One worker
            runs in this process without Ray.
        tol: Relative error at which the parts are settled.
        work: What a part does between two exchanges: ``"solve"``, the name of a node's rule
            (``"messages"``, ``"gradient"``, ``"fixed-point"``), or ``"auto"``: the faster one of
            these on the first part.
        folder: Where the parts, their checkpoints and their answers are kept. All nodes of a
            cluster must see it. A run in the same folder continues an interrupted one. By default
            a temporary folder.
        partition: How the graph is cut: ``"auto"``, ``"metis"``, ``"coordinates"``, ``"search"``.
        address: Address of a running cluster of Ray; by default Ray starts on this machine.
        cpus: CPUs that Ray reserves for each worker.
        gpus: GPUs that Ray reserves for each worker; with one or more, workers compute on them.
        restarts: How often each worker is started again after its process or node has died.
        seconds: How long the workers work at most.
        barriers: Let all workers wait for each other after every update (for comparisons).
        slow: How many times longer an update of a worker takes, by part (for comparisons).
        disorder: Run all workers in this process, in the order of a seed, with delays and losses.
        gather: Whether the answers of all parts are returned; by default up to
            50 million numbers. With a ``folder`` they are in files, too.
        seed: Seed of the partition.
        watch: Called with the seconds and the statuses of all parts, a few times a second.
    """
    if not is_number(tol) or not 0 < tol < 1:
        raise ConfigError(f"tol={tol!r}; expected a relative error between 0 and 1")
    if work not in KINDS:
        raise ConfigError(f"work={work!r}; expected one of {', '.join(KINDS)}")
    with prepared(model, graph, workers, folder, partition, seed) as setup:
        plan = Plan(
            store=setup.store.folder.absolute(),
            model=save_model(setup.model, setup.folder / "model.pt"),
            checkpoints=setup.folder / "checkpoints",
            tol=tol,
            hops=convolution(setup.model).hops,
            device="cuda" if gpus > 0 else "cpu",
        )
        with engine_for(
            plan, setup, barriers=barriers, slow=slow, disorder=disorder, address=address,
            cpus=cpus, gpus=gpus, restarts=restarts,
        ) as engine:  # fmt: skip
            trial: dict[str, float] = {}
            if work == "auto":
                trial = measured(engine, setup)
                work = min(trial, key=lambda name: trial[name]) if trial else "solve"
                try:
                    engine.call("start", work)
                except AsynchronyError:  # the rule fits the largest part and not all parts
                    work = "solve"
            trace = Trace()
            try:
                return engine.patiently(
                    lambda: _run(engine, setup, trace, work, trial, seconds, gather, watch)
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(_interrupted(setup)) from None


def _interrupted(setup: Setup) -> str:
    if not setup.keeps:
        return "interrupted; with a folder, the same call goes on from where it was"
    return f"interrupted; the parts are in {setup.folder}, and the same call goes on from there"


def measured(engine: Engine, setup: Setup) -> dict[str, float]:
    """The costs of the kinds of work, measured on the largest part."""
    sizes = [count.nodes for count in setup.store.counts(1)]
    found: dict[str, float] = engine.one(int(np.argmax(sizes)), "trial")
    return found


def _run(
    engine: Engine,
    setup: Setup,
    trace: Trace,
    work: str,
    trial: dict[str, float],
    seconds: float | None,
    gather: bool | None,
    watch: Watch | None,
) -> ClusterRun:
    last: list[Status] = []

    def told(spent: float, statuses: list[Status]) -> None:
        last[:] = statuses
        trace.add(spent, statuses)
        if watch is not None:
            watch(spent, statuses)

    engine.call("start", work)
    began = time.monotonic()
    done = engine.iterate(told, seconds)
    spent = time.monotonic() - began
    if setup.keeps:
        engine.call("save")
    measures = [m for m in engine.call("measure") if m is not None]
    bar = error_bar(measures, _rounding(setup.model))
    stalled = any(status.stalled for status in last)
    model, store = setup.model, setup.store
    numbers = store.num_nodes * model.hidden_channels * (model.replicas or 1)
    gather = numbers <= GATHER if gather is None else gather
    files: list[Path] = []
    if setup.keeps:
        files = engine.call("write_answer", setup.folder / "answer")
        trace.save(setup.folder / "trace.json")
    h, prediction = gathered(engine, setup) if gather else (None, None)
    kind = measures[0].kind if measures else "map"
    if isinstance(model.conv, GSDConv):
        kind = "denoising"
    return ClusterRun(
        h=h,
        prediction=prediction,
        error_bar=bar,
        converged=done and not stalled,
        workers=store.num_parts,
        work=work,
        trial=trial,
        updates=[status.updates for status in last],
        bytes=[status.bytes for status in last],
        seconds=spent,
        restarts=engine.restarts,
        files=files,
        trace=trace,
        part=np.array(store.parts) if gather else None,
        partition="" if setup.partition is None else str(setup.partition),
        guarantee=GUARANTEES[kind],
    )


def _rounding(model: ConvGNN) -> float:
    """The relative error of an embedding that is returned in the dtype of the parameters."""
    dtype = next(model.parameters()).dtype
    return torch.finfo(dtype).eps / 2 if dtype != torch.float64 else 0.0


@torch.no_grad()
def gathered(engine: Engine, setup: Setup) -> tuple[Tensor, Tensor | None]:
    """The embeddings and predictions of all nodes, in the order of the whole graph."""
    answers: list[Any] = engine.call("answer")
    n = setup.store.num_nodes

    def whole(place: int) -> Tensor | None:
        first = next((a[place] for a in answers if a[place] is not None), None)
        if first is None:
            return None
        out = np.zeros((*first.shape[:-2], n, first.shape[-1]), dtype=first.dtype)
        for answer in answers:
            out[..., answer[0], :] = answer[place]
        return torch.from_numpy(out)

    h, prediction = whole(1), whole(2)
    assert h is not None
    if prediction is None and setup.inputs is not None:  # the readout pools
        with evaluating(setup.model):
            prediction = setup.model.read(h.to(setup.inputs.x), setup.inputs)
    return h, prediction
