"""Every way to an answer gives the answer of ``model.embed``, or refuses with a clear error.

:data:`ENGINES` has a function from (model, data) to embeddings, predictions and the error that the
engine claims at most, for each way. :data:`OPTIONS` has what models and graphs may be like.
:data:`REFUSED` states which engine refuses what, and with what words: in all other cases an engine
must answer. Cases are drawn by seed, such that each pair of options, the engine included, occurs in
a case that is answered.

The page of ``hogwild serve`` has no engine of its own: its sides are the simulations of ``track``.
"""

import copy
import itertools
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from c_nodes import CC, CAgent, CNode, Library
from kernel_cases import on_torch
from torch_geometric.data import Batch, Data

from experiments.maximum import MaxGNN
from hogwild import (
    EIGNN,
    GAT,
    GCN,
    GSDGNN,
    IGNN,
    EnergyGNN,
    Inputs,
    ScarselliGNN,
    Scenario,
    SoftEnergyGNN,
    Stream,
    WarmStart,
    simulate,
    track,
)
from hogwild.cluster import Disorder, infer
from hogwild.errors import HogwildError
from hogwild.models import Kind
from hogwild.models.export import export
from hogwild.models.soft import Slow
from hogwild.testing import random_graph
from hogwild_node import model as node_models
from hogwild_node import model_file
from hogwild_node.agent import Agent, Edge
from hogwild_node.errors import ModelFileError, SetupError
from hogwild_node.model import Neighbour
from hogwild_node.transports.memory import MemoryNetwork

# -- models and data -------------------------------------------------------------------------------


def soft(*sizes, **options):
    """Soft energies with node-local terms, away from their start, where they are quadratic. Dropout
    is off in evaluation."""
    model = SoftEnergyGNN(
        *sizes, hidden_channels=3, width=4, condition=11.0, local_channels=1, widths=(3,),
        norm="layer", dropout=0.5, **options,
    )  # fmt: skip
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, Slow) and part.change is not None:
                part.change.normal_(0.0, 0.5)
    return model


MODELS = {
    "edge": EnergyGNN,
    "node": lambda *a, **o: EnergyGNN(*a, message="node", **o),
    "levels": lambda *a, **o: EnergyGNN(*a, num_layers=2, **o),
    "gsd": GSDGNN,
    "soft": lambda *a, **o: soft(*a, encoder=(5, 4), **o),
    # Solved in float64: the norm of the second layer magnifies the rounding of the first.
    "soft levels": lambda *a, **o: soft(*a, num_layers=2, jk="cat", solve_dtype=torch.float64, **o),
    "ignn": lambda *a, **o: IGNN(*a, act="leaky_relu", hidden_channels=3, **o),
    "eignn": EIGNN,
    # Values that are too large fall by `least` in a phase, after a change in "follow".
    "max": lambda *a, **o: MaxGNN(*a, least=0.5, **o),
    "scarselli": ScarselliGNN,
    "gcn": lambda *a, **o: GCN(*a, num_layers=3, **o),
    "gat": lambda *a, **o: GAT(*a, num_layers=2, **o),
}
PICNN = ("edge", "node", "levels")
SOFT = ("soft", "soft levels")
STACKS = ("levels", "soft levels")
ENERGIES = (*PICNN, "gsd", *SOFT)
MAPS = ("ignn", "eignn", "max", "scarselli")
LAYERS = ("gcn", "gat")
BARE = ("ignn", "eignn", "gcn")
"""Models beside energies that agents run."""
SUMS = ("sum", "mean", "normalised", "heads", "averaged heads")
"""How a node sums up what it hears: option ``aggr``, ``normalize`` or ``heads``."""
SOFT_SUMS = {
    "sum": {"aggr": "sum", "max_degree": 2}, "mean": {"aggr": "mean"},
    "normalised": {"aggr": "symmetric"}, "heads": {"heads": 2},
}  # fmt: skip
"""The same of soft energies."""

OPTIONS = {
    "model": tuple(MODELS),
    "sums": SUMS,
    "edge_dim": (None, 2),
    "weights": (False, True),
    "replicas": (None, 2),
    "pool": (None, "mean"),
    "dtype": (torch.float64, torch.float32),
    "features": ("plain", "standardised"),
    "graph": ("simple", "loops", "parallel", "directed", "batch"),
}

IMPOSSIBLE = [
    {"model": tuple(m for m in MODELS if m not in (*PICNN, *SOFT)), "sums": SUMS[1:]},
    {"model": SOFT, "sums": ("averaged heads",)},
    {"model": ("gsd", "ignn", "eignn", "gcn"), "edge_dim": (2,)},
    {"model": ("node",), "sums": SUMS[:3], "edge_dim": (2,)},
    {"model": ("max", "gat"), "weights": (True,)},
]
"""What no constructor, or no ``model.embed``, accepts."""


def built(case, rng, most=6):
    """A model, and data for it. Standardised features have the statistics of other graphs."""
    torch.manual_seed(rng.randrange(10**6))
    sums = {
        "mean": {"aggr": "mean"}, "normalised": {"normalize": True}, "heads": {"heads": 2},
        "averaged heads": {"heads": 2, "concat": False},
    }.get(case["sums"], {})  # fmt: skip
    if case["model"] in SOFT:
        sums = SOFT_SUMS[case["sums"]]
    edges = {} if case["edge_dim"] is None else {"edge_dim": case["edge_dim"]}
    options = sums | edges | {"replicas": case["replicas"], "pool": case["pool"]}
    model = MODELS[case["model"]](3, out_channels=2, **options).to(case["dtype"]).eval()
    data = drawn(case, rng, most)
    if case["features"] == "standardised":
        model.standardize([drawn(case, rng, most), drawn(case, rng, most)])
    return model, data


def drawn(case, rng, most):
    """A graph, or a batch of graphs. One node is isolated."""
    if case["graph"] == "batch":
        return Batch.from_data_list([one(case, "simple", n, rng) for n in (3, 1, 4)])
    return one(case, case["graph"], rng.randint(4, most), rng)


def one(case, kind, n, rng):
    graph = random_graph([n], seed=rng.randrange(10**6))
    pairs = [(int(i), int(j)) for i, j in zip(graph.src, graph.dst, strict=True) if i < j]
    pairs += {"loops": [(0, 0), (n, n)], "parallel": [*pairs[:1] * 2, *pairs[-1:]]}.get(kind, [])
    both = [(i, j, s) for s, (i, j) in enumerate(pairs)]
    both += [(j, i, s) for i, j, s in both if i != j]
    both = both[:-2] if kind == "directed" else both
    rng.shuffle(both)
    scale, offset = (30.0, 100.0) if case["features"] == "standardised" else (1.0, 0.0)

    def numbers(*size):
        return (offset + scale * torch.randn(*size)).to(case["dtype"])

    edge_index = torch.tensor([e[:2] for e in both], dtype=torch.long).reshape(-1, 2).T.contiguous()
    data = Data(x=numbers(n + 1, 3), edge_index=edge_index)
    if case["edge_dim"] is not None:
        data.edge_attr = numbers(len(both), case["edge_dim"])
    if case["weights"]:  # of a pair, the same in both directions
        weight = 0.2 + 1.3 * torch.rand(len(pairs) + 1).to(case["dtype"])
        data.edge_weight = weight[torch.tensor([s for _, _, s in both], dtype=torch.long)]
    return data


def exact(model, data):
    """The answer in float64, on torch: of the features as the model encodes them."""
    inputs = model.encoded(Inputs.of(data)).to(torch.float64)
    double = copy.deepcopy(model).double()
    with on_torch():
        h = double.conv.embed(inputs).value
    return h, double.read(h, inputs)


# -- engines ---------------------------------------------------------------------------------------


def forward(model, data):
    given = (data.x, data.edge_index, data.edge_attr, data.batch)
    size = data.num_graphs if data.batch is not None else None
    return None, model(*given, edge_weight=data.get("edge_weight"), batch_size=size), 0.0


def embed(model, data):
    h = model.embed(data).value
    return h, model.read(h, Inputs.of(data)), 0.0


def by_torch(model, data):
    with on_torch():
        return embed(model, data)


def warm(model, data):
    """The second solve begins at the answer of other features."""
    many = isinstance(data, Batch)
    graphs = WarmStart.numbered(data.to_data_list() if many else [data])
    numbered = Batch.from_data_list(list(graphs)) if many else graphs[0]
    start, other = WarmStart(model), copy.copy(numbered)
    other.x = data.x.flip(0)
    start(other)
    h = start.embed(numbered).value
    return h, start(numbered), 0.0


def stream(model, data):
    live = Stream(model)
    live.update(earlier(data))
    return live.update(data).value, live.predict(data), 0.0


def earlier(data):
    """The same nodes with other features, and without the edges between two of them."""
    found, (src, dst) = copy.copy(data), data.edge_index
    keep = torch.ones_like(src, dtype=torch.bool)
    if src.numel():
        i, j = src[-1], dst[-1]
        keep = ~((src == i) & (dst == j) | (src == j) & (dst == i))
    found.x, found.edge_index = data.x.flip(0), data.edge_index[:, keep]
    for name in ("edge_attr", "edge_weight"):
        if data.get(name) is not None:
            found[name] = data[name][keep]
    return found


def simulated(rule, **options):
    """An asynchronous run, until it says that it is within its tolerance of the answer."""

    def engine(model, data):
        run = simulate(model, data, rule=rule, tol=1e-6, seed=1, **options)
        assert bool(run.converged.all()), run
        return run.h[0], run.predictions[0], run.tol

    return engine


def tracked(model, data):
    """A scenario that never changes."""
    return at_the_end(model, Scenario([data], length=600))


def following(model, data):
    """Other features and fewer edges first."""
    return at_the_end(model, Scenario([earlier(data), data], times=[0, 40], length=640))


def at_the_end(model, scenario):
    """The embeddings of a track that says that it has followed."""
    rule = "caching" if model.kind is Kind.EXPLICIT else "auto"
    run = track(model, scenario, rule=rule, keep_embeddings=True, every=20, seed=1)
    assert float(run.error[-1].max()) <= 1e-6 * float(run.answers[-1].abs().max()), run
    return run.embeddings[-1, 0], None, 1e-6


def cluster(workers, **options):
    """Parts in this process, with late and lost packets."""
    given = {"disorder": Disorder(seed=1, delay=1, loss=0.1) if workers > 1 else None} | options

    def engine(model, data):
        run = infer(model, data, workers, partition="search", tol=1e-6, **given)
        assert run.converged, run
        claim = run.error_bar.relative
        assert claim is None or claim <= 2e-6, run
        return run.h, run.prediction, 1e-5 if claim is None else claim  # no bound for other maps

    return engine


def agents(rule="auto", in_c=False, **options):
    """Agents of an exported file, on links that lose packets, until all say that they are settled.
    Every replica is a swarm of its own; every second agent runs in C where ``in_c``."""

    def engine(model, data):
        answers = [swarm(file, data) for file in exported(model, data)]
        return (*together(model, answers), 1e-6)

    def swarm(file, data):
        network = MemoryNetwork((0.0, 0.02), loss=0.05, seed=1)
        library = Library(file) if in_c else None
        model, given = node_models.of(file), {"rule": rule, "precision": "float64"} | options
        if in_c and "gradient" in model.rules:  # the only rule for energies in C
            given["rule"] = "gradient"
        everyone = []
        for i, x in enumerate(data.x.double().numpy()):
            here, near, clock = network.endpoint(str(i)), links(data, i), network.clock
            if in_c and i % 2:
                made = CAgent(library, x, here, clock, near, incarnation=i)
            else:
                made = Agent(model, str(i), x, here, neighbours=near, clock=clock, **given)
            everyone.append(made)
        while any(agent.calm < 1.0 for agent in everyone):
            network.now += 0.1
            assert network.now < 1000.0, [agent.calm for agent in everyone]
            for agent in everyone:
                agent.turn()
        assert not any(agent.read().silent for agent in everyone if isinstance(agent, Agent))
        h = np.stack([agent.h.ravel() for agent in everyone])
        return h, np.stack([model.predict(row) for row in h])

    return engine


def together(model, answers):
    """The answers of all replicas, as the model returns them."""
    stacked = [torch.from_numpy(np.stack(t)) for t in zip(*answers, strict=True)]
    return [t if model.replicas else t[0] for t in stacked]


def nodes_in_c(model, data):
    """Generated C without packets: all nodes hear the others and compute, in rounds."""
    answers = []
    for file in exported(model, data):
        library, told = Library(file), node_models.of(file).encode
        near = [links(data, i) for i in range(data.num_nodes)]
        degree = [1.0 + sum(edge.weight for edge in links.values()) for links in near]
        x = data.x.double().numpy()
        nodes = [CNode(library, row) for row in x]
        slots = [{int(j): s for s, j in enumerate(edges)} for edges in near]
        for i, edges in enumerate(near):
            for j, edge in edges.items():
                back = near[int(j)][str(i)].edge_attr
                known = told(x[int(j)]), degree[int(j)], edge.edge_attr, edge.weight, back
                assert nodes[i].join(slots[i][int(j)], Neighbour(*known))
        for _ in range(20_000):
            for i, node in enumerate(nodes):
                for j, slot in slots[i].items():
                    if (said := nodes[j].say(slots[j][i])) is not None:
                        node.hear(slot, said)
            for node in nodes:
                node.update()
            if max(node.residual for node in nodes) < 1e-9:
                break
        found = [(node.h, node.predict()) for node in nodes]
        answers.append(tuple(np.stack(t) for t in zip(*found, strict=True)))
    return (*together(model, answers), 1e-6)


def exported(model, data):
    """The files of all replicas."""
    for replica in [None] if model.replicas is None else range(model.replicas):
        with tempfile.TemporaryDirectory() as folder:
            export(model, Path(folder) / "model.hog", replica=replica, data=data)
            yield model_file.load(Path(folder) / "model.hog")


def links(data, i):
    """The links of one agent, by the names of its neighbours."""
    found = {}
    for e in (data.edge_index[1] == i).nonzero()[:, 0].tolist():
        attr = None if data.edge_attr is None else data.edge_attr[e].double().numpy()
        weight = 1.0 if data.get("edge_weight") is None else float(data.edge_weight[e])
        found[str(int(data.edge_index[0, e]))] = Edge(edge_attr=attr, weight=weight)
    return found


ENGINES = {
    "forward": forward,
    "compiled": embed,
    "torch": by_torch,
    "warm": warm,
    "stream": stream,
    "messages": simulated("messages"),
    "gradient": simulated("gradient"),
    "balls": simulated("balls"),
    "fixed-point": simulated("fixed-point"),
    "caching": simulated("caching"),
    "resending": simulated("resending"),
    "in step": simulated("overwriting", stagger=1, delay=0),
    "track": tracked,
    "follow": following,
    "one part": cluster(1),
    "parts": cluster(3),
    "agents": agents(),
    "agents with balls": agents("balls"),
    "C": nodes_in_c,
}
LONG = {
    "small balls": simulated("balls", radius=1),
    "agents by gradient": agents("gradient"),
    "agents with small balls": agents("balls", radius=1),
    "agents in C": agents(in_c=True),
}
"""Engines that take long: they run in the slow part only."""
EVERY = ENGINES | LONG | {"actors": cluster(2, disorder=None)}

# -- what is refused -------------------------------------------------------------------------------

STEPS = ("messages", "gradient")
BALLS = ("balls", "small balls")
ROUNDS = ("caching", "resending", "in step")
TRACKS = ("track", "follow")
PARTS = ("one part", "parts")
AGENTS = ("agents", "agents with balls", "C", "agents by gradient", "agents with small balls",
          "agents in C")  # fmt: skip

WITH_NAMES = tuple(name for name in AGENTS if name != "C")
UNFIT, ONE_WAY = "does not fit this model", "no reverse link"
REFUSED = [
    ({"engine": ("warm",), "model": LAYERS}, "solves nothing; expected a model whose solves"),
    ({"engine": STEPS, "model": (*MAPS, *LAYERS)}, f"{UNFIT}|has no step size"),
    ({"engine": BALLS, "model": LAYERS}, UNFIT),
    ({"engine": ("fixed-point",), "model": (*ENERGIES, *LAYERS)}, f"{UNFIT}|{ONE_WAY}"),
    ({"engine": ROUNDS, "model": (*ENERGIES, *MAPS)}, f"{UNFIT}|{ONE_WAY}"),
    ({"engine": (*STEPS, *TRACKS), "model": ENERGIES, "graph": ("directed",)}, ONE_WAY),
    ({"engine": (*BALLS, "resending"), "graph": ("directed",)}, ONE_WAY),
    ({"engine": BALLS, "model": STACKS}, "a stack of several layers"),
    ({"engine": TRACKS, "replicas": (2,)}, "expected a model of one parameter set"),
    ({"engine": PARTS, "model": (*STACKS, *LAYERS)}, "expected one implicit layer"),
    ({"engine": PARTS, "graph": ("batch",)}, "a batch of 3 graphs; expected one graph"),
    ({"engine": AGENTS, "model": (*STACKS, "max", "scarselli", "gat")}, "without torch"),
    ({"engine": AGENTS, "pool": ("mean",)}, "a node knows only itself and its neighbours"),
    ({"engine": WITH_NAMES, "graph": ("loops",)}, "agent 0 is its own neighbour"),
    ({"engine": ("agents by gradient",), "model": BARE}, UNFIT),
    ({"engine": ("agents with balls", "agents with small balls"), "model": ("gcn",)},
     UNFIT),
    ({"engine": ("parts", *AGENTS), "model": ("soft",), "sums": ("heads",)},
     "needs the whole graph|a node hears the features of its own neighbours only"),
    ({"engine": (*STEPS, *BALLS, *ROUNDS, *TRACKS, "fixed-point"), "model": ("soft levels",),
      "sums": ("heads",)},
     "attention of a layer above the first"),
    ({"engine": ("C", "agents in C"), "model": ("gcn",)}, "cannot be written in C"),
]  # fmt: skip
"""What an engine refuses, and words of the error."""

INEXPRESSIBLE = [
    # An agent has links, which go both ways, and one to each neighbour.
    {"engine": AGENTS, "graph": ("parallel", "directed")},
]
"""What cannot be asked of an engine."""


# -- cases -----------------------------------------------------------------------------------------


def holds(row, case):
    """Whether a row is about a case; a case may lack options that are not chosen yet."""
    return all(name in case and case[name] in values for name, values in row.items())


def covering(engines, seed):
    """Cases that are answered, such that every pair of options that can be occurs in one."""
    axes = {"engine": tuple(engines)} | OPTIONS
    never = [*IMPOSSIBLE, *INEXPRESSIBLE, *(row for row, _ in REFUSED)]
    rng = random.Random(seed)
    pairs = [
        frozenset({(a, u), (b, v)})
        for a, b in itertools.combinations(axes, 2)
        for u, v in itertools.product(axes[a], axes[b])
        if not any(holds(row, {a: u, b: v}) for row in never)
    ]
    left = dict.fromkeys(rng.sample(pairs, len(pairs)))
    cases = []
    while left:
        pair = next(iter(left))
        tries = [finished(dict(pair), axes, never, left, rng) for _ in range(10)]
        found = max((case for case in tries if case), key=lambda c: gain(c, left), default=None)
        if found is not None:
            cases.append(found)
        for done in [p for p in left if p == pair or (found and p <= found.items())]:
            del left[done]
    return cases


def gain(case, left):
    """How many pairs are new."""
    return sum(frozenset(pair) in left for pair in itertools.combinations(case.items(), 2))


def finished(case, axes, never, left, rng):
    """A case with all options; ``None``: none was found."""
    for name in rng.sample(list(axes), len(axes)):
        if name in case:
            continue
        fit = [v for v in axes[name] if not any(holds(r, case | {name: v}) for r in never)]
        if not fit:
            return None
        new = [sum(frozenset({(name, v), had}) in left for had in case.items()) for v in fit]
        case[name] = rng.choice([v for v, n in zip(fit, new, strict=True) if n == max(new)])
    return {name: case[name] for name in axes}


def refusals(engines, seed):
    """A case for every engine and option that is refused, with nothing else that is."""
    axes, rng, cases = {"engine": tuple(engines)} | OPTIONS, random.Random(seed), []
    for row, words in REFUSED:
        kept = {k: [v for v in axes[k] if v in values] for k, values in row.items()}
        others = [*IMPOSSIBLE, *INEXPRESSIBLE, *(r for r, _ in REFUSED if r is not row)]
        for values in itertools.product(*kept.values()):
            chosen = dict(zip(kept, values, strict=True))
            tries = (finished(dict(chosen), axes, others, {}, rng) for _ in range(50))
            found = next((case for case in tries if case), None)
            if found is not None:  # else other rows refuse all such cases
                cases.append((found, words))
    return cases


def name(case):
    return "-".join(str(value).removeprefix("torch.") for value in case.values())


def named(cases):
    return [pytest.param(case, id=name(case)) for case in cases]


# -- tests -----------------------------------------------------------------------------------------


def answered(case, seed=0, most=6):
    """Assert that an engine's answer is within its own claim of the exact answer."""
    if CC is None and "C" in case["engine"]:
        pytest.skip("there is no C compiler")
    model, data = built(case, random.Random(f"{name(case)} {seed}"), most)
    with torch.no_grad():
        exact_h, exact_y = exact(model, data)
        h, y, claim = EVERY[case["engine"]](model, data)
    # Solvers end at residuals of 1e-8; numbers of float32 are rounded in features and readouts.
    tol = claim + (1e-6 if case["dtype"] == torch.float64 else 1e-5)
    size = float(exact_h.abs().max())
    if h is not None:
        torch.testing.assert_close(h.double(), exact_h, rtol=0, atol=tol * size)
    if y is not None:
        torch.testing.assert_close(y.double(), exact_y, rtol=0, atol=10 * tol * max(size, 1.0))


@pytest.mark.parametrize("case", named(covering(ENGINES, seed=0)))
def test_answers(case):
    answered(case)


@pytest.mark.parametrize(
    ("case", "words"), [pytest.param(*c, id=name(c[0])) for c in refusals(ENGINES, seed=0)]
)
def test_refusals(case, words):
    refused(case, words)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["edge", "node", "gsd", "ignn"])
def test_actors(model):
    """Two parts in processes of their own."""
    pytest.importorskip("ray")
    case = dict(zip(OPTIONS, (model, "sum", None, True, 2, None), strict=False))
    case |= {"dtype": torch.float32, "features": "standardised", "graph": "simple"}
    answered({"engine": "actors"} | case)


def refused(case, words):
    """Assert that an engine refuses a case with these words."""
    if CC is None and "C" in case["engine"]:
        pytest.skip("there is no C compiler")
    model, data = built(case, random.Random(name(case)))
    with pytest.raises((HogwildError, SetupError, ModelFileError), match=words), torch.no_grad():
        EVERY[case["engine"]](model, data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_more(seed):
    """Other cases, graphs and parameters. All failures are told together."""
    failed = []
    for case in covering(ENGINES | LONG, seed):
        try:
            answered(case, seed, most=10)
        except Exception as error:  # of any kind: the next cases are of other engines
            failed.append(f"{name(case)}: {type(error).__name__}: {error}")
    assert not failed, "\n\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"), [pytest.param(*c, id=name(c[0])) for c in refusals(LONG, seed=0)]
)
def test_more_refusals(case, words):
    refused(case, words)
