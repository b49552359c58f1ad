"""Parts as actors of Ray. One Ray for all tests of this file; starting actors is slow."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.nn.functional import mse_loss
from torch_geometric.data import Data

ray = pytest.importorskip("ray")

from hogwild import GSDGNN, IGNN, EnergyGNN  # noqa: E402
from hogwild.cluster import Trainer, infer  # noqa: E402
from hogwild.cluster.actors import Actors, connect  # noqa: E402
from hogwild.testing import random_graph  # noqa: E402

MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2),
    "gsd": lambda: GSDGNN(3, out_channels=2),
    "ignn": lambda: IGNN(3, out_channels=2, hidden_channels=4, act="tanh"),
}


@pytest.fixture(scope="module", autouse=True)
def _one_ray():
    os.environ["OMP_NUM_THREADS"] = "1"
    connect(None, 8, 1.0, 0.0)
    yield
    ray.shutdown()


def case(name, size=24, seed=0):
    torch.manual_seed(seed)
    graph = random_graph([size, 1], seed=seed)
    x = 30.0 * torch.randn(graph.num_nodes, 3, dtype=torch.float64) + 100.0
    data = Data(x=x, edge_index=torch.stack([graph.src, graph.dst]))
    data.y = torch.randn(graph.num_nodes, 2, dtype=torch.float64)
    return MODELS[name]().double().standardize(data), data


def solve(name, folder, seed=0, kill=False, **options):
    """Solve a case with two actors; returns the run and the relative error. ``kill``: kill -9 one
    of the processes at a random moment."""
    model, data = case(name, seed=seed)
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
            return super().iterate(*given)

    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine Ray starts a process later than any fixed time, here none at all: while
        # there is room for the process, one waits.
        patch.setattr("hogwild.cluster.actors.PATIENCE", 0.0)
        patch.setattr("hogwild.cluster.actors.Actors", Watched)
        run = infer(model, data, 2, folder=folder, tol=1e-7, restarts=100, **options)
    for killer in killers:
        killer.join()
    with torch.no_grad():
        answer = model.embed(data).value
    return run, float((run.h - answer).norm() / answer.norm())


@pytest.mark.parametrize(
    ("name", "barriers"), [("energy", True), ("energy", False), ("gsd", False), ("ignn", False)]
)
def test_equals_the_solver(name, barriers, tmp_path):
    run, error = solve(name, tmp_path, barriers=barriers)
    assert error <= 1e-6
    assert run.error_bar.relative <= 1e-7


SLOW = {0: 200.0, 1: 200.0}
"""An update takes longer than the killer waits."""


def test_a_killed_actor_goes_on_from_its_checkpoint(tmp_path):
    run, error = solve("gsd", tmp_path, 1, kill=True, slow=SLOW)
    assert error <= 1e-6
    assert run.restarts >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_actors(seed, tmp_path):
    assert solve(list(MODELS)[seed % 3], tmp_path, seed, kill=True, slow=SLOW)[1] <= 1e-6


def test_with_barriers_a_killed_actor_does_not_hold_up_the_others(tmp_path):
    slow = {0: 20.0, 1: 20.0}
    assert solve("ignn", tmp_path, 1, kill=True, barriers=True, slow=slow)[1] <= 1e-6


def test_training_equals_one_process():
    model, data = case("ignn")
    loss = mse_loss(model(data.x, data.edge_index), data.y)
    loss.backward()
    exact = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    with Trainer(model, data, 2, loss=mse_loss, tol=1e-9) as closure:
        assert float(closure()) == pytest.approx(loss.item(), rel=1e-7)
    for n, p in model.named_parameters():
        if n in exact:
            torch.testing.assert_close(p.grad, exact[n], rtol=1e-6, atol=1e-8)


CODE = """
import sys, torch
from torch_geometric.data import Data
from hogwild import GSDGNN
from hogwild.cluster import infer
from hogwild.testing import random_graph
torch.manual_seed(0)
graph = random_graph([400])
data = Data(x=torch.randn(400, 3), edge_index=torch.stack([graph.src, graph.dst]))
def watch(seconds, statuses):
    print("working", flush=True)
infer(GSDGNN(3, out_channels=1), data, 2, folder=sys.argv[1], slow={0: 1e3}, watch=watch)
"""


@pytest.mark.slow
def test_ctrl_c_leaves_checkpoints_and_no_process(tmp_path):
    folder = str(tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "working" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=90)
    assert "the same call goes on from the parts in" in said.strip().splitlines()[-1]
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2
    time.sleep(3.0)
    left = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True)
    assert not left.stdout.strip()


@pytest.mark.slow
def test_a_killed_node_of_a_cluster(tmp_path):
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    model, data = case("energy")
    killed = []

    def watch(seconds, statuses):
        if not killed:
            killed.append(seconds)
            cluster.remove_node(nodes[1], allow_graceful=False)

    try:
        run = infer(
            model, data, 2, address=cluster.address, folder=tmp_path / "run",
            slow={0: 300.0, 1: 300.0}, seconds=300.0, watch=watch,
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
