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
from hogwild.cluster.whole import Whole
from hogwild.errors import ConfigError, DataError, GraphError, InputError


@st.composite
def graphs(draw, undirected=False):
    """Small graphs with self-loops, parallel edges and isolated nodes, and any parts."""
    n = draw(st.integers(1, 12))
    ends = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=30))
    if undirected:
        pairs += [(j, i) for i, j in pairs]
    edge_index = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    random = np.random.default_rng(draw(st.integers(0, 99)))
    whole = Whole(
        edge_index,
        random.standard_normal((n, 3)),
        random.standard_normal((len(pairs), 2)),
        random.random(len(pairs)),
        {"y": random.integers(5, size=n)},
        {"name": np.arange(len(pairs))},
    )
    count = draw(st.integers(1, n + 3))
    part = np.array(draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n)))
    return whole, part, count


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([1, 2]), st.sampled_from([0, 1, 3]))
def test_parts_hold_what_they_should(tmp_path_factory, found, hops, overlap):
    whole, part, count = found
    folder = tmp_path_factory.mktemp("store") / "s"
    store = Store.write(folder, whole, part, num_parts=count)
    assert (store.num_nodes, store.num_edges) == (whole.num_nodes, whole.num_edges)
    assert (store.num_parts, store.channels, store.edge_dim) == (count, 3, 2)
    assert np.array_equal(store.parts, part)
    store.check()
    src, dst = whole.edge_index
    pieces = [store.part(p, hops, overlap) for p in range(count)]
    assert np.array_equal(np.sort(np.concatenate([p.nodes for p in pieces])), np.arange(len(part)))
    for p, piece in enumerate(pieces):
        mine = part == p
        assert np.array_equal(piece.nodes, np.flatnonzero(mine))
        assert piece.overlap <= overlap
        within = mine.copy()  # the nodes so many hops away
        edges, halo = np.zeros(len(src), dtype=bool), [np.empty(0, dtype=int)]
        for ring in range(hops + piece.overlap):
            assert piece.num_free == within.sum() or ring != piece.overlap
            edges |= within[src] | within[dst]
            new = np.zeros_like(within)
            new[src[edges]] = new[dst[edges]] = True
            halo.append(np.flatnonzero(new & ~within))
            assert len(halo[-1]) == piece.rings[ring]
            within |= new
        assert np.array_equal(np.sort(piece.edges), np.flatnonzero(edges))
        assert np.array_equal(piece.halo, np.concatenate(halo))
        assert piece.num_free <= max(1.25 * len(piece.nodes), len(piece.nodes) + 16)
        assert np.array_equal(piece.owner, part[piece.halo])
        local = np.concatenate([piece.nodes, piece.halo])
        assert np.array_equal(local[piece.edge_index], whole.edge_index[:, piece.edges])
        assert np.array_equal(piece.x, whole.x[local])
        assert np.array_equal(piece.node_fields["y"], whole.node_fields["y"][local])
        assert np.array_equal(piece.edge_fields["name"], piece.edges)
        assert np.array_equal(piece.edge_attr, whole.edge_attr[piece.edges])
        assert np.array_equal(piece.edge_weight, whole.edge_weight[piece.edges])
        received = np.bincount(dst, whole.edge_weight, minlength=len(part))
        sent = np.bincount(src, whole.edge_weight, minlength=len(part))
        np.testing.assert_allclose(piece.degrees, np.stack([received, sent], 1)[local])
        assert store.counts(hops, overlap)[p] == (
            len(piece.nodes),
            len(piece.halo),
            len(piece.edges),
        )
        for q, other in enumerate(pieces):
            gives = piece.nodes[piece.sends[q]] if q in piece.sends else []
            takes = other.halo[other.receives[p] - other.num_owned] if p in other.receives else []
            assert np.array_equal(gives, takes)
        assert p not in piece.sends
    for p in pieces:
        assert np.array_equal(np.sort(np.concatenate([*p.receives.values(), []])),
                              np.arange(p.num_owned, p.num_local))  # fmt: skip


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
    whole, part, count = found
    model, hops = models()[name]
    model = model.double()
    store = Store.write(tmp_path_factory.mktemp("store") / "s", whole, part, num_parts=count)

    def rows(inputs, h):
        if model.conv.edge_dim is None:
            inputs.edge_attr = None
        return model.problem(inputs).residual(h)[0].T

    h = torch.randn(1, 2, whole.num_nodes, dtype=torch.float64)
    exact = rows(whole.inputs(), h)
    for p in range(count):
        piece = store.part(p, hops, overlap=None)
        if piece.num_owned:
            local = torch.from_numpy(np.concatenate([piece.nodes, piece.halo]))
            free = rows(piece.inputs(), h[..., local])[: piece.num_free]
            torch.testing.assert_close(free, exact[local[: piece.num_free]], rtol=0, atol=1e-12)


def small(**more):
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return Data(x=torch.arange(6.0).view(3, 2), edge_index=edge_index, **more)


def test_pyg_data_round_trip(tmp_path):
    data = small(edge_attr=torch.rand(4), y=torch.tensor([1, 0, 1]), name="a", pos=torch.rand(3, 2))
    store = Store.write(tmp_path / "s", data, [0, 0, 0])
    inputs = store.part(0).inputs()
    assert torch.equal(inputs.x, data.x)
    assert torch.equal(inputs.edge_index, data.edge_index)
    assert torch.equal(inputs.edge_attr, data.edge_attr[:, None])
    assert torch.equal(inputs.nodes["y"], data.y)
    assert torch.equal(inputs.nodes["pos"], data.pos)
    assert not store.part(0).sends


def test_one_part_solves_as_the_whole(tmp_path):
    data = small()
    torch.manual_seed(0)
    for model in (EnergyGNN(2, out_channels=1), GSDGNN(2, out_channels=1), IGNN(2, out_channels=1)):
        inputs = Store.write(tmp_path / type(model).__name__, data, [0, 0, 0]).part(0).inputs()
        assert torch.equal(model.embed(inputs).value, model.embed(data).value)


def test_parts_are_memory_mapped(tmp_path):
    piece = Store.write(tmp_path / "s", small(), [0, 1, 1]).part(1)
    assert isinstance(piece.x, np.memmap)
    before = (tmp_path / "s/part-00001/x.npy").read_bytes()
    piece.x[:] = 7.0  # a worker may write into its own memory
    assert (tmp_path / "s/part-00001/x.npy").read_bytes() == before


def test_a_folder_is_complete_or_absent(tmp_path, monkeypatch):
    store = Store.write(tmp_path / "s", small(), [0, 1, 1])
    with pytest.raises(DataError, match="overwrite=True"):
        Store.write(tmp_path / "s", small(), [0, 1, 1])
    bad = Whole(np.array([[0], [7]]), np.zeros((3, 1)))
    with pytest.raises(GraphError, match="name nodes 7 to 7; expected 0 to 2"):
        Store.write(tmp_path / "s", bad, [0, 0, 0], overwrite=True)
    assert Store.open(tmp_path / "s").index == store.index
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

    def write(**changes):
        (folder / "index.json").write_text(json.dumps(index | changes))

    write(version=99)
    with pytest.raises(DataError, match="version 99; expected"):
        Store.open(folder)
    write(num_nodes=4)
    with pytest.raises(DataError, match="wrong checksum"):
        Store.open(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        Store.open(folder)
    write()
    file = folder / "part-00001/x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy is damaged"):
        store.check()
    file.write_bytes(content[:-3])
    with pytest.raises(DataError, match=r"x\.npy has \d+ bytes; expected"):
        Store.open(folder)
    file.unlink()
    with pytest.raises(DataError, match=r"x\.npy is missing"):
        Store.open(folder)


def test_bad_input_is_refused(tmp_path):
    data, folder = small(), tmp_path / "s"
    with pytest.raises(GraphError, match=r"expected integers \[3\]"):
        Store.write(folder, data, [0, 1])
    with pytest.raises(GraphError, match="part holds 0 to 5; expected 0 to 1"):
        Store.write(folder, data, [0, 1, 5], num_parts=2)
    with pytest.raises(InputError, match="a batch of 2 graphs"):
        Store.write(folder, Batch.from_data_list([data, data]), [0] * 6)
    with pytest.raises(InputError, match="a part of a larger graph"):
        Store.write(folder, Inputs(data.x, data.edge_index, degrees=torch.ones(3, 2)), [0] * 3)
    assert not folder.exists()
    store = Store.write(folder, data, [0, 1, 1])
    with pytest.raises(ConfigError, match="expected a part from 0 to 1"):
        store.part(2)
    with pytest.raises(ConfigError, match="expected 1 or 2"):
        store.part(0, hops=3)


def test_what_needs_the_whole_graph_refuses_a_part(tmp_path):
    inputs = Store.write(tmp_path / "s", small(), [0, 1, 1]).part(0).inputs()
    with pytest.raises(GraphError, match="needs the whole graph"):
        SoftEnergyGNN(2, out_channels=1, heads=2).problem(inputs)
