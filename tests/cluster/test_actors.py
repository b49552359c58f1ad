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
from hogwild.cluster.host import Plan, convolution  # noqa: E402
from hogwild.cluster.inference import gathered  # noqa: E402
from hogwild.cluster.setup import Place, prepared, save_model  # noqa: E402
from hogwild.cluster.work import error_bar  # noqa: E402
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


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Two actors, which take one case after the other. On a busy machine Ray starts a process
    later than any fixed time, here none at all: while there is room for the process, one waits."""
    model, data = case("gsd")
    folder = tmp_path_factory.mktemp("actors")
    with prepared(model, data, 2, Place(folder=folder / "first")) as setup:
        plan = Plan(graph=setup.store.folder, model=save_model(model, folder))
        with (
            pytest.MonkeyPatch.context() as patch,
            Actors(plan, 2, restarts=100, every=0.05) as found,
        ):
            patch.setattr("hogwild.cluster.actors.PATIENCE", 0.0)
            yield found


def solved(engine, name, folder, seed=0, during=None, barriers=False):
    """Solve a case with the actors; returns the relative error and the error bar."""
    model, data = case(name, seed=seed)
    with prepared(model, data, 2, Place(folder=folder)) as setup:
        plan = Plan(
            graph=setup.store.folder, model=save_model(model, folder),
            checkpoints=folder / "checkpoints", hops=convolution(model).hops, tol=1e-7,
        )  # fmt: skip
        engine.load(plan)
        engine.barriers = barriers
        helper = threading.Thread(target=during or (lambda: None))
        helper.start()

        def attempt():
            engine.call("start", "solve")
            assert engine.iterate()
            h, _ = gathered(engine, setup)
            return h, error_bar([m for m in engine.call("measure") if m is not None])

        h, bar = engine.patiently(attempt)
        helper.join()
    with torch.no_grad():
        answer = model.embed(data).value
    return float((h - answer).norm() / answer.norm()), bar


@pytest.mark.parametrize("barriers", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_solver(name, barriers, engine, tmp_path):
    error, bar = solved(engine, name, tmp_path, barriers=barriers)
    assert error <= 1e-6
    assert bar.relative <= 1e-7


def kill_one(engine, seed):
    """Kill -9 one of the actors' processes at a random moment."""
    draw = random.Random(seed)
    engine.load(engine.plan)  # those killed before are back
    pids = ray.get([actor.pid.remote() for actor in engine.actors])

    def later():
        time.sleep(draw.uniform(0.0, 0.6))
        os.kill(draw.choice(pids), signal.SIGKILL)

    return later


def killed(engine, seed, folder):
    kill = kill_one(engine, seed)
    engine.pace({0: 200.0, 1: 200.0})  # an update takes longer than the killer waits
    error, _ = solved(engine, list(MODELS)[seed % 3], folder, seed, kill)
    assert error <= 1e-6


def test_a_killed_actor_goes_on_from_its_checkpoint(engine, tmp_path):
    before = engine.restarts
    for seed in range(2):
        killed(engine, seed, tmp_path / str(seed))
    engine.load(engine.plan)
    engine.pace({})
    assert engine.restarts - before >= 1


@pytest.mark.slow
def test_twenty_killed_actors(engine, tmp_path):
    for seed in range(20):
        killed(engine, seed, tmp_path / str(seed))


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
    assert "goes on from there" in said.strip().splitlines()[-1]
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


def test_with_barriers_a_killed_actor_does_not_hold_up_the_others(engine, tmp_path):
    engine.pace({0: 20.0, 1: 20.0})
    try:
        error, _ = solved(engine, "ignn", tmp_path, 1, kill_one(engine, 1), barriers=True)
    finally:
        engine.barriers = False
    assert error <= 1e-6
