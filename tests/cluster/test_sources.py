"""Graphs from files: the same graph from every kind of file."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from hogwild.cluster.sources import open_graph
from hogwild.errors import ConfigError, DataError, FeatureError, GraphError

EDGES = np.array([[0, 1, 2, 2, 4], [1, 0, 2, 1, 0]])
WEIGHT = np.array([0.5, 1.0, 2.0, 0.0, 3.5])
ATTR = np.arange(10.0).reshape(5, 2)
X = np.arange(15.0).reshape(5, 3) / 7


def test_npz_and_folders(tmp_path):
    names = {
        "x": X,
        "edge_weight": WEIGHT,
        "edge_attr": ATTR,
        "pos": X[:, :2],
        "kind": np.arange(5),
    }
    np.savez_compressed(tmp_path / "g.npz", edge_index=EDGES, **names)
    np.savez(tmp_path / "h.npz", src=EDGES[0], dst=EDGES[1], **names)
    (tmp_path / "files").mkdir()
    for name, value in {**names, "edge_index": EDGES}.items():
        np.save(tmp_path / "files" / f"{name}.npy", value)
    for file in ("g.npz", "h.npz", "files"):
        whole = open_graph(tmp_path / file)
        for name, value in {**names, "edge_index": EDGES}.items():
            assert np.array_equal(whole[name], value)


def test_positions_say_how_many_nodes_there_are(tmp_path):
    """As a road network has them: one row a road, and positions of the junctions."""
    src, dst, km = np.array([0, 1, 2]), np.array([1, 2, 2]), np.array([5.0, 7.0, 1.0])
    np.savez(tmp_path / "r.npz", src=src, dst=dst, edge_weight=km, pos=np.ones((6, 2)))
    whole = open_graph(tmp_path / "r.npz")
    assert whole.num_nodes == 6
    found = sorted(zip(*whole.edge_index.tolist(), whole.edge_weight.tolist(), strict=True))
    assert found == [(0, 1, 5.0), (1, 2, 7.0), (2, 2, 1.0)]
    assert whole.pos.shape == (6, 2)


def test_pyg_data(tmp_path):
    data = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]))
    torch.save(data, tmp_path / "d.pt")
    whole = open_graph(tmp_path / "d.pt")
    assert np.array_equal(whole.x, data.x.numpy())
    torch.save([1, 2], tmp_path / "d.pt")
    with pytest.raises(DataError, match="holds a list; expected a PyG Data"):
        open_graph(tmp_path / "d.pt")


def test_bad_files_are_named(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_graph(tmp_path / "nothing.npz")
    (tmp_path / "a.xyz").write_text("")
    with pytest.raises(ConfigError, match=r"expected a folder, \.npz or \.pt"):
        open_graph(tmp_path / "a.xyz")
    for name in ("a.npz", "a.pt"):
        (tmp_path / name).write_text("not this")
        with pytest.raises(DataError, match="cannot be read"):
            open_graph(tmp_path / name)
    np.savez(tmp_path / "b.npz", x=X)
    with pytest.raises(DataError, match="expected edge_index, or src and dst"):
        open_graph(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", edge_index=EDGES, x=np.full((5, 1), "a"))
    with pytest.raises(FeatureError, match="x holds <U1; expected numbers"):
        open_graph(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", edge_index=EDGES, x=X[:2])
    with pytest.raises(GraphError, match="names nodes 0 to 4; expected 0 to 1"):
        open_graph(tmp_path / "d.npz")
