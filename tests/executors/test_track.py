"""Tracked runs: the same engine as ``simulate``, and what is kept through a change."""

from functools import partial

import pytest
import torch
from motion import joining, ring
from torch_geometric.data import Data

import hogwild
from hogwild import EIGNN, GAT, GCN, GSDGNN, IGNN, EnergyGNN, Scenario, simulate, track
from hogwild.asynchrony import BernoulliLoss, Crashes, EventTriggered, GilbertElliott
from hogwild.asynchrony.moving import Change, Register
from hogwild.errors import ConfigError
from hogwild.executors.simulation import After, Settings, Simulation
from hogwild.graph.inputs import Inputs
from hogwild.rules import rule_for

MODELS = {
    "messages": lambda: EnergyGNN(3, out_channels=2),
    "gradient": lambda: EnergyGNN(3, out_channels=2),
    "denoising": lambda: GSDGNN(3, hidden_channels=2, out_channels=2),
    "fixed-point": lambda: IGNN(3, out_channels=2),
    "caching": lambda: GCN(3, out_channels=2),
    "stack": lambda: EnergyGNN(3, out_channels=2, num_layers=2),
}
FAULTS = {
    "none": (),
    "loss": (BernoulliLoss(0.3, burst=4),),
    "memory": (GilbertElliott(0.2, 0.3), Crashes(0.3, period=20, downtime=5, rejoin="cold")),
    "events": (EventTriggered(1e-3),),
}


PAIRS = [
    (name, faults) for name in MODELS for faults in FAULTS if name != "stack" or faults == "loss"
]


def model(name):
    torch.manual_seed(0)
    return MODELS[name]().double()


def options(name):
    return {"rule": {"stack": "messages", "denoising": "gradient"}.get(name, name)}


@pytest.mark.parametrize(("name", "faults"), PAIRS)
def test_a_scenario_that_never_changes_equals_simulate(name, faults):
    """Bit for bit: embeddings at all ticks, and what was sent."""
    data, net = ring(list(range(6)), chords=[(0, 3)]), model(name)
    given = {"impairments": FAULTS[faults], "runs": 2, "seed": 3, **options(name)}
    run = simulate(net, data, ticks=30, tol=None, history=1, keep_embeddings=True, **given)
    still = track(net, Scenario(data, length=30), keep_embeddings=True, **given)
    again = Scenario([data, data.clone(), data.clone()], [0, 7, 20], length=30)
    repeated = track(net, again, keep_embeddings=True, **given)
    for seen in (still, repeated):
        assert torch.equal(seen.embeddings, run.embeddings)
        assert torch.equal(seen.updates[-1], run.updates.sum(1))
        assert torch.equal(seen.packets[-1], run.packets.sum(1))
        assert torch.equal(seen.bytes[-1], run.bytes.sum(1))


def frames_and_kept():
    scenario = joining()
    register = Register()
    names = [register.names(frame) for frame in scenario]
    return scenario.frames, names, Change.between(*scenario.frames, names)


@pytest.mark.parametrize(("name", "faults"), PAIRS)
def test_a_change_equals_a_fresh_run_from_the_kept_state(name, faults):
    (before, after), names, change = frames_and_kept()
    net, settings = model(name), Settings(4, 2, impairments=FAULTS[faults])
    rule = options(name)["rule"]

    def begin(frame, named, time, link=None):
        problem = net.problem(Inputs.of(frame.data)).detach()
        schedule = settings.schedule(problem.graph, begin=time, names=named, holds=True)
        if link is not None:
            schedule.follow(link.before.timetable, link.kept)
        made = rule_for(problem, rule, age=settings.content_age((4, 2)))
        faulty = settings.impairments
        return Simulation(made, schedule, problem.start(), impairments=faulty, after=link)

    with torch.no_grad():
        first = begin(before, names[0], 0)
        for _ in range(12):
            first.step()
        fresh = begin(after, names[1], 12, After(first, change.kept))
        for _ in range(12):
            fresh.step()
    given = {"impairments": FAULTS[faults], "rule": rule, "keep_embeddings": True}
    seen = track(net, joining(), stagger=4, **given)
    k = seen.embeddings.size(-1)
    rows = [6, 0, 1, 3, 4, 5]  # where the nodes of the second frame are among all nodes
    assert torch.equal(seen.embeddings[-1, 0, rows], fresh.h[0, -k:].T)
    assert seen.embeddings[-1, 0, 2].isnan().all()  # node 2 is gone


def together(update):
    """The embeddings of the second frame, all nodes together from the state that was kept: the new
    node makes its first update one tick later. ``update(inputs, h)`` is a synchronous update."""
    before, after = (Inputs.of(frame.data) for frame in joining())
    h = torch.zeros(1, 2, 6, dtype=torch.float64)
    for _ in range(11):  # at tick 0 nobody has a turn
        h = update(before, h)
    kept = torch.zeros(1, 2, 6, dtype=torch.float64)
    kept[..., 1:] = h[..., [0, 1, 3, 4, 5]]
    out = update(after, kept)
    out[..., 0] = kept[..., 0]
    for _ in range(11):
        out = update(after, out)
    return out[0].T


def test_gradient_steps_go_on_from_the_kept_embeddings():
    """S = 1, D = 0, both sides of every edge: gradient descent on one energy, then on the other."""
    net = model("denoising")

    def update(inputs, h):
        return h - 0.05 * net.problem(inputs).evaluate(h).gradient

    with torch.no_grad():
        expected = together(update)
    given = {"rule": "gradient", "step": 0.05, "keep_embeddings": True}
    seen = track(net, joining(), stagger=1, delay=0, **given)
    torch.testing.assert_close(
        seen.embeddings[-1, 0, [6, 0, 1, 3, 4, 5]], expected, rtol=0, atol=1e-12
    )


def test_fixed_points_go_on_from_the_kept_embeddings():
    torch.manual_seed(0)
    net = EIGNN(3, out_channels=2, hidden_channels=2).double()
    with torch.no_grad():
        expected = together(lambda inputs, h: net.problem(inputs).step(h))
    seen = track(net, joining(), stagger=1, delay=0, keep_embeddings=True)
    torch.testing.assert_close(
        seen.embeddings[-1, 0, [6, 0, 1, 3, 4, 5]], expected, rtol=0, atol=1e-12
    )


def long(every=150):
    frames = [frame.data for frame in joining()]
    return Scenario([*frames, frames[0].clone()], [0, every, 2 * every], length=3 * every)


@pytest.mark.parametrize("name", ["messages", "fixed-point", "caching"])
def test_runs_arrive_after_every_change(name):
    seen = track(model(name), long(), runs=2, **options(name))
    for change in range(3):
        last = seen.error[150 * (change + 1) - 1]
        assert float(last[~last.isnan()].max()) < 1e-2 * float(seen.moves.max())
    assert seen.recovery().isfinite().all()
    assert float(seen.after(20)[~seen.after(20).isnan()].median()) < 0.2
    assert (seen.lag >= 0).all()
    assert (seen.lag[:150] == 0).all()
    assert not seen.lag[149].any()


def test_a_partition_heals():
    from hogwild.asynchrony.scenarios import partition

    halves = partition(ring(list(range(8))), breaks=60, heals=120, length=240)
    seen = track(model("fixed-point"), halves)
    assert seen.changes == [60, 120]
    assert float(seen.spread[119]) < 1e-3 * float(seen.moves.max())
    assert float(seen.spread[-1]) < 1e-3 * float(seen.moves.max())


def test_a_lease_delays_the_answer():
    """Until the lease is over nodes believe in the graph of before; then they know better."""
    net, given = model("fixed-point"), {"keep_embeddings": True}
    at_once = track(net, long(), **given)
    later = track(net, long(), lease=60, **given)
    assert float(later.spread[200]) > 10 * float(at_once.spread[200])
    assert float(later.spread[299]) < 1e-3
    assert later.node_ticks == at_once.node_ticks


@pytest.mark.parametrize("left", [0, 2, 5])
@pytest.mark.parametrize("name", ["messages", "gradient", "fixed-point", "caching"])
def test_a_node_that_returns_within_the_lease_has_turns_again(name, left):
    """Node 5 is the last one: with it the order of nodes never changes."""
    ids = list(range(6))
    whole, rest = ring(ids), ring(ids)
    keep = (whole.edge_index != left).all(0)
    rest = Data(x=whole.x, edge_index=whole.edge_index[:, keep], node_id=whole.node_id)
    rest = rest.subgraph(torch.tensor([i for i in ids if i != left]))
    back = whole.clone()
    back.x = back.x + 0.5  # whoever has no turns does not notice
    slow = name == "gradient"
    scenario = Scenario([whole, rest, back], [0, 100, 106], length=1500 if slow else 400)
    seen = track(model(name), scenario, lease=20, runs=2, **options(name))
    assert float(seen.error[-1].max()) < 1e-2 * float(seen.moves.max())


def test_a_link_that_has_gone_is_silent():
    """Links that have gone come last, and this one was the last one before."""
    whole = ring(list(range(6)))
    gone = Data(x=whole.x, edge_index=whole.edge_index[:, :-1], node_id=whole.node_id)
    given = {"lease": 20, "keep_embeddings": True}
    net = model("fixed-point")
    never = track(net, Scenario(whole, length=20), **given)
    seen = track(net, Scenario([whole, gone], [0, 1], length=20), **given)
    assert not torch.equal(seen.embeddings, never.embeddings)


def test_layers_begin_anew():
    torch.manual_seed(0)
    for net in (GCN(3, out_channels=2).double(), GAT(3, out_channels=2).double()):
        # All together: every pass is the synchronous one, and the answer is right once it is over.
        overwriting = partial(track, net, long(60), rule="overwriting")
        seen = overwriting(stagger=1, delay=0, restart=10)
        assert float(seen.spread[58]) < 1e-12
        assert float(seen.spread[61]) > 1e-3  # the answer of before, until the next pass is over
        assert float(seen.spread[119]) < 1e-12
        with pytest.raises(ConfigError, match="rule='overwriting' stops after its last layer"):
            overwriting()
    resending = track(net, long(60), rule="resending")
    assert float(resending.spread[59]) < 1e-9
    assert float(resending.spread[-1]) < 1e-9


def test_hellos_are_paid():
    """At the change every node says hello with 3 features and its degree along its links, and 8 new
    links carry a packet of 16 numbers each way."""
    net = model("fixed-point")
    seen = track(net, joining(), stagger=1, delay=0)
    degrees = [2 + (i in (0, 3)) for i in range(6)], [2, 3, 3, 3, 3, 2]
    turns = 11 * sum(degrees[0]) + 12 * sum(degrees[1]) - degrees[1][0]
    assert int(seen.packets[-1]) == turns + sum(degrees[1]) + 8
    width = net.hidden_channels
    numbers = width * (turns + 8) + 4 * sum(degrees[1])
    assert int(seen.bytes[-1]) == 4 * numbers
    assert seen.price["packets"] == int(seen.packets[-1]) / (24 * 6)


def test_the_score_is_that_of_the_targets():
    scenario = joining()
    for frame in scenario:
        frame.data.y = torch.ones(6, 2).double()
    net = model("messages")
    seen = track(net, Scenario([f.data for f in scenario], [0, 100], length=300))
    with torch.no_grad():
        outs = [net.predict(Inputs.of(frame.data)) for frame in scenario]
    exact = [float((out - 1.0).square().mean().sqrt()) for out in outs]
    assert seen.exact_score == pytest.approx(exact, abs=1e-9)
    assert float(seen.score[-1]) == pytest.approx(exact[1], abs=1e-4)
    assert "rmse of the predictions" in str(seen)
    own = track(net, joining(), score=lambda out, data: float(data.num_nodes))
    assert (own.score == 6.0).all()


def test_mistakes_are_refused():
    net = model("messages")
    with pytest.raises(ConfigError, match=r"scenario is a list; expected a hogwild.Scenario"):
        track(net, [ring([0, 1])])
    with pytest.raises(ConfigError, match="lease=-1"):
        track(net, joining(), lease=-1)
    with pytest.raises(ConfigError, match="restart=0"):
        track(net, joining(), restart=0)
    with pytest.raises(ConfigError, match="replicas=2"):
        track(EnergyGNN(3, out_channels=1, replicas=2), joining())


def test_the_report():
    seen = track(GSDGNN(3, out_channels=1).double(), long(), every=3)
    text = str(seen)
    assert "scenario: 3 frames, 450 ticks, 6 nodes; S = 5, D = 2; rule messages" in text
    assert "price of a node in 100 ticks" in text
    assert str(seen.cone) in text
    assert seen.cone.crossed
    sooner, later = (seen.after(cones * seen.cone.mean).nanmedian() for cones in (1, 5))
    assert later < sooner < 1.0
    assert seen.times[-1] == 449
    assert isinstance(seen, hogwild.Track)
    # A change moves the answer in one tick, and not little by little until the next one.
    assert seen.drift == float((seen.answers[1:] - seen.answers[:-1]).abs().nan_to_num(0.0).max())
    assert set(seen.summary()) >= {"error", "lag", "recovery", "bytes_a_tick"}
