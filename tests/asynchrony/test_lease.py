"""Leases: what nodes believe while neighbours are gone."""

import torch
from motion import joining, ring

from hogwild import Scenario
from hogwild.asynchrony.moving import believed


def named(frame, edges=None):
    ends = frame.ids[frame.data.edge_index if edges is None else edges]
    return {tuple(e) for e in ends.T.tolist()}


def test_without_a_lease_nodes_believe_the_truth():
    scenario = joining()
    assert believed(scenario, 0) == scenario.frames


def test_what_is_gone_stays_for_a_lease():
    scenario = joining()
    frames = believed(scenario, 5)
    assert [frame.time for frame in frames] == [0, 12, 17]
    first, held, last = frames
    truth = scenario.frames[1]
    assert named(first) == named(scenario.frames[0])
    assert named(last) == named(truth)
    assert last.silent is None
    lost = {(1, 2), (2, 1), (2, 3), (3, 2), (5, 0), (0, 5)}
    assert named(held) == named(truth) | lost
    assert named(held, held.data.edge_index[:, held.silent]) == lost
    assert held.gone == 1
    assert held.ids.tolist() == [*truth.ids.tolist(), 2]
    torch.testing.assert_close(held.data.x[-1], scenario.frames[0].data.x[2])


def test_a_link_that_is_back_in_time_was_never_gone():
    whole, broken = ring([0, 1, 2, 3]), ring([0, 1, 2, 3])
    broken.edge_index = broken.edge_index[:, 2:]
    frames = believed(Scenario([whole, broken, whole.clone()], [0, 10, 14], length=30), 5)
    assert [frame.time for frame in frames] == [0, 10, 14]
    assert frames[1].silent.sum() == 2
    assert [frame.silent for frame in frames[2:]] == [None]
