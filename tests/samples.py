"""Small data sets in the formats of the real ones, and small tasks of every kind."""

import gzip
import json
import struct

import numpy as np
import torch

from hogwild import tasks
from hogwild.tasks.benchmarks import ATOM, BOND

SYNTHETIC = {
    "chains": {"length": 5},
    "counting": {"sizes": list(range(1, 13))},
    "sums": {"num_graphs": 12, "sizes": 6},
    "coordinates": {"num_graphs": 12, "num_nodes": 5},
    "moving-source": {"sequences": 12, "moments": 1, "num_nodes": 5, "degree": 2.0},
    "moving-swarm": {"sequences": 12, "moments": 1, "num_nodes": 5},
    "robots": {"num_graphs": 12, "num_nodes": 5, "degree": 2.0},
}
FILED = ("terrain", "mutag", "proteins", "ppi", "peptides-func", "peptides-struct")


def small(name, home):
    """A task of a dozen small graphs; those that read files get them written first."""
    return tasks.get(name, **options(name, home))


def options(name, home):
    """Those that make a task small, its files written."""
    if name in SYNTHETIC:
        return SYNTHETIC[name]
    if name == "terrain":
        write_mnist(home)
        return {"agents": 4, "download": False}
    if name in ("mutag", "proteins"):
        write_tu(home, name.upper())
    elif name == "ppi":
        write_ppi(home)
    else:
        write_lrgb(home, name)
    return {"download": False}


def mnist(counts=(10, 6), seed=0):
    """MNIST's four files, unpacked: noise in the shape of its images, of digits 0, 1, 2, 0, …"""
    random = np.random.default_rng(seed)
    out = {}
    for split, n in zip(("train", "t10k"), counts, strict=True):
        images = random.integers(0, 256, (n, 28, 28), np.uint8)
        labels = (np.arange(n) % 3).astype(np.uint8)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            out[f"{split}-{name}"] = head + values.tobytes()
    return out


def write_mnist(home):
    folder = home / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, raw in mnist().items():
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(raw))


def write_tu(home, name, graphs=12, seed=0):
    """Rings of 3 to 6 nodes as the collection's text files; a third of them in class -1."""
    random = np.random.default_rng(seed)
    sizes = random.integers(3, 7, graphs)
    start = np.r_[0, np.cumsum(sizes)]
    lines = {"A": [], "edge_labels": []}
    for n, first in zip(sizes, start, strict=False):
        for i in range(n):
            a, b = first + i + 1, first + (i + 1) % n + 1  # the files count from one
            lines["A"] += [f"{a}, {b}", f"{b}, {a}"]
            lines["edge_labels"] += [str(i % 2)] * 2
    lines["graph_indicator"] = [str(g + 1) for g, n in enumerate(sizes) for _ in range(n)]
    lines["graph_labels"] = ["1" if g % 3 else "-1" for g in range(graphs)]
    lines["node_labels"] = [str(v) for v in np.arange(start[-1]) % 3]
    folder = home / "TUDataset" / name / "raw"
    folder.mkdir(parents=True)
    for key, rows in lines.items():
        (folder / f"{name}_{key}.txt").write_text("\n".join(rows) + "\n")
    return sizes


def write_ppi(home, counts=(3, 2, 2), seed=0):
    """Networks of 4 nodes, 3 features and 2 labels as the twelve files."""
    random = np.random.default_rng(seed)
    folder = home / "PPI" / "raw"
    folder.mkdir(parents=True)
    for split, graphs in zip(("train", "valid", "test"), counts, strict=True):
        links = [
            {"source": 4 * g + i, "target": 4 * g + (i + 1) % 4}
            for g in range(graphs)
            for i in range(4)
        ]
        nodes = [{"id": i} for i in range(4 * graphs)]
        text = {"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "links": links}
        (folder / f"{split}_graph.json").write_text(json.dumps(text))
        np.save(folder / f"{split}_feats.npy", random.standard_normal((4 * graphs, 3)))
        np.save(folder / f"{split}_labels.npy", random.integers(0, 2, (4 * graphs, 2)))
        np.save(folder / f"{split}_graph_id.npy", np.repeat(np.arange(graphs) + 7, 4))


def peptides(name, counts=(6, 3, 3), seed=0):
    """For each part, tuples (x, edge_attr, edge_index, y) of chains, bond after bond both ways."""
    random = np.random.default_rng(seed)
    parts = []
    for graphs in counts:
        part = []
        for _ in range(graphs):
            n = int(random.integers(2, 6))
            x = torch.from_numpy(random.integers(0, ATOM, (n, 9)))
            attr = torch.from_numpy(random.integers(0, BOND, (n - 1, 3))).repeat_interleave(2, 0)
            i = torch.arange(n - 1)
            both = torch.stack([torch.stack([i, i + 1]), torch.stack([i + 1, i])], -1)
            if name == "peptides-func":
                y = torch.from_numpy(random.integers(0, 2, (1, 10))).float()
            else:
                y = torch.from_numpy(random.standard_normal((1, 11))).float()
            part.append((x, attr, both.reshape(2, -1), y))
        parts.append(part)
    return parts


def write_lrgb(home, name, **options):
    folder = home / name / "raw"
    folder.mkdir(parents=True)
    parts = peptides(name, **options)
    for split, part in zip(("train", "val", "test"), parts, strict=True):
        torch.save(part, folder / f"{split}.pt")
    return parts


def write_npz(home, **options):
    """The compact copy, its graphs in another order than the parts."""
    parts = peptides("peptides-func", **options)
    graphs = [g for part in parts for g in part][::-1]
    number = np.arange(len(graphs))[::-1]
    split = np.split(number, np.cumsum([len(p) for p in parts])[:-1])
    (home / "peptides-func").mkdir()
    np.savez(
        home / "peptides-func" / "peptides_func.npz",
        x=np.concatenate([g[0] for g in graphs]).astype(np.uint8),
        bonds=np.concatenate([g[2][:, ::2].T for g in graphs]).astype(np.int16),
        bond_attr=np.concatenate([g[1][::2] for g in graphs]).astype(np.uint8),
        num_nodes=np.array([len(g[0]) for g in graphs], np.int16),
        num_bonds=np.array([len(g[1]) // 2 for g in graphs], np.int16),
        y=np.concatenate([g[3] for g in graphs]).astype(np.uint8),
        **dict(zip(("train", "val", "test"), split, strict=True)),
    )
    return parts
