"""A demonstration: three models are trained in step, then run out of step and with lost packets,
each with one or several rules; and a page about them."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import pdist, squareform
from torch_geometric.data import Batch, Data

from hogwild.analysis.advice import advice
from hogwild.analysis.robustness import Robustness, robustness
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.errors import ConfigError
from hogwild.executors.deadlines import Deadlines
from hogwild.files import require_writable, write_atomically
from hogwild.metrics import CROSS_ENTROPY, ERROR
from hogwild.progress import aligned, shown, size, wrapped
from hogwild.tasks.base import Task, published
from hogwild.tasks.synthetic import undirected
from hogwild.training import train

__all__ = ["QUICK", "Rumour", "Scale", "Study", "demo", "study"]

NODES, DIAMETER = (12, 16), (4, 5)
"""Smallest and largest number of nodes, and diameter, of a graph."""
DEGREE = 4.5
"""Mean degree of an infinite graph with the same radius."""


class Rumour(Task):
    """Rumours: one node is told one of two answers, and all nodes must find it out.

    **Data.** Random geometric graphs of 12 to 16 nodes and diameter 4 or 5, so that five layers
    reach from every node to every other. One node has a one-hot feature [n, 2], the answer; the
    features of all others are zero. Every node predicts the answer. Every graph appears twice,
    once with each answer, so that guessing errs on one half. The graphs also hold ``pos`` [n, 2],
    where to draw the nodes, and ``hops`` [n], how far each node is from the one that was told.

    **Protocol.** One split of the graphs. **Loss** binary cross-entropy. **Metric** the share of
    nodes that are wrong.

    Args:
        pairs: Number of graphs, each with both answers; an eighth of them are for validation and an
            eighth for testing.
        seed: Graph g is a function of (``seed``, g) alone.
    """

    name = "rumour"
    minimised, reported = CROSS_ENTROPY, ERROR
    in_channels = 2
    out_channels = 1

    def __init__(self, pairs: int = 24, *, seed: int = 0) -> None:
        if pairs < 3:
            raise ConfigError(f"pairs={pairs!r}; expected at least 3: to train, to choose, to test")
        self.graphs = []
        for g in range(pairs):
            random = np.random.default_rng([seed, g])
            pos, hops = _geometric(random)
            told = int(random.integers(len(pos)))
            edge_index = undirected(*np.nonzero(np.triu(hops == 1)))
            for answer in range(2):
                x = torch.zeros(len(pos), 2, dtype=torch.float64)
                x[told, answer] = 1.0
                y, far = torch.full((len(pos),), answer), torch.from_numpy(hops[told]).long()
                self.graphs.append(
                    Data(x=x, edge_index=edge_index, y=y, pos=torch.from_numpy(pos), hops=far)
                )
        held = max(1, pairs // 8)
        self.fixed = published([2 * (pairs - 2 * held), 2 * held, 2 * held])


def _geometric(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Places [n, 2] in the unit square and hops [n, n] of a graph of the right diameter."""
    while True:
        n = int(random.integers(NODES[0], NODES[1] + 1))
        pos = random.random((n, 2))
        apart = squareform(pdist(pos))
        joined = (apart <= math.sqrt(DEGREE / (math.pi * n))) & ~np.eye(n, dtype=bool)
        hops = shortest_path(joined, unweighted=True)
        if DIAMETER[0] <= hops.max() <= DIAMETER[1]:
            return pos, hops


class Setting(NamedTuple):
    """The stagger S, the delay D, and the share of packets that are lost."""

    stagger: int
    delay: int
    loss: float = 0.0

    def __str__(self) -> str:
        lost = f", {self.loss:.0%} lost" if self.loss else ""
        return f"S={self.stagger}, D={self.delay}{lost}"


PAPER = Setting(5, 2)
"""The paper's S and D."""
LOSSY = Setting(*PAPER[:2], 0.3)
SETTINGS = (Setting(1, 2), PAPER, Setting(5, 10), Setting(10, 2), LOSSY)
MODELS = {"gcn": "GCN", "gat": "GAT", "soft": "energy GNN"}
"""The models: names in :data:`hogwild.training.MODELS`, and names on the page."""
OPTIONS: dict[str, dict[str, Any]] = {
    "gcn": {"epochs": 250, "lr": 0.02},
    "gat": {"epochs": 150, "lr": 0.02},
    # Half the default condition number is enough for graphs of diameter 5: with 41 the model is as
    # sure of the right answers (``hogwild demo --seed 0``, ``--seed 1``) and needs twice the ticks.
    "soft": {
        "epochs": 70, "lr": 0.02, "model_options": {"hidden_channels": 8, "condition": 21},
    },
}  # fmt: skip
ROWS: dict[str, tuple[str, str, str]] = {
    "gcn": ("GCN", "gcn", "overwriting"),
    "gat": ("GAT", "gat", "overwriting"),
    "gcn-resending": ("GCN, resending", "gcn", "resending"),
    "gcn-caching": ("GCN, caching", "gcn", "caching"),
    "soft": ("energy GNN", "soft", "gradient"),
}
"""The rows of the table: a name, the model, and its rule."""
PRICE = (
    f"updates, packets and bytes: of a node, on average, at {LOSSY}, until it is done (layers) or "
    f"its run has converged"
)
TOL = 1e-3
"""Relative distance from the synchronous embeddings at which an energy GNN's run ends."""
FINE = 1e-4
"""The same where one graph is looked at closely."""


@dataclass(frozen=True)
class Scale:
    """The size of the demonstration."""

    pairs: int = 24  # graphs of the task
    replicas: int = 3  # models trained of each kind; the best on validation graphs is used
    share: float = 1.0  # of the epochs in ``OPTIONS``
    runs: int = 4  # schedules for each setting
    ticks: int = 20_000  # the most ticks of a run


QUICK = Scale(pairs=16, replicas=2, runs=3)


@dataclass
class Study:
    """The numbers of the demonstration."""

    scale: Scale
    seed: int
    guessing: float  # error of the best constant answer on the test graphs
    results: dict[str, dict[Setting, Robustness]]  # on all test graphs, by row of the table
    graph: Data  # the test graph that is drawn
    close: dict[str, Robustness]  # on this graph, at the paper's setting, by model
    seconds: float

    def error(self, row: str, setting: Setting | None = None) -> tuple[float, float]:
        """Share of wrong nodes in this setting, mean and deviation over schedules; by default the
        synchronous share."""
        found = self.results[row][setting or PAPER].summary()
        if setting is None:
            return found["synchronous"], 0.0
        return found["asynchronous"], found["asynchronous_std"]

    @property
    def deadlines(self) -> dict[str, Deadlines]:
        """Error by deadline with losses, by name of the row."""
        return {name: self.results[row][LOSSY].deadlines for row, (name, *_) in ROWS.items()}

    @property
    def advice(self) -> str:
        """What each row needs to be in time with losses, and which to take."""
        return advice(self.deadlines)

    def rows(self) -> list[list[str]]:
        """The table as text, its heading first."""
        rows = [["nodes that are wrong", "in step", *map(str, SETTINGS), "updates", "packets",
                 "bytes"]]  # fmt: skip
        for row, (name, *_) in ROWS.items():
            price = self.results[row][LOSSY].price
            cells = [f"{100 * self.error(row)[0]:.1f} %"]
            for mean, deviation in (self.error(row, setting) for setting in SETTINGS):
                cells.append(f"{100 * mean:.1f} % ± {100 * deviation:.1f}")
            traffic = [shown(price.updates), shown(price.packets), size(price.bytes)]
            rows.append([name, *cells, *traffic])
        return rows

    def table(self) -> str:
        """The table for a terminal."""
        return f"{aligned(self.rows())}\n{PRICE}\n\n{wrapped(f'In time, {LOSSY}: {self.advice}')}"

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        errors = {}
        for row, of in self.results.items():
            each = []
            for setting, seen in of.items():
                mean, deviation = self.error(row, setting)
                each.append({
                    **setting._asdict(), "mean": mean, "deviation": deviation,
                    "converged": seen.converged, "rule": seen.run.rule, **vars(seen.price),
                })  # fmt: skip
            errors[row] = {"synchronous": self.error(row)[0], "asynchronous": each}
        return {
            "seed": self.seed,
            "guessing": self.guessing,
            "seconds": self.seconds,
            "advice": self.advice,
            "deadlines": {name: one.as_dict() for name, one in self.deadlines.items()},
            "errors": errors,
        }


def study(
    scale: Scale = Scale(),
    seed: int = 0,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: bool = False,
) -> Study:
    """Train the models, run them in all settings, and look closer at one graph; arguments as in
    :func:`demo`."""
    begun = time.perf_counter()
    task = Rumour(scale.pairs, seed=seed)
    assert task.fixed is not None
    chosen, test = ([task.graphs[i] for i in ids] for ids in (task.fixed.train, task.fixed.test))
    graph = max(test, key=lambda g: int(g.hops.max()))
    steps, step = len(MODELS) + len(ROWS), 0

    def next_step(text: str) -> None:
        nonlocal step
        step += 1
        say(f"[{step}/{steps}] {time.perf_counter() - begun:4.0f} s  {text}")

    models: dict[str, Any] = {}
    for model, name in MODELS.items():
        next_step(f"training {scale.replicas} × {name}, all nodes in step")
        epochs = max(1, round(scale.share * OPTIONS[model]["epochs"]))
        options = OPTIONS[model] | {"epochs": epochs, "progress": progress}
        found = train(task, model=model, replicas=scale.replicas, seed=seed, **options)
        models[model] = found.model
        say(f"{'':13}{100 * float(found.metrics['test'][found.best]):.1f} % of test nodes wrong")
    results: dict[str, dict[Setting, Robustness]] = {row: {} for row in ROWS}
    close: dict[str, Robustness] = {}
    for row, (name, model, rule) in ROWS.items():
        next_step(f"running the {name} out of step, {len(SETTINGS)} settings")
        common: dict[str, Any] = {"metric": "error", "rule": rule, "seed": seed,
                                  "ticks": scale.ticks, "progress": progress}  # fmt: skip
        for setting in SETTINGS:
            results[row][setting] = seen = robustness(
                models[model], test, runs=scale.runs, tol=TOL, stagger=setting.stagger,
                delay=setting.delay,
                impairments=BernoulliLoss(setting.loss) if setting.loss else (), **common,
            )  # fmt: skip
            wrong = f"{100 * seen.summary()['asynchronous']:.1f} % of test nodes wrong"
            say(f"{'':13}{setting}: {wrong}; {seen.price}")
        if row in MODELS:
            close[row] = robustness(
                models[model], graph, runs=1, tol=FINE, stagger=PAPER.stagger,
                delay=PAPER.delay, **common,
            )  # fmt: skip
    guessing = task.constant(Batch.from_data_list(chosen), Batch.from_data_list(test))
    return Study(scale, seed, guessing, results, graph, close, time.perf_counter() - begun)


def demo(
    output: str | Path = "report.html",
    scale: Scale = Scale(),
    seed: int = 0,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: bool = False,
) -> Study:
    """Train a GCN, a GAT and an energy GNN, run them asynchronously, and write the report.

    Args:
        output: The HTML file to write.
        scale: The number of graphs, models and runs; ``QUICK`` has fewer.
        seed: The seed of graphs, parameters and schedules.
        say: Called with a line of text about each step.
        progress: Show progress bars, too.
    """
    from hogwild.demo.report import report

    path = Path(output)
    # These errors would otherwise come after minutes of work.
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"output={str(path)!r}; expected a file in a folder that exists")
    require_writable(path, f"output={str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "the report's pictures need matplotlib, which is missing; install it with: "
            "pip install 'hogwild-gnn[plots]'"
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
    try:
        found = study(scale, seed, say=say, progress=progress)
    finally:
        torch.set_num_threads(threads)
    say("drawing")
    write_atomically(path, report(found).encode())
    return found
