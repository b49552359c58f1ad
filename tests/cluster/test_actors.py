"""Parts as actors of Ray. One Ray for all tests of this file; starting actors is slow."""

import os
import random
import signal
import threading
import time

import pytest
import torch
from torch.nn.functional import mse_loss

ray = pytest.importorskip("ray")

from cluster_parts import case  # noqa: E402

from hogwild.cluster import Trainer, infer  # noqa: E402
from hogwild.cluster.actors import Actors, connect  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _one_ray():
    os.environ["OMP_NUM_THREADS"] = "1"
    connect(None, 8, 1.0, 0.0)
    yield
    ray.shutdown()


def solve(name, folder, seed=0, kill=False, barriers=False, slow=1.0):
    """Solve a case with two actors; returns the run and the relative error. ``kill``: kill -9 one
    of the processes at a random moment."""
    model, data = case(name, [24, 1], seed=seed, scale=30.0, shift=100.0)
    model.standardize(data)
    draw, killers = random.Random(seed), []

    def later(pids):
        time.sleep(draw.uniform(0.0, 0.6))
        os.kill(draw.choice(pids), signal.SIGKILL)

    class Watched(Actors):
        def __init__(self, *given, **more):
            super().__init__(*given, every=0.05, **more)

        def iterate(self, *given):
            if kill and not killers:
                pids = ray.get([actor.pid.remote() for actor in self.actors])
                killers.append(threading.Thread(target=later, args=(pids,)))
                killers[0].start()
            self.barriers = barriers
            self.pace({0: slow, 1: slow})
            return super().iterate(*given)

    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine Ray starts a process later than any fixed time, here none at all: while
        # there is room for the process, one waits.
        patch.setattr("hogwild.cluster.actors.PATIENCE", 0.0)
        patch.setattr("hogwild.cluster.actors.Actors", Watched)
        run = infer(model, data, 2, folder=folder, tol=1e-7, restarts=100)
    for killer in killers:
        killer.join()
    with torch.no_grad():
        answer = model.embed(data).value
    return run, float((run.h - answer).norm() / answer.norm())


@pytest.mark.parametrize("name", ["energy", "gsd"])
def test_equals_the_solver(name, tmp_path):
    run, error = solve(name, tmp_path)
    assert error <= 1e-6
    assert run.error_bar.relative <= 1e-7


SLOW = 200.0
"""An update takes longer than the killer waits."""


def test_a_killed_actor_goes_on_from_its_checkpoint(tmp_path):
    run, error = solve("gsd", tmp_path, 1, kill=True, slow=SLOW)
    assert error <= 1e-6
    assert run.restarts >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_actors(seed, tmp_path):
    assert (
        solve(["energy", "gsd", "ignn"][seed % 3], tmp_path, seed, kill=True, slow=SLOW)[1] <= 1e-6
    )


def test_with_barriers_a_killed_actor_does_not_hold_up_the_others(tmp_path):
    assert solve("ignn", tmp_path, 1, kill=True, barriers=True, slow=20.0)[1] <= 1e-6


def test_training_equals_one_process():
    model, data = case("ignn", [24, 1])
    loss = mse_loss(model(data.x, data.edge_index), data.y)
    loss.backward()
    exact = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    with Trainer(model, data, 2, loss=mse_loss, tol=1e-9) as closure:
        assert float(closure()) == pytest.approx(loss.item(), rel=1e-7)
    for n, p in model.named_parameters():
        if n in exact:
            torch.testing.assert_close(p.grad, exact[n], rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_a_killed_node_of_a_cluster(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    model, data = case("energy", [24, 1])
    killed = []

    class Paced(Actors):
        def iterate(self, *given):
            self.pace({0: 300.0, 1: 300.0})
            return super().iterate(*given)

    def watch(seconds, statuses):
        if not killed:
            killed.append(seconds)
            cluster.remove_node(nodes[1], allow_graceful=False)

    monkeypatch.setattr("hogwild.cluster.actors.Actors", Paced)
    try:
        run = infer(
            model, data, 2, address=cluster.address, folder=tmp_path / "run", seconds=300.0,
            watch=watch,
        )  # fmt: skip
    finally:
        ray.shutdown()
        cluster.shutdown()
        connect(None, 8, 1.0, 0.0)
    with torch.no_grad():
        answer = model.embed(data).value
    assert run.converged
    assert run.restarts >= 1
    assert float((run.h - answer).norm() / answer.norm()) <= 1e-5
