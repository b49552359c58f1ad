"""The demonstration's task and its numbers: three models are trained in step, then run out of step
and with lost packets, each with one or several rules."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
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
from hogwild.metrics import CROSS_ENTROPY, ERROR
from hogwild.progress import aligned, shown, size, wrapped
from hogwild.tasks.base import Task, published
from hogwild.tasks.synthetic import undirected
from hogwild.training import train

NODES, DIAMETER = (12, 16), (4, 5)
"""Smallest and largest number of nodes, and diameter, of a graph."""
DEGREE = 4.5
"""Mean degree of an infinite graph with the same radius."""


def geometric(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Places [n, 2] in the unit square and hops [n, n] of a graph of the right diameter."""
    while True:
        n = int(random.integers(NODES[0], NODES[1] + 1))
        pos = random.random((n, 2))
        apart = squareform(pdist(pos))
        joined = (apart <= math.sqrt(DEGREE / (math.pi * n))) & ~np.eye(n, dtype=bool)
        hops = shortest_path(joined, unweighted=True)
        if DIAMETER[0] <= hops.max() <= DIAMETER[1]:
            return pos, hops


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
            pos, hops = geometric(random)
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


class Setting(NamedTuple):
    """The stagger S, the delay D, and the share of packets that are lost."""

    stagger: int
    delay: int
    loss: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """The same as options of a simulation."""
        lossy = BernoulliLoss(self.loss) if self.loss else ()
        return {"stagger": self.stagger, "delay": self.delay, "impairments": lossy}

    def __str__(self) -> str:
        lost = f", {self.loss:.0%} lost" if self.loss else ""
        return f"S={self.stagger}, D={self.delay}{lost}"


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
STAGGER, DELAY, LOSS = 5, 2, 0.3
"""The paper's S and D, which stay fixed where they are not varied. The loss is ours."""
PAPER = Setting(STAGGER, DELAY)
LOSSY = Setting(STAGGER, DELAY, LOSS)
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
    delays: tuple[int, ...] = (0, 2, 10)  # values of D, at S = 5
    staggers: tuple[int, ...] = (1, 5, 10)  # values of S, at D = 2
    many: int = 30  # schedules in a histogram
    ticks: int = 20_000  # the most ticks of a run

    @property
    def settings(self) -> list[Setting]:
        """All settings that are run: the paper's, with and without losses, and its variations."""
        found = {PAPER, LOSSY}
        found |= {Setting(STAGGER, d) for d in self.delays}
        found |= {Setting(s, DELAY) for s in self.staggers}
        return sorted(found)


QUICK = Scale(pairs=16, replicas=2, runs=3, delays=(0, 5), staggers=(1, 5), many=20)


@dataclass
class Study:
    """The numbers of the demonstration."""

    scale: Scale
    seed: int
    guessing: float  # error of the best constant answer on the test graphs
    results: dict[str, dict[Setting, Robustness]]  # on all test graphs, by row of the table
    graph: Data  # the test graph that is drawn
    node: int  # its node that is farthest from the one that was told
    many: dict[str, Robustness]  # on this graph, at the paper's setting, by model
    seconds: float

    def error(self, model: str, setting: Setting | None = None) -> tuple[float, float]:
        """Share of wrong nodes in this setting, mean and deviation over schedules; by default the
        synchronous share."""
        if setting is None:
            return self.results[model][PAPER].summary()["synchronous"], 0.0
        row = self.results[model][setting].summary()
        return row["asynchronous"], row["asynchronous_std"]

    @property
    def tested(self) -> int:
        """Number of test graphs."""
        return self.results["gcn"][PAPER].run.converged.size(-1)

    @property
    def columns(self) -> list[Setting | None]:
        """Columns of the table: in step, then more and more asynchronous."""
        scale = self.scale
        wanted = [Setting(min(scale.staggers), DELAY), PAPER, Setting(STAGGER, max(scale.delays)),
                  Setting(max(scale.staggers), DELAY), LOSSY]  # fmt: skip
        return [None, *dict.fromkeys(wanted)]

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
        heads = ["in step" if c is None else str(c) for c in self.columns]
        rows = [["nodes that are wrong", *heads, "updates", "packets", "bytes"]]
        for model, (name, *_) in ROWS.items():
            price = self.results[model][LOSSY].price
            cells = []
            for setting in self.columns:
                mean, deviation = self.error(model, setting)
                text = f"{100 * mean:.1f} %"
                cells.append(text if setting is None else f"{text} ± {100 * deviation:.1f}")
            traffic = [shown(price.updates), shown(price.packets), size(price.bytes)]
            rows.append([name, *cells, *traffic])
        return rows

    def table(self) -> str:
        """The table for a terminal."""
        return f"{aligned(self.rows())}\n{PRICE}\n\n{wrapped(f'In time, {LOSSY}: {self.advice}')}"

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "seed": self.seed,
            "guessing": self.guessing,
            "seconds": self.seconds,
            "advice": self.advice,
            "deadlines": {name: one.as_dict() for name, one in self.deadlines.items()},
            "errors": {
                model: {
                    "synchronous": self.error(model)[0],
                    "asynchronous": [
                        {**setting._asdict(), "mean": mean, "deviation": deviation,
                         "converged": seen.converged, "rule": seen.run.rule, **vars(seen.price)}
                        for setting, seen in of.items()
                        for mean, deviation in [self.error(model, setting)]
                    ],
                }
                for model, of in self.results.items()
            },
        }  # fmt: skip


def study(
    scale: Scale = Scale(),
    seed: int = 0,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: bool = False,
) -> Study:
    """Train the models, run them in all settings, and look closer at one graph; arguments as in
    :func:`hogwild.demo.demo`."""
    begun = time.perf_counter()
    task = Rumour(scale.pairs, seed=seed)
    assert task.fixed is not None
    chosen, test = ([task.graphs[i] for i in ids] for ids in (task.fixed.train, task.fixed.test))
    graph = max(test, key=lambda g: int(g.hops.max()))
    models: dict[str, Any] = {}
    steps, step = len(MODELS) + len(ROWS), 0

    def next_step(text: str) -> None:
        nonlocal step
        step += 1
        say(f"[{step}/{steps}] {time.perf_counter() - begun:4.0f} s  {text}")

    for model, name in MODELS.items():
        next_step(f"training {scale.replicas} × {name}, all nodes in step")
        options = {**OPTIONS[model]}
        options["epochs"] = max(1, round(scale.share * options["epochs"]))
        found = train(
            task, model=model, replicas=scale.replicas, seed=seed, progress=progress, **options
        )
        models[model] = found.model
        say(f"{'':13}{100 * float(found.metrics['test'][found.best]):.1f} % of test nodes wrong")
    results: dict[str, dict[Setting, Robustness]] = {}
    many: dict[str, Robustness] = {}
    common: dict[str, Any] = {"seed": seed, "ticks": scale.ticks, "progress": progress}
    for row, (name, model, rule) in ROWS.items():
        next_step(f"running the {name} out of step, {len(scale.settings)} settings")
        both: dict[str, Any] = {"metric": "error", "rule": rule, **common}
        results[row] = {}
        for setting in scale.settings:
            results[row][setting] = seen = robustness(
                models[model], test, runs=scale.runs, tol=TOL, **setting.options, **both
            )
            say(
                f"{'':13}{setting}: {100 * seen.summary()['asynchronous']:.1f} % of test nodes "
                f"wrong; {seen.price}"
            )
        if row in MODELS:
            many[row] = robustness(
                models[model], graph, runs=scale.many, tol=FINE, **PAPER.options, **both
            )
    guessing = task.constant(Batch.from_data_list(chosen), Batch.from_data_list(test))
    node = int(torch.argmax(graph.hops))
    seconds = time.perf_counter() - begun
    return Study(scale, seed, guessing, results, graph, node, many, seconds)
