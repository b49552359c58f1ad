"""The trained models that come with the package: small, in safetensors, one folder for each task
and model. ``experiments/page.py`` trains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hogwild.errors import require_one_of
from hogwild.models.gnn import ConvGNN
from hogwild.training.checkpoint import load
from hogwild.training.registry import entry

FOLDER = Path(__file__).parent / "trained"


@dataclass(frozen=True)
class Kind:
    """A model of the page: its title, its name in :data:`hogwild.training.registry.MODELS`, and a
    sentence about it."""

    title: str
    name: str
    about: str


MODELS: dict[str, Kind] = {
    "energy": Kind("Energy GNN", "energy-edge", "its answer is the minimum of one convex energy"),
    "soft": Kind("Soft energy GNN", "soft", "the same, in packets of as many numbers as channels"),
    "gsdgnn": Kind("GSDGNN", "gsdgnn", "its answer is the minimum of one quadratic energy"),
    "ignn": Kind("IGNN", "ignn", "its answer is the fixed point of a contraction"),
    "gcn": Kind("GCN", "gcn", "its answer is the last of five layers"),
    "gat": Kind("GAT", "gat", "its answer is the last of five layers, with attention"),
}


def trained(task: str, model: str) -> ConvGNN:
    """The trained model of a task, in float64, ready to be run."""
    require_one_of(tuple(MODELS), model=model)
    folder = FOLDER / f"{task}-{model}"
    extra = load(folder).extra
    found: ConvGNN = entry(extra["model"]).type(extra["in_channels"], **extra["options"]).double()
    load(folder, found)
    return found.eval()
