"""The course of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.plots.style import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(
    history: Sequence[Mapping[str, Any]], metric: str, path: str | Path | None = None
) -> Figure:
    """Training loss and validation metric over the epochs, a curve for each replica. The lines of
    the history have ``epoch``, ``loss`` [R] and ``validation`` [R] each."""
    epochs = [line["epoch"] for line in history]
    with figure(8.0, 3.0, path) as fig:
        labels = {"loss": "training loss", "validation": f"validation {metric}"}
        for ax, (key, label) in zip(fig.subplots(1, 2), labels.items(), strict=True):
            lines = [[float("nan") if v is None else v for v in line[key]] for line in history]
            ax.plot(
                epochs, lines, linewidth=0.8, alpha=0.7, marker="." if len(epochs) < 2 else None
            )
            ax.set_xlabel("epoch")
            ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            ax.set_ylabel(label)
            if key == "loss" and not any(v <= 0 for line in lines for v in line):
                ax.set_yscale("log")
    return fig
