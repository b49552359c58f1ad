"""PPI through PyG's loader, on small files in its format."""

import numpy as np
import torch
from samples import write_ppi

from hogwild import tasks


def test_small_files(home):
    write_ppi(home, (3, 2, 2))
    task = tasks.get("ppi", download=False)
    assert (task.in_channels, task.out_channels, task.edge_dim, task.pool) == (3, 2, None, None)
    (split,) = task.splits()
    assert [split.train.tolist(), split.val.tolist(), split.test.tolist()] == [
        [0, 1, 2],
        [3, 4],
        [5, 6],
    ]
    for g in task.graphs:
        assert {tuple(e) for e in g.edge_index.T.tolist()} == {
            e for i in range(4) for e in ((i, (i + 1) % 4), ((i + 1) % 4, i))
        }
    for part, file in ((split.train, "train"), (split.val, "valid"), (split.test, "test")):
        for key, name in (("x", "feats"), ("y", "labels")):
            expected = np.load(home / "PPI" / "raw" / f"{file}_{name}.npy")
            found = torch.cat([task.graphs[g][key] for g in part])
            torch.testing.assert_close(found, torch.from_numpy(expected).float())
