"""A part solves the problem that the model builds, whatever the model and whoever solves."""

import pytest
import torch
from cluster_exact import distance
from torch_geometric.data import Data

from hogwild import GSDGNN, IGNN, EnergyGNN
from hogwild.cluster import Disorder, infer
from hogwild.testing import random_graph

MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2),
    "replicas": lambda: EnergyGNN(3, out_channels=2, replicas=2, normalize=True),
    "edges": lambda: EnergyGNN(3, out_channels=2, edge_dim=2, aggr="mean"),
    "heads": lambda: EnergyGNN(3, out_channels=2, edge_dim=2, heads=2, replicas=2),
    "gsd": lambda: GSDGNN(3, out_channels=2, replicas=2),
    "ignn": lambda: IGNN(3, out_channels=2, hidden_channels=4, act="leaky_relu"),
}
ENERGIES = ("energy", "replicas", "edges", "heads")


def unscaled(name, seed, standardised, dtype):
    """A model and a graph with features of any scale; replicas have statistics of their own."""
    torch.manual_seed(seed)
    graph, model = random_graph([9, 1, 2], seed=seed), MODELS[name]().double()

    def features(rows, width):
        return 30.0 * torch.randn(rows, width, dtype=torch.float64) + 100.0

    data = Data(x=features(12, 3), edge_index=torch.stack([graph.src, graph.dst]))
    if model.edge_dim is not None:
        data.edge_attr = features(data.num_edges, 2)
    if standardised:
        two = [data, Data(x=0.2 * data.x, edge_attr=data.edge_attr)]
        model.features.fit(two, None if model.replicas is None else torch.eye(2).bool())
    return model.to(dtype).eval(), data.apply(lambda t: t.to(dtype) if t.is_floating_point() else t)


CASES = [(n, large, s) for n in MODELS for large in (1, 10**9)[n not in ENERGIES :] for s in (0, 1)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("name", "large", "standardised"), CASES)
def test_every_way_to_the_answer(name, large, standardised, dtype, workers, monkeypatch):
    monkeypatch.setattr("hogwild.cluster.host.LARGE", large)
    model, data = unscaled(name, 0, standardised, dtype)
    disorder, tol = Disorder(seed=1, delay=2) if workers > 1 else None, 1e-6
    run = infer(model, data, workers, tol=tol, partition="search", disorder=disorder)
    assert run.converged
    assert run.h.dtype == dtype
    assert distance(run, model, data) <= run.error_bar.error
    assert run.error_bar.relative <= 1.2 * tol
    with torch.no_grad():
        expected = model.embed(data).value
    assert float((run.h - expected).norm() / expected.norm()) <= 2.0 * tol
