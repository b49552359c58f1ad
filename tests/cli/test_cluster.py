"""``hogwild cluster`` with one worker, which needs no Ray."""

import numpy as np
import pytest
import torch
from tiny_runs import TASK

from hogwild.cli import main
from hogwild.training import load


@pytest.fixture
def graph(trained, tmp_path):
    """A graph of the task with positions, as a file."""
    data = load(trained, TASK).graph(0)
    path = tmp_path / "graph.npz"
    arrays = {"x": data.x.numpy(), "edge_index": data.edge_index.numpy()}
    np.savez(path, pos=np.random.default_rng(0).random((data.num_nodes, 2)), **arrays)
    return str(path)


def test_answers_files_and_pictures(printed, trained, graph, tmp_path):
    flags = [graph, "--out", str(tmp_path / "run")]
    code, said = printed("cluster", *flags, "--plot", str(tmp_path / "run.png"))
    assert code == 0
    assert said["converged"]
    assert said["relative_error"] <= 1e-6
    assert said["options"]["workers"] == 1
    (file,) = said["files"]
    result = load(trained, TASK)
    with torch.no_grad():
        expected = result.replica(said["options"]["replica"]).predict(result.graph(0))
    np.testing.assert_allclose(np.load(file)["prediction"], expected, atol=1e-5)
    assert (tmp_path / "run.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.npz"], "nowhere.npz does not exist"),
        (["GRAPH", "--workers", "2", "--address", "127.0.0.1:1"], "--address '127.0.0.1:1'"),
        (["GRAPH", "--workers", "0"], "--workers 0"),
        (["GRAPH", "--tol", "2"], "--tol 2"),
        (["WIDE"], "7 features a node"),
        (["BROKEN"], "broken.npz"),
    ],
)
def test_bad_input_is_one_clear_line(words, said, trained, graph, tmp_path, capsys):
    np.savez(tmp_path / "wide.npz", x=np.ones((3, 7)), edge_index=np.zeros((2, 1), dtype=int))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and nothing else")
    files = {"GRAPH": graph, "WIDE": tmp_path / "wide.npz", "BROKEN": tmp_path / "broken.npz"}
    words = [str(files.get(word, word)) for word in words]
    assert main(["cluster", trained, words[0], "--task", TASK, *words[1:]]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
