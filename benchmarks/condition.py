r"""The condition number of a fresh energy, by the size of its features.

Random graphs of 12 nodes and 24 edges, 3 features, fresh energy GNNs of four kinds, 12 seeds each.
All features are standard normal, but those of one node are ±L. The benchmark reports the median and
the largest condition number of the dense Hessian, the larger one of those at zero and at the
solution. ``hogwild.nn.Standardize`` bounds features by 8 because of these numbers.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch_geometric.data import Data
from training_step import table

from hogwild import EnergyGNN

KINDS = {
    "edge": {}, "attention": {"heads": 2}, "node": {"message": "node"},
    "edge, k = 8": {"hidden_channels": 8},
}  # fmt: skip


@torch.no_grad()
def condition(model: EnergyGNN, data: Data) -> float:
    """The larger condition number of the Hessian at zero and at the solution."""
    problem = model.problem(data).detach()
    h = model.embed(data).value.mT.unsqueeze(0)
    basis = torch.eye(h.numel(), dtype=h.dtype).view(-1, *h.shape)
    found = []
    for at in (torch.zeros_like(h), h):
        hessian = problem.evaluate(at).hessian()
        spectrum = torch.linalg.eigvalsh(torch.stack([hessian.apply(v).flatten() for v in basis]))
        found.append(float(spectrum[-1] / spectrum[0]))
    return max(found)


def trial(seed: int, size: float, options: dict[str, object]) -> float:
    torch.manual_seed(seed)
    x = torch.randn(12, 3, dtype=torch.float64)
    x[seed % 12] = size * torch.randn(3).sign()
    edges = torch.randint(12, (2, 24))
    data = Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1))
    model = EnergyGNN(3, out_channels=1, **options).double()
    model.features.advises = False
    return condition(model, data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1,8,31,100", help="L; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=12)
    arguments = parser.parse_args()
    rows = []
    for size in map(float, arguments.sizes.split(",")):
        for name, options in KINDS.items():
            found = [trial(seed, size, options) for seed in range(arguments.seeds)]
            rows.append([f"{size:g}", name, f"{statistics.median(found):.0f}", f"{max(found):.0f}"])
    print(table(("L", "energy", "median", "largest"), rows))


if __name__ == "__main__":
    main()
