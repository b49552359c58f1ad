"""``hogwild serve``, ``demo`` and ``info``."""

import json
import re
import runpy
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import TASK, TINY
from websockets.sync.client import connect

from hogwild.cli import main, show
from hogwild.cli.options import parse
from hogwild.demo import ROWS
from hogwild.errors import HogwildError
from hogwild.web.show import from_file
from hogwild.web.stage import Stage


def test_it_serves_until_ctrl_c_and_ends_cleanly(trained):
    words = [sys.executable, "-m", "hogwild", "serve", trained, "--task", TASK, "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        where = None
        while where is None and (line := server.stderr.readline()):  # before it, warnings
            where = re.search(r"http://localhost:(\d+)/", line)
        assert where
        with urllib.request.urlopen(where.group(), timeout=30) as page:
            assert page.status == 200
        with connect(f"ws://localhost:{where.group(1)}/live", max_size=None) as viewer:
            assert "given" in json.loads(viewer.recv(timeout=30))["tasks"]
            scene = json.loads(viewer.recv(timeout=30))
            assert scene["task"]["name"] == "given"
            server.send_signal(signal.SIGINT)
            out, errors = server.communicate(timeout=30)
    finally:
        server.kill()
        server.communicate()
    assert server.returncode == 0
    assert out == "The page has ended.\n"
    assert errors == ""


def test_bad_usage_is_one_clear_error(capsys, tmp_path, trained):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        assert main(["serve", "--port", port]) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert f"--port {port} of --host '127.0.0.1' cannot be used" in text
        assert "already in use" in text
    for words, why in [
        (["--port", "70000"], "expected 0 to 65535"),
        (["--host", "no..name", "--port", "0"], "is no address of this machine"),
        ([trained, "--task", TASK, "--replica", "7"], "replica 7; expected"),
        (["--attach", str(tmp_path)], "addresses of agents"),
        (["none.py:f"], "there is no file none.py"),
        (["none.py:f", "--replica", "1"], "with the folder of a run only"),
        ([trained, "--attach", str(tmp_path)], "expected one of them"),
        ([str(tmp_path)], str(tmp_path)),
    ]:
        assert main(["serve", *words]) == 2
        assert why in capsys.readouterr().err


OWN = """
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

ring = torch.arange(8)
edges = torch.cat([torch.stack([ring, (ring + 1) % 8]), torch.stack([(ring + 1) % 8, ring])], 1)


def sage(pool=False, nodes=8):
    torch.manual_seed(0)
    net = GraphSAGE(3, 8, num_layers=2, out_channels=1).eval()
    return net, Data(x=torch.randn(8, 3), edge_index=edges)


def alone():
    return sage()[0]


def large():
    n = 100_000
    path = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    return sage()[0], Data(x=torch.randn(n, 3), edge_index=torch.cat([path, path.flip(0)], 1))


def pooled():
    import hogwild

    return hogwild.EnergyGNN(3, out_channels=1, pool="mean"), sage()[1]


def no_graph():
    return sage()[0], [sage()[1]]
"""


def test_a_model_of_pyg_is_shown_on_a_graph_of_ones_own(tmp_path, capsys):
    """Nodes cache all layers and end at the model's own predictions; what cannot be shown is
    refused in one line."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    given = from_file(f"{file}:sage")
    assert given.rules == ("caching", "resending")
    with torch.no_grad():
        stage = Stage(given)
        stage.begin()
        while not stage.sides[0].look().error < 1e-6:
            stage.tick([[], []])
        assert stage.scene()["sides"][0]["title"] == "Your model"
        net, data = runpy.run_path(str(file))["sage"]()
        expected = net(data.x, data.edge_index)[:, 0].numpy()
        np.testing.assert_allclose(stage.sides[0].look().answer, expected, atol=1e-5)
        stage.do_node(3, False)
        stage.tick([[], []])
        with pytest.raises(HogwildError, match="cannot run with the rule overwriting; it runs"):
            stage.do_side(0, "given", "overwriting")  # its layers have several widths
    for name, why in [
        ("alone", "expected a pair"),
        ("large", "the graph has 100000 nodes; expected 2 to 2000"),
        ("pooled", "expected a row for every node"),
        ("no_graph", "the graph is a list; expected one torch_geometric.data.Data"),
        ("nothing", "defines no class or function 'nothing'"),
    ]:
        assert main(["serve", f"{file}:{name}"]) == 2
        text = capsys.readouterr().err
        assert why in text
        assert text.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(show, "find_spec", lambda name: None)
    assert main(["serve"]) == 2
    assert "pip install 'hogwild-gnn[web]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "fine"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
)
def test_loopback_is_the_default_and_others_are_warned_of(host, fine):
    assert parse(show.serve, [], "hogwild serve").host == "127.0.0.1"
    assert show._is_loopback(host) is fine


def test_demo(tmp_path, monkeypatch, capsys):
    least = replace(TINY, share=0.01, ticks=4)
    monkeypatch.setattr("hogwild.demo.QUICK", least)
    path = tmp_path / "page.html"
    call = ["demo", "--quick", "--output", str(path)]
    assert main([*call, "--json"]) == 3  # four ticks are not enough, and it says so
    found = json.loads(capsys.readouterr().out)
    assert found["report"] == str(path)
    assert set(found["errors"]) == set(ROWS)
    assert all(cell["bytes"] > 0 for cell in found["errors"]["gcn"]["asynchronous"])
    assert path.exists()


@pytest.mark.parametrize("output", ["nowhere/report.html", "."])
def test_bad_output_is_refused_before_anything_is_computed(output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--output", output]) == 2
    captured = capsys.readouterr()
    assert "expected a file in a folder that exists" in captured.err
    assert "[1/" not in captured.err
    assert main(["demo", "--seed", "-1"]) == 2
    assert "--seed -1" in capsys.readouterr().err


def test_info(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__
    assert {"energy-edge", "gcn", "scarselli"} <= set(found["models"])
    assert found["options"] == {"json": True}
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = str(extras["optional-dependencies"])
    assert found["optional"]
    assert all(name in named for name in found["optional"])  # nothing that nothing uses
    assert main(["info"]) == 0
    assert "energy-edge" in capsys.readouterr().out
