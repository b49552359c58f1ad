"""Terrain: agents on an image; MNIST's files, wherever they lie."""

import gzip
import struct

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

from hogwild import tasks
from hogwild.errors import ConfigError, DataError
from hogwild.tasks.terrain import parse, resize, scatter


def test_agents():
    image = np.arange(100, dtype=np.float32).reshape(10, 10) / 100
    g = scatter(image, 1, 10, 5.0, np.random.default_rng(0))
    place = (g.x[:, :2] * 9).round().long()
    assert len({tuple(p) for p in place.tolist()}) == 10
    torch.testing.assert_close(g.x[:, 2], torch.from_numpy(image)[place[:, 0], place[:, 1]])
    distance = torch.cdist(place.double(), place.double())
    joined = torch.zeros(10, 10, dtype=torch.bool)
    joined[g.edge_index[0], g.edge_index[1]] = True
    assert torch.equal(joined, (distance <= 5).fill_diagonal_(False))
    assert g.y.tolist() == [1] * 10


def test_within_five_pixels_includes_five():
    """An agent on every one of 6 × 6 pixels: corners are joined along sides (5), not across."""
    g = scatter(np.zeros((6, 6), np.float32), 0, 36, 5.0, np.random.default_rng(0))
    place = (g.x[:, :2] * 5).round().long().tolist()
    corner = {i for i, p in enumerate(place) if p[0] in (0, 5) and p[1] in (0, 5)}
    assert len(corner) == 4
    assert sum(i in corner and j in corner for i, j in g.edge_index.T.tolist()) == 8


def test_resize():
    flat = np.full((2, 28, 28), 51, np.uint8)
    np.testing.assert_allclose(resize(flat, 10), np.full((2, 10, 10), 0.2), rtol=1e-6)
    left = np.zeros((1, 28, 28), np.uint8)
    left[:, :, :14] = 255
    small = resize(left, 10)[0]
    assert small.mean() == pytest.approx(0.5, abs=1e-6)
    np.testing.assert_allclose(small[:, 0], 1, rtol=1e-6)
    assert (small[:, -1] == 0).all()


def test_parse():
    raw = b"\0\0\x08\x02" + struct.pack(">II", 2, 3) + bytes(range(6))
    assert parse(raw).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_absent(home):
    with pytest.raises(DataError, match=r"HOGWILD_DATA.*MNIST/raw/train-images-idx3-ubyte\.gz"):
        tasks.get("terrain", download=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [(gzip.compress(b"\0\0\x08\x01"), "SHA-256"), (b"?", "damaged")],
    ids=["other", "damaged"],
)
def test_not_mnist(home, content, message):
    (home / "MNIST" / "raw").mkdir(parents=True)
    (home / "MNIST" / "raw" / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        tasks.get("terrain", download=False)


def test_real(real):
    real("MNIST/raw/train-images-idx3-ubyte.gz")
    task = tasks.get("terrain", num_graphs=300, download=False)
    data = Batch.from_data_list(task.graphs)
    assert data.x.shape == (3000, 3)
    assert 0.4 < data.y.double().mean() < 0.66
    assert ((data.x >= 0) & (data.x <= 1)).all()
    centre = ((data.x[:, :2] - 0.5).abs() < 0.1).all(1)  # a 1 has ink there, a 0 is hollow
    ink = data.x[:, 2]
    assert ink[centre & (data.y == 1)].mean() > 2 * ink[centre & (data.y == 0)].mean()
    with pytest.raises(ConfigError, match="14780 images"):
        tasks.get("terrain", num_graphs=20_000, download=False)
