"""Graphs on the disk: parts hold what they should, and damage is found."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from hogwild import GSDGNN, IGNN, EnergyGNN, Inputs, SoftEnergyGNN
from hogwild.cluster.store import Store
from hogwild.errors import ConfigError, DataError, GraphError, InputError


@st.composite
def graphs(draw):
    """Small graphs with self-loops, parallel edges and isolated nodes, and any parts."""
    n = draw(st.integers(1, 12))
    ends = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=30))
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    count = len(pairs)
    graph = Inputs(
        torch.randn(n, 3, generator=random, dtype=torch.float64),
        torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous(),
        torch.randn(count, 2, generator=random, dtype=torch.float64),
        edge_weight=torch.rand(count, generator=random, dtype=torch.float64),
        nodes={"y": torch.randint(5, (n,), generator=random)},
        edges={"name": torch.arange(count)},
    )
    count = draw(st.integers(1, n + 3))
    part = np.array(draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n)))
    return graph, part


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([1, 2]), st.sampled_from([0, 1, 3]))
def test_parts_hold_what_they_should(tmp_path_factory, found, hops, overlap):
    graph, part = found
    folder = tmp_path_factory.mktemp("store") / "s"
    store = Store.write(folder, graph, part, overlap=overlap, hops=hops)
    count, part = len(set(part)), np.unique(part, return_inverse=True)[1]  # without empty parts
    assert (store.num_nodes, store.num_edges) == (graph.num_nodes, graph.edge_index.size(1))
    assert (store.num_parts, store.hops, store.channels, store.edge_dim) == (count, hops, 3, 2)
    assert np.array_equal(store.parts, part)
    store.check()
    src, dst = graph.edge_index.numpy()
    weight = graph.edge_weight.numpy()
    received, sent = (np.bincount(ends, weight, minlength=len(part)) for ends in (dst, src))
    pieces = [store.part(p) for p in range(count)]
    assert np.array_equal(np.sort(np.concatenate([p.nodes for p in pieces])), np.arange(len(part)))
    for p, piece in enumerate(pieces):
        mine, owned = part == p, len(piece.nodes)
        assert np.array_equal(piece.nodes, np.flatnonzero(mine))
        within, halo, left = mine.copy(), [np.empty(0, dtype=int)], hops
        edges = np.zeros(len(src), dtype=bool)
        while within.sum() < piece.free or left:  # the rings of the overlap, and one for each hop
            assert within.sum() <= piece.free or left < hops
            left -= within.sum() >= piece.free
            edges = within[src] | within[dst]
            new = np.zeros_like(within)
            new[src[edges]] = new[dst[edges]] = True
            halo.append(np.flatnonzero(new & ~within))
            within |= new
        assert len(halo) - 1 <= overlap + hops
        local, names = torch.cat([piece.nodes, piece.halo]), piece.inputs.edges["name"]
        assert np.array_equal(np.sort(names), np.flatnonzero(edges))
        assert np.array_equal(piece.halo, np.concatenate(halo))
        assert piece.free <= max(1.25 * owned, owned + 16)
        assert np.array_equal(piece.owner, part[piece.halo.numpy()])
        read = piece.inputs
        assert np.array_equal(local[read.edge_index], graph.edge_index[:, names])
        assert torch.equal(read.x, graph.x[local])
        assert torch.equal(read.nodes["y"], graph.nodes["y"][local])
        assert torch.equal(read.edge_attr, graph.edge_attr[names])
        assert torch.equal(read.edge_weight, graph.edge_weight[names])
        np.testing.assert_allclose(read.degrees, np.stack([received, sent], 1)[local.numpy()])
        assert store.counts[p] == (owned, len(piece.halo), len(names))
        for q, other in enumerate(pieces):
            gives = piece.nodes[piece.sends[q]] if q in piece.sends else []
            at = other.receives.get(p, torch.empty(0, dtype=torch.long)) - other.owned
            assert np.array_equal(gives, other.halo[at])
        assert p not in piece.sends
        assert np.array_equal(np.sort(np.concatenate([*piece.receives.values(), []])),
                              np.arange(owned, len(local)))  # fmt: skip


def models():
    torch.manual_seed(0)
    return {
        "edge-wise": (EnergyGNN(3, out_channels=1, edge_dim=2), 2),
        "normalised": (EnergyGNN(3, out_channels=1, edge_dim=2, normalize=True), 2),
        "mean": (EnergyGNN(3, out_channels=1, edge_dim=2, aggr="mean"), 2),
        "attention": (EnergyGNN(3, out_channels=1, edge_dim=2, heads=2), 2),
        "gsd": (GSDGNN(3, out_channels=1), 1),
        "gsd, two hops": (GSDGNN(3, out_channels=1), 2),
        "ignn": (IGNN(3, out_channels=1), 1),
    }


@pytest.mark.parametrize("name", models())
@settings(max_examples=15, deadline=None)
@given(found=graphs())
def test_free_rows_are_those_of_the_whole_problem(tmp_path_factory, name, found):
    """The degrees are carried, never recomputed from a part."""
    graph, part = found
    model, hops = models()[name]
    model = model.double()
    if model.conv.edge_dim is None:
        graph.edge_attr = None
    store = Store.write(tmp_path_factory.mktemp("store") / "s", graph, part, hops=hops)

    def rows(inputs, h):
        return model.problem(inputs).residual(h)[0].T

    h = torch.randn(1, 2, graph.num_nodes, dtype=torch.float64)
    exact = rows(graph, h)
    for p in range(store.num_parts):
        piece = store.part(p)
        local = torch.cat([piece.nodes, piece.halo])
        free = rows(piece.inputs, h[..., local])[: piece.free]
        torch.testing.assert_close(free, exact[local[: piece.free]], rtol=0, atol=1e-12)


def small(**more):
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return Data(x=torch.arange(6.0).view(3, 2), edge_index=edge_index, **more)


def test_parts_are_memory_mapped(tmp_path):
    piece = Store.write(tmp_path / "s", small(), [0, 1, 1]).part(1)
    before = (tmp_path / "s/part-00001.pt").read_bytes()
    piece.inputs.x[:] = 7.0  # a worker may write into its own memory
    assert (tmp_path / "s/part-00001.pt").read_bytes() == before


def test_a_folder_is_complete_or_absent(tmp_path):
    store = Store.write(tmp_path / "s", small(), [0, 1, 1])
    with pytest.raises(DataError, match="overwrite=True"):
        Store.write(tmp_path / "s", small(), [0, 1, 1])
    bad = Inputs(torch.zeros(3, 1), torch.tensor([[0], [7]]))
    with pytest.raises(GraphError, match="names nodes 0 to 7; expected 0 to 2"):
        Store.write(tmp_path / "s", bad, [0, 0, 0], overwrite=True)
    assert Store.open(tmp_path / "s") == store
    assert Store.write(tmp_path / "s", small(), [0, 0, 0], overwrite=True).num_parts == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(DataError, match="exists already"):
        Store.write(tmp_path / "mine", small(), [0, 0, 0], overwrite=True)
    assert (tmp_path / "mine/notes.txt").exists()


def test_damage_is_found(tmp_path):
    with pytest.raises(DataError, match=r"no index\.json"):
        Store.open(tmp_path)
    folder = tmp_path / "s"
    store = Store.write(folder, small(), [0, 1, 1])
    index = json.loads((folder / "index.json").read_text())
    for changes, words in (({"version": 99}, "version 99; expected"), ({"num_nodes": 4}, "wrong")):
        (folder / "index.json").write_text(json.dumps(index | changes))
        with pytest.raises(DataError, match=words):
            Store.open(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        Store.open(folder)
    file = folder / "part-00001.pt"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    for damaged in (content, content[:-3]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"part-00001\.pt is damaged"):
            store.check()
    file.unlink()
    with pytest.raises(DataError, match=r"part-00001\.pt is missing"):
        store.check(1)
    store.check(0)


def test_bad_input_is_refused(tmp_path):
    data, folder = small(), tmp_path / "s"
    with pytest.raises(GraphError, match=r"expected integers \[3\]"):
        Store.write(folder, data, [0, 1])
    with pytest.raises(InputError, match="a batch of 2 graphs"):
        Store.write(folder, Batch.from_data_list([data, data]), [0] * 6)
    with pytest.raises(InputError, match="a part of a larger graph"):
        Store.write(folder, Inputs(data.x, data.edge_index, degrees=torch.ones(3, 2)), [0] * 3)
    assert not folder.exists()
    store = Store.write(folder, data, [0, 1, 1])
    with pytest.raises(ConfigError, match="expected a part from 0 to 1"):
        store.part(2)
    with pytest.raises(ConfigError, match="expected 1 or 2"):
        Store.write(tmp_path / "t", data, [0, 1, 1], hops=3)
    with pytest.raises(GraphError, match="needs the whole graph"):
        SoftEnergyGNN(2, out_channels=1, heads=2).problem(store.part(0).inputs)
