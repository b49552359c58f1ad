"""Agents in two network namespaces, with a link between them that loses packets."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain
from lossy_link import ADDRESSES, LossyLink, why_not

from hogwild import EnergyGNN, Inputs
from hogwild.models.export import export

pytestmark = pytest.mark.slow
N = 4


@pytest.mark.parametrize(("transport", "loss"), [("udp", 0.3), ("zenoh", 0.05)])
def test_a_swarm_on_two_hosts(transport, loss, tmp_path):
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    if transport == "zenoh":
        pytest.importorskip("zenoh")
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=1.0).double()
    x, edge_index = torch.randn(N, 3, **DOUBLE), chain(N)
    export(model, tmp_path / "model.hog")
    where = [f"{ADDRESSES[i >= N // 2]}:{21000 + i}" for i in range(N)]
    with LossyLink(loss, (0.015, 0.025)) as link:
        agents = []
        for i in range(N):
            near = ",".join(f"{int(j)}={where[int(j)]}" for j in edge_index[0][edge_index[1] == i])
            command = [
                "ip", "netns", "exec", link.names[i >= N // 2],
                sys.executable, "-m", "hogwild_node.command", "--model", tmp_path / "model.hog",
                "--id", str(i), "--features=" + ",".join(map(str, x[i].tolist())),
                "--transport", transport, "--listen", where[i], "--neighbours", near,
                "--precision", "float64", "--seconds", "25", "--status", "30", "--nodes", str(N),
            ]  # fmt: skip
            agents.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        said = [json.loads(agent.communicate(timeout=60)[0].splitlines()[-1]) for agent in agents]
    assert all(agent.returncode == 0 for agent in agents)
    assert link.lost > 5
    with torch.no_grad():
        answer = model.embed(Inputs(x, edge_index)).value.numpy()
    found = np.array([word["h"] for word in said])
    assert np.abs(found - answer).max() < 1e-6 * np.abs(answer).max()
    distance = float(np.linalg.norm(found - answer))
    for word in said:
        if word["state"] == "settled":
            assert distance <= word["bound"]
    if transport == "udp":  # TCP may repeat a lost packet for longer than a lease
        assert all(word["state"] == "settled" for word in said)
