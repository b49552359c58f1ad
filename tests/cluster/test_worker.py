"""When a part waits for mail."""

import torch
from cluster_parts import workers

from hogwild import GSDGNN, Inputs
from hogwild.cluster.worker import ANSWER, WAIT, Mail
from hogwild.testing import random_graph


def pair(took):
    """One of two parts that read each other; its last update took so many seconds."""
    torch.manual_seed(0)
    graph = random_graph([12], seed=0)
    x = torch.randn(12, 2, dtype=torch.float64)
    inputs = Inputs(x, torch.stack([graph.src, graph.dst]))
    problem = GSDGNN(2, out_channels=1).double().problem(inputs).detach()
    one, two = workers(problem, torch.arange(12) % 2, 2)[0]
    assert one.update()
    one.took = took
    return one, two


def heard(one, two, seconds, answers=None):
    """Mail of a part whose updates take so many seconds."""
    two.update()
    packet = two.outgoing(one.number).packet
    assert one.receive(two.number, Mail(two.version, answers, seconds, packet))


def test_a_part_waits_for_mail_of_an_equal():
    one, two = pair(took=1.0)
    assert one.expects(0.5 * WAIT)
    assert not one.expects(1.1 * WAIT)
    heard(one, two, 1.0)
    assert not one.expects(0.0)  # its mail is there


def test_a_part_waits_for_no_straggler():
    one, two = pair(took=1.0)
    heard(one, two, 10.0)
    one.update()
    one.took = 1.0
    assert not one.expects(0.0)


def test_a_slow_part_waits_for_answers():
    one, two = pair(took=10.0)
    heard(one, two, 1.0)
    assert one.expects(5.0 * ANSWER)
    assert not one.expects(11.0 * ANSWER)
    heard(one, two, 1.0, answers=one.version)
    assert not one.expects(0.0)


def test_a_slow_part_with_an_overlap_begins_at_once(monkeypatch):
    one, two = pair(took=10.0)
    heard(one, two, 1.0)
    monkeypatch.setattr(type(one.work), "waits", True)
    assert not one.expects(0.0)
