"""Traces: kept on disk, replayed, and checked independently."""

import pytest
import torch
from helpers import record

from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import TraceError
from hogwild.testing import check_trace
from hogwild.testing.problems import random_graph


def test_a_trace_can_be_saved_and_refuses_other_graphs(tmp_path):
    graph = random_graph([6, 7], seed=1)
    impairments = [BernoulliLoss(0.3), Crashes(0.5, rejoin="cold", period=30, downtime=10)]
    trace = record(Schedule(graph, impairments=impairments), 60)
    path = trace.save(tmp_path / "deep" / "trace.npz")
    again = Trace.load(path)
    assert [p.name for p in path.parent.iterdir()] == ["trace.npz"]  # nothing half-written
    replay = Replay(again, graph)
    for tick in trace.ticks:
        other = replay.tick(tick.time)
        for name in ("view", "fetched", "lost", "reset"):
            a, b = getattr(tick, name), getattr(other, name)
            if b is None:  # a mask that says nothing is written as no mask
                assert a is None or bool(a.all() if name == "fetched" else ~a.any())
            else:
                assert torch.equal(a, b)
        assert torch.equal(tick.at.nodes, other.at.nodes)
        assert torch.equal(tick.at.edges, other.at.edges)
    with pytest.raises(TraceError, match="ends at tick 59"):
        replay.tick(60)
    with pytest.raises(TraceError, match="another graph"):
        Replay(again, random_graph([6, 7], seed=2))

    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"PK nonsense"):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match="not a readable trace"):
            Trace.load(path)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "absent.npz")


def test_checker_sees_breaches():
    graph = random_graph([5], seed=0)
    trace = record(Schedule(graph, stagger=2, delay=1), 40)
    assert check_trace(trace, graph, 2).hold
    assert not check_trace(trace, graph, 1).hold
    trace.ticks[10].view.fill_(2)
    assert not check_trace(trace, graph, 2).staleness
    quiet = Trace(trace.graph, trace.depth, trace.holds, {}, trace.ticks[:3] + trace.ticks[20:])
    assert not check_trace(quiet, graph, 3).updates
