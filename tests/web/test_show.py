"""The page from Python, and a graph and a model of the user's own on it."""

import asyncio
import urllib.request

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.errors import AsynchronyError, ConfigError, HogwildError
from hogwild.web.show import from_pair, hello, show
from hogwild.web.stage import Stage
from hogwild.web.worlds import UserWorld, fitted, layout


def case(n=4, outputs=1, **more):
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=outputs, beta=1.0).double().eval()
    return model, Data(x=torch.randn(n, 3, **DOUBLE), edge_index=chain(n), **more)


def test_a_notebook_goes_on_beside_the_page(capsys):
    """A notebook's cells run in an event loop; two pages may be shown at once."""

    async def cell():
        return show(*case(), port=0), show(*case(), port=0)

    for where in asyncio.run(cell()):
        with urllib.request.urlopen(where, timeout=30) as page:
            assert "<h1>" in page.read().decode()
    assert capsys.readouterr().err.count("ends with this program") == 2


def test_what_cannot_be_shown_is_refused():
    model, data = case()
    with pytest.raises(ConfigError, match=r"the graph is a Tensor; expected one torch_geometric"):
        show(model, data.x)
    with torch.no_grad():
        next(model.readout.parameters()).fill_(float("nan"))
    with pytest.raises(ConfigError, match="the model answers NaN or infinity"):
        show(model, data)
    with pytest.raises(ConfigError, match="expected a row for every node"):
        show(EnergyGNN(3, out_channels=1, pool="mean").double(), data)
    one_way = Data(x=data.x, edge_index=data.edge_index[:, data.edge_index[0] < data.edge_index[1]])
    with pytest.raises(AsynchronyError, match="edges have no reverse link"):
        show(EnergyGNN(3, out_channels=1).double(), one_way)


def test_a_given_graph_keeps_its_places_and_its_nodes():
    model, data = case(6, 2, pos=torch.tensor([[0.0, 0.0], [10.0, 5.0]]).repeat(3, 1))
    given = UserWorld(model, data, "mine")
    assert given.position.min() >= 0.0
    assert given.position.max() <= 1.0
    alive = np.arange(6) != 2
    left = given.data(alive)
    assert left.node_id.tolist() == [0, 1, 3, 4, 5]
    assert torch.equal(left.x, data.x[torch.from_numpy(alive)])
    assert "node_id" not in data  # the graph itself is as it was
    with pytest.raises(ConfigError, match="expected 2 to 2000"):
        UserWorld(model, Data(x=torch.zeros(1, 3), edge_index=torch.zeros(2, 0).long()), "one")


def test_layouts_show_what_is_near():
    i = np.arange(30)
    line = layout(np.stack([np.r_[i[:-1], i[1:]], np.r_[i[1:], i[:-1]]]), 30)
    apart = np.linalg.norm(line[:, None] - line, axis=-1)
    assert np.diagonal(apart, 1).max() < 0.3  # neighbours
    assert apart[np.triu_indices(30, 1)].min() > 0.01  # no two at one place
    assert (line >= 0).all()
    assert (line <= 1).all()
    apart_graphs = layout(np.array([[0, 1, 2, 3], [1, 0, 3, 2]]), 4)  # two that do not touch
    assert np.isfinite(apart_graphs).all()
    np.testing.assert_allclose(fitted(np.zeros((3, 2))), 0.5)


def test_the_worlds_of_the_page_are_there_beside_a_given_one():
    model, data = case(6, 2)
    given = UserWorld(model, data, "mine", rules=("messages", "gradient"))
    assert next(iter(hello(given)["tasks"])) == "given"
    stage = Stage(given)
    with torch.no_grad():
        stage.begin()
        assert [side["rule"] for side in stage.scene()["sides"]] == ["messages", "gradient"]
        with pytest.raises(HogwildError, match="do not follow from places"):
            stage.do_move(0, 0.5, 0.5)
        stage.do_node(0, False)
        assert stage.scene()["dead"] == [0]
        stage.do_world("field", 12, 0)
        assert [side["model"] for side in stage.scene()["sides"]] == ["energy", "gcn"]
        stage.do_world("given", 12, 0)
        assert stage.scene()["sides"][0]["title"] == "Your model"
        with pytest.raises(HogwildError, match="was not trained for this task"):
            stage.do_side(0, "gcn", "auto")


def test_a_model_in_training_mode_is_shown_in_evaluation_mode():
    """As ``simulate`` runs it; the user's model stays as it is."""
    model = pyg.GCN(3, 8, 2, 1, norm="BatchNorm", dropout=0.5)
    data = Data(x=torch.randn(4, 3), edge_index=chain(4))
    given = from_pair(model, data, "mine")
    assert not any(part.training for part in given.model.modules())
    assert model.training
