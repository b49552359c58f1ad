"""A graph and a model from the command line."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from hogwild import EnergyGNN, simulate
from hogwild.asynchrony.trace import Trace
from hogwild.errors import ConfigError, TraceError
from hogwild.web.given import Given, fitted, layout
from hogwild.web.home import from_pair, hello, home
from hogwild.web.stage import Stage


def case(n=6, **more):
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=1.0).double().eval()
    return model, Data(x=torch.randn(n, 3, **DOUBLE), edge_index=chain(n), **more)


def test_a_given_graph_keeps_its_places_and_its_nodes():
    model, data = case(pos=torch.tensor([[0.0, 0.0], [10.0, 5.0]]).repeat(3, 1))
    given = Given(model, data, "mine")
    assert given.position.min() >= 0.0
    assert given.position.max() <= 1.0
    alive = np.arange(6) != 2
    left = given.data(alive)
    assert left.node_id.tolist() == [0, 1, 3, 4, 5]
    assert torch.equal(left.x, data.x[torch.from_numpy(alive)])
    assert "node_id" not in data  # the graph itself is as it was
    with pytest.raises(ConfigError, match="expected 2 to 2000"):
        Given(model, Data(x=torch.zeros(1, 3), edge_index=torch.zeros(2, 0).long()), "one")


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


def test_a_recorded_schedule_is_shown_first_and_must_belong_to_the_graph(tmp_path):
    model, data = case()
    simulate(model, data, runs=1, record=tmp_path / "trace.npz")
    trace = Trace.load(tmp_path / "trace.npz")
    given = Given(model, data, "mine", rules=("messages", "gradient"))
    found = home(given, str(tmp_path / "trace.npz"))
    assert next(iter(hello(given)["tasks"])) == "given"
    stage = found.open(lambda: None).stage
    with torch.no_grad():
        stage.begin()
        scene = stage.scene()
        assert scene["mode"] == "replay"
        assert scene["recorded"] == len(trace.ticks)
        assert [side["rule"] for side in scene["sides"]] == ["messages", "gradient"]
        while not stage.sides[0].over:
            stage.sides[0].step()
        assert stage.sides[0].look().error <= 1e-6  # it was recorded until then
        stage.do_live()
        assert stage.scene()["mode"] == "live"
        with pytest.raises(Exception, match="do not follow from places"):
            stage.do_move(0, 0.5, 0.5)
        stage.do_node(0, False)
        assert stage.scene()["dead"] == [0]
    other = Given(model, case(5)[1], "other")
    with pytest.raises(TraceError, match="another graph"):
        home(other, str(tmp_path / "trace.npz"))


def test_the_worlds_of_the_page_are_there_beside_a_given_one():
    model, data = case()
    stage = Stage(Given(model, data, "mine"))
    with torch.no_grad():
        stage.begin()
        stage.do_world("field", 12, 0)
        assert [side["model"] for side in stage.scene()["sides"]] == ["energy", "gcn"]
        stage.do_world("given", 12, 0)
        assert stage.scene()["sides"][0]["title"] == "Your model"
        with pytest.raises(Exception, match="was not trained for this task"):
            stage.do_side(0, "gcn", "auto")


def test_a_model_in_training_mode_is_shown_in_evaluation_mode():
    """As ``simulate`` runs it; the user's model stays as it is."""
    model = pyg.GCN(3, 8, 2, 1, norm="BatchNorm", dropout=0.5)
    data = Data(x=torch.randn(4, 3), edge_index=chain(4))
    given = from_pair(model, data, "mine")
    assert not any(part.training for part in given.model.modules())
    assert model.training
