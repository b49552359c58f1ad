"""Scenarios: identities, times, and what is refused."""

import pytest
import torch
from motion import joining, ring
from torch_geometric.data import Data

from hogwild import Scenario
from hogwild.asynchrony.moving import Change, Frame, Register
from hogwild.errors import ScenarioError


def test_a_function_of_time_is_asked_every_so_many_ticks():
    asked = []

    def at(t):
        asked.append(t)
        data = ring([0, 1, 2])
        data.x = data.x + t
        return data

    scenario = Scenario(at, length=25, every=10)
    assert asked == scenario.times == [0, 10, 20]
    assert scenario.at(19).time == 10
    assert scenario.length == 25
    with pytest.raises(ScenarioError, match="tick 25 was asked for; expected 0 to 24"):
        scenario.at(25)


def test_the_last_frame_lasts_as_long_as_the_one_before():
    assert Scenario([ring([0, 1])] * 3, [0, 10, 40]).length == 70


def test_identities_in_order_of_appearance():
    assert joining().ids.tolist() == [0, 1, 2, 3, 4, 5, 9]


def wrong(change, time=30):
    """A scenario with a second frame that is changed."""
    data = ring([0, 1, 2, 3])
    change(data)
    return [ring([0, 1, 2, 3]), data], [0, time]


def put(**values):
    return lambda data: [data.__setattr__(name, value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(x=torch.zeros(4, 2).double()), r"at tick 30: x is 2 wide \(float64\), and 3 wide"),
        (put(x=torch.zeros(4, 3)), r"at tick 30: x is 3 wide \(float32\), and 3 wide \(float64\)"),
        (put(edge_attr=torch.zeros(8, 1)), "at tick 30: edge_attr is 1 wide .* and missing at"),
        (
            put(edge_index=torch.tensor([[0, 1], [1, 4]])),
            "at tick 30: edge_index names nodes 0 to 4; expected 0 to 3",
        ),
        (put(node_id=torch.tensor([0, 1, 1, 3])), "at tick 30: two nodes have the node_id 1"),
        (put(node_id=torch.tensor([0, 1])), r"at tick 30: node_id is .* of shape \[2\]"),
        (put(node_id=None), "at tick 30: the frame has 4 nodes and no node_id"),
        (put(x=torch.full((4, 3), torch.nan).double()), "at tick 30: x holds NaN"),
        (put(x=torch.zeros(0, 3).double()), "at tick 30: the graph has no nodes"),
        (put(edge_weight=torch.ones(3)), "at tick 30: edge_weight is one number wide"),
    ],
)
def test_bad_frames_are_refused_with_the_moment_and_the_reason(change, message):
    with pytest.raises(ScenarioError, match=message):
        Scenario(*wrong(change), length=50)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 0], "frame 1 begins at 0, and the frame before at 0; expected ticks"),
        ([5, 6], "frame 0 begins at 5; expected .* the first of them 0"),
        ([0], "2 frames and 1 times were given"),
        ([0, 1.5], "frame 1 begins at 1.5, .* expected ticks, integers"),
        ([0, 60], "length=50, and the last frame begins at tick 60"),
    ],
)
def test_bad_times_are_refused(times, message):
    with pytest.raises(ScenarioError, match=message):
        Scenario([ring([0, 1])] * 2, times, length=50)


def test_other_mistakes_are_refused():
    with pytest.raises(ScenarioError, match="no frame"):
        Scenario([], [], length=3)
    with pytest.raises(ScenarioError, match="a single frame needs length"):
        Scenario(ring([0, 1]))
    with pytest.raises(ScenarioError, match="a function of time needs length"):
        Scenario(lambda t: ring([0, 1]))
    with pytest.raises(ScenarioError, match="at tick 0: the frame is a str"):
        Scenario(["data"], [0], length=3)


def test_nodes_and_edges_keep_their_numbers():
    """By identity; and parallel edges have numbers of their own."""
    register = Register()
    for ids, edges, nodes, numbers in (
        ([7, 3, 9], [[0, 0, 1, 0], [1, 1, 0, 1]], [0, 1, 2], [0, 1, 2, 3]),
        ([9, 1, 3], [[2, 0, 0], [0, 2, 1]], [2, 3, 1], [4, 5, 6]),
        ([3, 7], [[1, 0], [0, 1]], [1, 0], [0, 2]),
    ):
        names = register.names(Frame(0, Data(edge_index=torch.tensor(edges)), torch.tensor(ids)))
        assert names.nodes.tolist() == nodes
        assert names.edges.tolist() == numbers


def test_what_stays_and_what_is_new():
    before, after = joining().frames
    register = Register()
    names = register.names(before), register.names(after)
    change = Change.between(before, after, names)
    here, there = change.kept.nodes
    assert after.ids[here].tolist() == before.ids[there].tolist() == [0, 1, 3, 4, 5]
    ends = after.ids[after.data.edge_index]
    new = {tuple(e) for e in ends[:, change.fresh].T.tolist()}
    assert new == {(0, 9), (9, 0), (9, 5), (5, 9), (1, 3), (3, 1), (1, 4), (4, 1)}
    # All but node 9 stay; but every node has lost or won a neighbour, or has one that changed.
    assert change.kept.same[0].numel() == 0
    assert change.hello.all()
    assert not change.nothing


def test_only_what_is_touched_changes():
    before = ring(list(range(8)))
    after = ring(list(range(8)))
    after.x[0] += 1.0
    scenario = Scenario([before, after, after.clone()], [0, 1, 2], length=3)
    register = Register()
    names = [register.names(frame) for frame in scenario]
    change = Change.between(*scenario.frames[:2], names[:2])
    assert change.kept.same[0].tolist() == [2, 3, 4, 5, 6]
    assert change.hello.tolist() == [True] + 7 * [False]
    assert not change.fresh.any()
    assert Change.between(*scenario.frames[1:], names[1:]).nothing
