"""The examples run, and what they train learns."""

import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

LIGHTNING = Path(__file__).parents[1] / "examples" / "lightning_module.py"


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec")  # Lightning's, about torch
def test_lightning_module(tmp_path):
    """The checkpoint holds the model that was validated."""
    pytest.importorskip("lightning", reason="lightning is not installed: its example is not tested")
    trainer, module = runpy.run_path(str(LIGHTNING))["main"](tmp_path)
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


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec")
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_lightning_in_other_precisions(precision):
    """Lightning converts the parameters, and leaves the features of PyG's batches as they are."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    names = runpy.run_path(str(LIGHTNING))
    module = names["NodeRegression"](1, 1)
    before = [p.detach().clone() for p in module.parameters()]
    trainer = lightning.Trainer(
        max_epochs=1, precision=precision, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, *(DataLoader(names["graphs"](8), batch_size=4) for _ in range(2)))
    assert bool(trainer.callback_metrics["train_loss"].isfinite())
    after = [p.detach().to(b.dtype) for p, b in zip(module.parameters(), before, strict=True)]
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


OWN_DATA = Path(__file__).parents[1] / "examples" / "own_data.py"


def test_own_data(capsys):
    result = runpy.run_path(str(OWN_DATA))["main"](epochs=8)
    first, last = result.history[0]["loss"], result.history[-1]["loss"]
    assert min(last) < 0.5 * min(first)
    out = capsys.readouterr().out
    assert "soft on own data: 3 replicas" in out
    assert "1 of 1 runs within tolerance" in out
