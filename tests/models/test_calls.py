"""The arguments of a user's forward, and the data that they are taken from."""

import pytest
import torch
import torch_geometric.nn as pyg
from users_models import Relations, graphs

from hogwild import simulate, wrap
from hogwild.errors import ConfigError, InputError


def test_arguments_are_those_of_the_data_unless_they_are_named():
    torch.manual_seed(0)
    data, model = graphs(), pyg.GCN(3, 8, 2, 2).double().eval()
    with torch.no_grad():
        plain = model(data.x, data.edge_index)
        weighted = model(data.x, data.edge_index, edge_weight=data.edge_weight)
        other = (
            model(data.x, data.edge_index, edge_weight=data.length) if "length" in data else None
        )
    assert other is None
    assert float((plain - weighted).abs().max()) > 1e-3
    for arguments, expected in (
        (None, weighted),
        (["x", "edge_index"], plain),
        (["x", "edge_index", "edge_weight"], weighted),
        ({"x": "x", "edge_index": "edge_index", "edge_weight": "edge_weight"}, weighted),
    ):
        run = simulate(wrap(model, arguments=arguments), data, tol=1e-13)
        torch.testing.assert_close(run.predictions[0], expected, rtol=0, atol=1e-12)
    data.edge_attr, data.edge_weight = data.edge_weight, None
    chosen = {"x": "x", "edge_index": "edge_index", "edge_weight": "edge_attr"}
    run = simulate(wrap(model, arguments=chosen), data, tol=1e-13)
    torch.testing.assert_close(run.predictions[0], weighted, rtol=0, atol=1e-12)


def test_what_is_missing_or_does_not_fit_is_named():
    data = graphs()
    with pytest.raises(ConfigError, match=r"arguments=\['x'\].*needs edge_index, x"):
        wrap(pyg.GCN(3, 8, 2), arguments=["x"])
    with pytest.raises(ConfigError, match=r"arguments=\['x', 'edge_index', 'e'\]; expected names"):
        wrap(pyg.GCN(3, 8, 2), arguments=["x", "edge_index", "e"])
    model = Relations(a=pyg.RGCNConv(3, 8, 3), b=pyg.RGCNConv(8, 2, 3)).double()
    data.edge_type = None
    with pytest.raises(InputError, match=r"Relations.forward needs edge_type"):
        simulate(model, data)
    pna = pyg.PNA(3, 8, 2, aggregators=["mean"], scalers=["identity"], deg=torch.tensor([1, 3]))
    with pytest.raises(InputError, match=r"trained without edge_attr .*arguments=\['x', 'edge_ind"):
        simulate(pna.double(), data)
    with pytest.raises(InputError, match=r"GCN.forward raises .*x \[16, 3\] torch.float64"):
        simulate(pyg.GCN(3, 8, 2), data)
    for head in (3, "mean"):
        with pytest.raises(ConfigError, match=f"head is a {type(head).__name__}"):
            wrap(pyg.GCN(3, 8, 2), head)
