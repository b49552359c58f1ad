"""The example with PyTorch Lightning: it learns, and its checkpoint is the model it validated."""

import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Batch

pytest.importorskip("lightning", reason="lightning is not installed: its example is not tested")

EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_module.py"


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec")  # Lightning's, about torch
def test_example(tmp_path):
    trainer, module = runpy.run_path(str(EXAMPLE))["main"](tmp_path)
    val = Batch.from_data_list(trainer.val_dataloaders.dataset)
    error = F.mse_loss(module(val), val.y).detach()
    constant = val.y.var(correction=0)
    assert error < 0.5 * constant
    (file,) = tmp_path.glob("*.ckpt")
    kept = torch.load(file, weights_only=True)
    assert kept["hyper_parameters"] == {"in_channels": 1, "out_channels": 1, "lr": 0.02}
    best = next(c for name, c in kept["callbacks"].items() if "ModelCheckpoint" in name)
    torch.testing.assert_close(error, best["best_model_score"])
    torch.testing.assert_close(error, trainer.callback_metrics["val_loss"])
