"""An energy GNN in PyTorch Lightning: training, validation, checkpoints, on PyG's DataLoaders.

The code is ordinary Lightning code. A solve that fails raises an error in ``forward`` or
``backward``. With ``on_failure="warn"`` training continues.
"""

import tempfile
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import erdos_renyi_graph

import hogwild


def graphs(count: int, nodes: int = 8) -> list[Data]:
    """Random graphs. Every node has a number; its target is the largest in its neighbourhood."""
    out = []
    for _ in range(count):
        edge_index, x = erdos_renyi_graph(nodes, 0.4), torch.rand(nodes, 1)
        y = x.scatter_reduce(0, edge_index[1:].T, x[edge_index[0]], "amax")
        out.append(Data(x=x, edge_index=edge_index, y=y))
    return out


class NodeRegression(L.LightningModule):
    """Predict a number for every node; ``options`` are those of :class:`hogwild.SoftEnergyGNN`."""

    def __init__(
        self, in_channels: int, out_channels: int, lr: float = 0.02, **options: object
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = hogwild.SoftEnergyGNN(in_channels, out_channels=out_channels, **options)

    def forward(self, batch: Batch) -> Tensor:
        return self.model(batch.x, batch.edge_index, batch=batch.batch)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self._loss("train", batch)

    def validation_step(self, batch: Batch, index: int) -> None:
        self._loss("val", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)

    def _loss(self, name: str, batch: Batch) -> Tensor:
        loss = F.mse_loss(self(batch), batch.y)
        # Lightning cannot find out the size of a PyG batch.
        self.log(f"{name}_loss", loss, on_epoch=True, batch_size=batch.num_nodes)
        return loss


def main(folder: str | Path, epochs: int = 40) -> tuple[L.Trainer, NodeRegression]:
    """Train; return the trainer and the module that is best on the validation graphs."""
    L.seed_everything(0, verbose=False)
    train = DataLoader(graphs(48), batch_size=16, shuffle=True)
    val = DataLoader(graphs(16), batch_size=16)
    best = ModelCheckpoint(folder, monitor="val_loss")
    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[best],
        gradient_clip_val=1.0,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(NodeRegression(1, 1), train, val)
    module = NodeRegression.load_from_checkpoint(best.best_model_path)
    trainer.validate(module, val)
    return trainer, module


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
