"""One side of the page."""

import math

import pytest
import torch

from hogwild import track
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.asynchrony.moving import Beliefs, Frame, Scenario
from hogwild.training.checkpoint import load
from hogwild.web.pretrained import FOLDER, MODELS, trained
from hogwild.web.side import RESTART, Side, settings
from hogwild.web.worlds import TASKS, World


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def side_of(model, rule, world, stagger=5, delay=2, loss=0.0):
    wanted = settings(stagger, delay, loss, 0, rule)
    side = Side(trained(world.task, model), wanted, world.classes, world.nodes)
    data = world.data()
    frame = Frame(0, data, data.node_id)
    side.enter(frame, frame)
    return side


def run(side, ticks):
    for _ in range(ticks):
        side.step()
    return side.look()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_the_models_that_come_with_the_package_do_their_tasks(task, model):
    world = World.make(task, 30, 77)
    data = world.data()
    out = trained(task, model)(data.x, data.edge_index)
    assert out.shape == (30, 1)
    assert bool(out.isfinite().all())
    error = load(FOLDER / f"{task}-{model}").extra["error"]
    assert error < (0.06 if task == "rumour" else 0.3)


def test_the_energy_gnn_arrives_and_the_gcn_does_not():
    world = World.make("field", 20, 3)
    energy, gcn = side_of("energy", "messages", world), side_of("gcn", "overwriting", world)
    good, bad = run(energy, 120), run(gcn, 120)
    assert good.error < 1e-6
    assert good.residual < 1e-4
    assert bad.error > 0.1
    assert math.isnan(bad.residual)  # layers have none
    assert bad.updates == 5.0
    assert (bad.done == 1).all()
    assert bad.task_error > gcn.task_error(gcn.exact_answer)
    assert run(side_of("gcn", "caching", world), 120).error < 1e-12
    assert run(side_of("gcn", "overwriting", world, 1, 0), 10).error < 1e-12  # in step


@pytest.mark.parametrize("rule", ["messages", "gradient"])
def test_a_side_is_a_tracked_run(rule):
    """Bit for bit: what happens on the page is what ``hogwild.track`` computes."""
    first = World.make("field", 20, 3)
    second = first.move(4, 0.5, 0.5)
    frames = [first.data(), second.data(), second.data(torch.arange(20).numpy() != 7)]
    scenario = Scenario(frames, [0, 30, 60], length=100)
    seen = track(
        trained("field", "energy"), scenario, rule=rule, lease=20, keep_embeddings=True,
        impairments=BernoulliLoss(0.2),
    )  # fmt: skip
    wanted, beliefs = settings(5, 2, 0.2, 0, rule), Beliefs(20)
    side = Side(trained("field", "energy"), wanted, False, 20)
    for frame in scenario:
        side.enter(frame, beliefs.see(frame))
        end = {0: 30, 30: 60, 60: 100}[frame.time]
        while side.course.simulation is None or side.simulation.time < end:
            if beliefs.due is not None and side.simulation.time >= beliefs.due:
                side.believe(beliefs.at(beliefs.due))
            side.step()
    m = scenario.frames[-1].ids.numel()
    h = side.simulation.h[0, :, :m].T
    places = [seen.ids.tolist().index(i) for i in scenario.frames[-1].ids.tolist()]
    assert torch.equal(seen.embeddings[-1, 0, places], h)
    found = side.look()
    assert math.isnan(found.answer[7])
    assert found.updates * m == pytest.approx(float(seen.updates[-1, 0]))
    assert found.packets * m == pytest.approx(float(seen.packets[-1, 0]))


def test_the_same_settings_again_change_nothing():
    world = World.make("field", 20, 3)
    one, two = side_of("energy", "messages", world), side_of("energy", "messages", world)
    run(one, 40)
    run(two, 15)
    two.retime(settings(5, 2, 0.0, 0, "messages"))
    run(two, 25)
    assert torch.equal(one.simulation.h, two.simulation.h)
    assert one.look().updates == two.look().updates


def test_other_settings_hold_from_now_on():
    world = World.make("field", 20, 3)
    side = side_of("energy", "messages", world)
    run(side, 40)
    side.retime(settings(10, 20, 0.9, 0, "messages"))
    lost = [int(side.step().lost.sum()) for _ in range(60)]
    assert sum(lost) > 100
    assert side.look().staleness.max() > 20
    side.retime(settings(3, 1, 0.0, 0, "messages"))
    assert run(side, 120).error < 1e-6


def test_rules_that_stop_begin_anew():
    world = World.make("rumour", 20, 3)
    side = side_of("gcn", "overwriting", world)
    seen = run(side, RESTART)
    assert seen.updates == 5.0
    assert run(side, 40).updates == 10.0
    assert side.since == RESTART


def test_packets_are_those_of_the_schedule():
    world = World.make("field", 20, 3)
    side = side_of("energy", "messages", world, stagger=1, delay=0)
    edges = world.data().edge_index
    packets = side.step()  # the first turns are at tick 1
    packets = side.step()
    assert sorted(zip(packets.sender, packets.receiver, strict=True)) == sorted(
        map(tuple, edges.T.tolist())
    )
    assert not packets.lost.any()
    assert (packets.age == 0).all()
