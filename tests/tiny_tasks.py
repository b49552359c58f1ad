"""Two tiny tasks: chains (node level, no folds) and sums of bits (graph level, folds)."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from hogwild.training.own import parts


def chain(n):
    a = torch.arange(n - 1)
    return torch.cat([torch.stack([a, a + 1]), torch.stack([a + 1, a])], 1)


class Chains:
    """Two chains; only the first node of each knows which it is."""

    name, metric_name, higher_is_better = "tiny chains", "error", False
    in_channels, out_channels, edge_dim, pool = 2, 1, None, None

    def __init__(self, length=5):
        self.graphs = []
        for c in range(2):
            x = torch.zeros(length, 2)
            x[0, c] = 1.0
            self.graphs.append(Data(x=x, edge_index=chain(length), y=torch.full((length,), c)))

    def splits(self, folds=None, seed=0):
        return parts(2, folds, seed)

    def _mean(self, value, data, mask):  # [R, N] -> [R]
        if mask is None:
            return value.mean(-1)
        counts = mask[..., data.batch].to(value.dtype)
        return (value * counts).sum(-1) / counts.sum(-1)

    def loss(self, out, data, mask=None):
        y = data.y.to(out.dtype).expand(out.shape[:-1])
        value = F.binary_cross_entropy_with_logits(out[..., 0], y, reduction="none")
        return self._mean(value, data, mask)

    def metric(self, out, data, mask=None):
        wrong = (out[..., 0] > 0) != (data.y == 1)
        return self._mean(100.0 * wrong.to(out.dtype), data, mask)


class Sums:
    """Chains of random bits; a graph's target is their sum."""

    name, metric_name, higher_is_better = "tiny sums", "squared error", False
    in_channels, out_channels, edge_dim, pool = 1, 1, None, "mean"

    def __init__(self, count=9, length=4):
        random = torch.Generator().manual_seed(0)
        self.graphs = []
        for _ in range(count):
            x = torch.randint(2, (length, 1), generator=random).float()
            y = x.sum().view(1, 1)
            self.graphs.append(Data(x=x, edge_index=chain(length), y=y))

    def splits(self, folds=None, seed=0):
        return parts(len(self.graphs), folds or 3, seed)

    def loss(self, out, data, mask=None):
        value = (out[..., 0] - data.y[:, 0]).square()  # [R, G]
        if mask is None:
            return value.mean(-1)
        return (value * mask).sum(-1) / mask.sum(-1)

    metric = loss
