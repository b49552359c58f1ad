"""Ctrl-C in every phase, a full disk, and files that break: real actors, in processes of their own.

Every test looks at the process group afterwards: nothing may be left running."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

CODE = """
import sys, time, torch
from torch_geometric.data import Data
import hogwild.cluster.setup, hogwild.cluster.inference
from hogwild import GSDGNN
from hogwild.cluster import infer
from hogwild.cluster.actors import Actors
from hogwild.testing import random_graph

folder, phase = sys.argv[1:]
torch.manual_seed(0)
graph = random_graph([400])
data = Data(x=torch.randn(400, 3, dtype=torch.float64),
            edge_index=torch.stack([graph.src, graph.dst]))
model = GSDGNN(3, out_channels=1).double()

def announced(owner, name, when=lambda *args: True):
    original = getattr(owner, name)
    def call(*args, **options):
        if when(*args):
            print("here", flush=True)
            time.sleep(0.5)
        return original(*args, **options)
    setattr(owner, name, call)

if phase == "cut":
    announced(hogwild.cluster.setup, "partition")
elif phase == "start":
    announced(Actors, "_await_all")
elif phase == "write":
    announced(Actors, "call", lambda self, method, *args: method == "write_answer")
elif phase == "gather":
    announced(hogwild.cluster.inference, "gathered")

def watch(seconds, statuses):
    if phase == "work":
        print("here", flush=True)

def paced(self, *given, iterate=Actors.iterate):
    self.pace({0: 1e3} if phase == "work" else {})
    return iterate(self, *given)

Actors.iterate = paced
run = infer(model, data, 2, folder=folder, watch=watch)
with torch.no_grad():
    answer = model.embed(data).value
assert float((run.h - answer).norm() / answer.norm()) < 1e-5
print("right", len(run.files))
"""


STORED = CODE.replace("data, 2, folder=folder", "folder + '/graph', 2")
"""The same with the parts as they lie there."""


def begun(*arguments, code=CODE):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def nothing_left(process):
    """Whether the process group is empty, soon."""
    for _ in range(50):
        left = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True)
        if not left.stdout.strip():
            return True
        time.sleep(0.2)
    return False


PHASES = ["cut", "start", "work", "write", "gather"]


@pytest.mark.parametrize(
    ("phase", "everybody"), [*((phase, True) for phase in PHASES), ("work", False)]
)
def test_ctrl_c_in_every_phase(phase, everybody, tmp_path):
    """In a terminal the whole process group gets SIGINT; ``kill -INT`` reaches one process."""
    process = begun(tmp_path / "run", phase)
    assert process.stdout is not None
    assert "here" in process.stdout.readline()
    time.sleep(0.3)
    (os.killpg if everybody else os.kill)(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said.strip().splitlines()[-1]
    assert nothing_left(process)
    again = begun(tmp_path / "run", "none")
    out, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert out.split() == ["right", "2"]
    assert nothing_left(again)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_clear_error(small_disk):
    """First the graph does not fit, then the graph does and the checkpoints do not."""
    for filled, words in ((160_000, "the parts cannot be written"), (100_000, "a worker cannot")):
        (small_disk / "other").write_bytes(bytes(filled))
        process = begun(small_disk / "run", "none")
        _, said = process.communicate(timeout=120)
        assert nothing_left(process)
        assert process.returncode != 0
        assert words in said.strip().splitlines()[-1]
    (small_disk / "other").unlink()
    again = begun(small_disk / "run", "none")
    out, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert out.split() == ["right", "2"]


def test_a_corrupt_part_is_one_clear_error(tmp_path):
    process = begun(tmp_path / "run", "none")
    assert process.communicate(timeout=120)[0].split() == ["right", "2"]
    broken = tmp_path / "run" / "graph" / "part-00001.pt"
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 0xFF
    broken.write_bytes(content)
    process = begun(tmp_path / "run", "none", code=STORED)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "part-00001.pt is damaged" in said.strip().splitlines()[-1]
    assert nothing_left(process)
    again = begun(tmp_path / "run", "none")  # with the graph at hand, its parts are written again
    assert again.communicate(timeout=120)[0].split() == ["right", "2"]
