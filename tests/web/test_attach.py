"""Watching a swarm."""

import json
import struct
import threading

import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.errors import ConfigError
from hogwild.executors.notes import GRAPH, WORDS
from hogwild.executors.swarm import Faults, run
from hogwild.web.attach import Attached, Swarm
from hogwild.web.protocol import parse


def test_a_running_swarm_is_watched_and_not_changed(tmp_path):
    """Real agents, one of which is killed; the viewer sees answers, deaths and the end."""
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, beta=1.0).double()
    data = Data(x=torch.randn(4, 3, **DOUBLE), edge_index=chain(4))
    swarm = threading.Thread(
        target=run, args=(model, data),
        kwargs={
            "transport": "udp", "seconds": 6.0, "rate": 20.0, "until_settled": False,
            "lease": 1.0, "folder": tmp_path, "faults": Faults(kill=0.25, kill_at=1.0),
        },
    )  # fmt: skip
    swarm.start()
    try:
        wait(lambda: (tmp_path / GRAPH).exists())
        woken = threading.Event()
        watch = Attached(Swarm(tmp_path), woken.set)
        watch.start()
        watch.put(parse('{"do": "node", "node": 0, "alive": false}'))
        scenes, errors, dead, notices = [], [], set(), []

        def look():
            screen = watch.take()
            notices.extend(each["text"] for each in screen.notices)
            if screen.scene is not None:
                scenes.append(screen.scene)
            if screen.snapshot is not None:
                n = struct.unpack_from("<6I", screen.snapshot)[3]
                errors.append(struct.unpack_from("<f", screen.snapshot, 24)[0])
                state = screen.snapshot[60 + 5 * n : 60 + 6 * n]
                dead.add(sum(s == 2 for s in state))
            return bool(scenes) and "has ended" in scenes[-1]["banner"]

        wait(look)
    finally:
        swarm.join()
        watch.close()
    assert "only watches a swarm" in notices[0]
    assert scenes[0]["mode"] == "attached"
    assert scenes[0]["edges"] == [0, 1, 1, 2, 2, 3]
    assert {0, 1} <= dead
    assert min(errors) < 1e-2
    assert any("1 killed after" in scene["banner"].lower() for scene in scenes)


def wait(good):
    pause = threading.Event()
    for _ in range(1200):
        if good():
            return
        pause.wait(0.05)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[]",
        '{"nodes": 2}',
        '{"nodes": 2, "edges": [[0, 9]], "pos": null, "prediction": [0, 1]}',
    ],
)
def test_a_folder_without_a_swarm_is_refused_in_words(tmp_path, text):
    if text is not None:
        (tmp_path / GRAPH).write_text(text)
    with pytest.raises(ConfigError, match=r"expected (the folder of a running|1 to 2000)"):
        Swarm(tmp_path)


def test_words_that_cannot_be_read_are_no_words(tmp_path):
    graph = {"nodes": 2, "edges": [[0, 1], [1, 0]], "pos": None, "prediction": [[0.0], [1.0]]}
    (tmp_path / GRAPH).write_text(json.dumps(graph))
    swarm = Swarm(tmp_path)
    assert swarm.words() is None
    for text in ("{", "[]", "{}"):
        (tmp_path / WORDS).write_text(text)
        assert swarm.words() is None
