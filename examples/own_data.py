"""Train on your own PyG dataset with your own loss, then run the model asynchronously."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph

import hogwild


def graphs(count: int = 40, nodes: int = 8) -> list[Data]:
    """Random graphs. Every node has a number; its target is the mean of its neighbours' numbers."""
    out = []
    for _ in range(count):
        edge_index, x = erdos_renyi_graph(nodes, 0.4), torch.randn(nodes, 1)
        total = torch.zeros(nodes, 1).index_add(0, edge_index[1], x[edge_index[0]])
        degree = torch.bincount(edge_index[1], minlength=nodes).clamp_min(1).unsqueeze(1)
        out.append(Data(x=x, edge_index=edge_index, y=total / degree))
    return out


def main(epochs: int = 30) -> hogwild.training.Result:
    torch.manual_seed(0)
    data = graphs()
    result = hogwild.train(
        data, model="soft", loss=F.smooth_l1_loss, epochs=epochs, lr=0.02, replicas=3
    )
    print(result.summary())
    print(hogwild.simulate(result.model, data[0], stagger=5, delay=2))
    return result


if __name__ == "__main__":
    main()
