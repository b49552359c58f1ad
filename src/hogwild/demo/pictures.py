"""The pictures of the demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hogwild.demo.study import DELAY, LOSS, LOSSY, MODELS, PAPER, STAGGER, Setting, Study
from hogwild.plots.charts import convergence, output_histogram
from hogwild.plots.deadlines import deadlines as by_deadline
from hogwild.plots.style import CYCLE, INK, RED, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: dict[str, dict[str, Any]] = {
    "gcn": {"color": CYCLE[0], "marker": "o", "linestyle": "dashed"},
    "gat": {"color": CYCLE[1], "marker": "s", "linestyle": "dotted"},
    "soft": {"color": CYCLE[2], "marker": "^", "linestyle": "solid"},
}


def answers(study: Study) -> Figure:
    """One test graph with every node's answer, in step above and under one schedule below."""
    data, told = study.graph, int(study.graph.hops.argmin())
    ends = data.pos[data.edge_index].numpy()  # [2, E, 2]
    with figure(7.2, 5.2, None) as fig:
        axes = fig.subplots(2, len(MODELS), squeeze=False)
        for column, (model, name) in enumerate(MODELS.items()):
            seen = study.many[model]
            for row, out in enumerate((seen.prediction, seen.run.predictions[0])):
                ax = axes[row, column]
                ax.plot(ends[..., 0], ends[..., 1], color=INK, linewidth=0.6, zorder=1)
                sure = torch.sigmoid(out[:, 0])
                sure = torch.where(data.y == 1, sure, 1 - sure)
                right = (out[:, 0] > 0) == (data.y == 1)
                for some, marker, edge, size in ((right, "o", INK, 90), (~right, "X", RED, 120)):
                    image = ax.scatter(
                        *data.pos[some].T.numpy(), c=sure[some].numpy(), marker=marker, s=size,
                        vmin=0, vmax=1, cmap="cividis", edgecolors=edge, linewidths=1.0, zorder=3,
                    )  # fmt: skip
                ax.plot(*data.pos[told].numpy(), "o", markersize=15, markerfacecolor="none",
                        markeredgecolor=INK, markeredgewidth=0.9, zorder=2)  # fmt: skip
                when = "in step" if row == 0 else f"S = {STAGGER}, D = {DELAY}"
                ax.set_title(f"{name}\n{when}: {int(right.sum())} of {len(right)} right")
                ax.set_xticks([])
                ax.set_yticks([])
                ax.set_aspect("equal")
                ax.margins(0.1)
                for spine in ax.spines.values():
                    spine.set_visible(False)
        bar = fig.colorbar(image, ax=axes, label="probability given to the right answer",
                           shrink=0.6, aspect=30)  # fmt: skip
        bar.outline.set_visible(False)
    return fig


def errors(study: Study) -> Figure:
    """Share of wrong nodes against delay, stagger and loss; bars are one deviation over
    schedules."""
    with figure(7.2, 2.9, None) as fig:
        left, right, lost = fig.subplots(1, 3, sharey=True, width_ratios=[3, 3, 2])
        scale = study.scale
        _lines(left, study, [Setting(STAGGER, d) for d in scale.delays], list(scale.delays))
        _lines(right, study, [Setting(s, DELAY) for s in scale.staggers], list(scale.staggers))
        _lines(lost, study, [PAPER, LOSSY], ["0 %", f"{LOSS:.0%}"])
        lost.set_xlabel(f"packets lost,\nS = {STAGGER}, D = {DELAY}")
        left.set_xlabel(f"delay D: largest age of\na packet (ticks), S = {STAGGER}")
        right.set_xlabel(f"stagger S: most ticks\nbetween updates, D = {DELAY}")
        left.set_ylabel("nodes that are wrong (%)")
        left.set_ylim(-2, max(60.0, 100 * study.guessing + 10))  # a line at 0 is off the axis
        fig.legend(*right.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return fig


def _lines(ax: Axes, study: Study, settings: list[Setting], ticks: Sequence[object]) -> None:
    """One line for each model over equally spaced settings, slightly shifted against each other."""
    for number, (model, name) in enumerate(MODELS.items()):
        values = [study.error(model, setting) for setting in settings]
        at = [i + 0.08 * (number - 1) for i in range(len(settings))]
        ax.errorbar(
            at, [100 * mean for mean, _ in values], [100 * deviation for _, deviation in values],
            label=name, markersize=4, capsize=2, elinewidth=0.8, clip_on=False, **LOOKS[model],
        )  # fmt: skip
    ax.axhline(100 * study.guessing, color=INK, linewidth=0.7, linestyle=(0, (1, 2)),
               label="guessing")  # fmt: skip
    ax.set_xticks(range(len(ticks)), [str(t) for t in ticks])


def histograms(study: Study) -> Figure:
    """Outputs of the node farthest from the one that was told, over many schedules."""
    titles = list(MODELS.values())
    fig = output_histogram(list(study.many.values()), study.node, titles=titles)
    legend = fig.axes[0].get_legend()
    if legend is not None:
        legend.remove()  # it may cover bars; the caption says what the dashed line is
    return fig


def deadlines(study: Study) -> Figure:
    """Error by deadline of all rows, with losses."""
    return by_deadline(study.deadlines)


def curves(study: Study) -> list[Figure]:
    """Convergence of the energy GNN, against updates and against ticks."""
    return [convergence(study.convergence, x=x) for x in ("updates", "ticks")]
