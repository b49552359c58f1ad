"""Models and graphs for tests of clusters, workers for tests that look at single packets, and how
far a run on parts is from the exact answer."""

import copy
from contextlib import contextmanager
from dataclasses import replace

import torch
from kernel_cases import on_torch
from torch_geometric.data import Data

from hogwild import EIGNN, GSDGNN, IGNN, EnergyGNN, Inputs, ScarselliGNN, SoftEnergyGNN
from hogwild.cluster.setup import Place, prepared
from hogwild.cluster.worker import Disorder
from hogwild.testing import random_graph

MODELS = {
    "energy": lambda **kw: EnergyGNN(3, out_channels=2, hidden_channels=3, **kw),
    "energy-node": lambda **kw: EnergyGNN(3, out_channels=2, message="node", normalize=True, **kw),
    "energy-attention": lambda **kw: EnergyGNN(3, out_channels=2, heads=2, edge_dim=2, **kw),
    "gsd": lambda **kw: GSDGNN(3, out_channels=2, **kw),
    "soft": lambda **kw: SoftEnergyGNN(3, out_channels=2, hidden_channels=4, norm="layer", **kw),
    "ignn": lambda **kw: IGNN(3, out_channels=2, hidden_channels=4, act="tanh", **kw),
    "eignn": lambda **kw: EIGNN(3, out_channels=2, hidden_channels=4, **kw),
    "scarselli": lambda **kw: ScarselliGNN(3, out_channels=2, **kw),
}


def case(name, sizes=(12, 1, 5), *, seed=0, scale=1.0, shift=0.0, dtype=torch.float64, **options):
    """A model and a graph; features have this scale and shift."""
    torch.manual_seed(seed)
    graph = random_graph(list(sizes), seed=seed)
    n = graph.num_nodes

    def drawn(*shape):
        return (scale * torch.randn(*shape, dtype=torch.float64) + shift).to(dtype)

    data = Data(
        x=drawn(n, 3), edge_index=torch.stack([graph.src, graph.dst]),
        y=torch.randn(n, 2, dtype=dtype), train_mask=torch.rand(n) < 0.6,
    )  # fmt: skip
    model = MODELS[name](**options).to(dtype)
    if model.edge_dim is not None:
        data.edge_attr = drawn(data.num_edges, 2)
    return model, data


@contextmanager
def pair(folder):
    """Two workers that read each other, and a function that makes one again."""
    model, data = case("gsd", [12])
    place = Place(folder=folder, partition="search", overlap=0, disorder=Disorder())
    with prepared(model, data, 2, place) as setup:
        engine = setup.executor(1e-10, checkpoints=True)
        engine.call("start")
        yield *engine.workers, engine.revive


def exact(model, data):
    """The exact embeddings for the features as the model standardises them, in float64."""
    twin, inputs = copy.deepcopy(model).double(), model.encoded(Inputs.of(data))
    twin.conv.solver = replace(twin.conv.solver, atol=1e-14)
    twin.conv.on_failure, twin.conv.solve_dtype = "ignore", torch.float64
    with torch.no_grad(), on_torch():
        return twin.conv.embed(inputs.to(torch.float64)).value


def distance(run, model, data):
    """From the exact embeddings, in the norm of the error bar; of the worst replica."""
    gap = run.h.double() - exact(model, data)
    if "largest" in run.error_bar.norm:
        return float(gap.abs().max())
    return float(gap.flatten(-2).norm(dim=-1).max())
