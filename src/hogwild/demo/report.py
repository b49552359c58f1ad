"""The demonstration as one page of HTML, with all pictures inside."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import torch

from hogwild.demo.study import (
    DELAY,
    LOSS,
    LOSSY,
    MODELS,
    OPTIONS,
    PAPER,
    PRICE,
    ROWS,
    STAGGER,
    TOL,
    Setting,
    Study,
)
from hogwild.plots.charts import output_histogram
from hogwild.plots.courses import deadlines
from hogwild.plots.style import CYCLE, INK, RED, figure
from hogwild.progress import shown, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAYERED = [model for model in MODELS if model != "soft"]
LOOKS: dict[str, dict[str, Any]] = {
    "gcn": {"color": CYCLE[0], "marker": "o", "linestyle": "dashed"},
    "gat": {"color": CYCLE[1], "marker": "s", "linestyle": "dotted"},
    "soft": {"color": CYCLE[2], "marker": "^", "linestyle": "solid"},
}
STYLE = """
body { font: 16px/1.5 Georgia, serif; color: #222; background: #fff; max-width: 56rem;
       margin: 2rem auto; padding: 0 1rem; }
h1, h2 { font-family: Helvetica, Arial, sans-serif; line-height: 1.2; }
h2 { margin-top: 2.2rem; font-size: 1.2rem; }
figure { margin: 1rem 0; display: flex; flex-wrap: wrap; gap: .5rem; }
img { flex: 1 1 20rem; min-width: 0; max-width: 100%; align-self: flex-start; }
figcaption { flex-basis: 100%; }
.wide { overflow-x: auto; }
figcaption, footer { font-size: .85rem; color: #444; }
table { border-collapse: collapse; font-size: .85rem; }
td { white-space: nowrap; }
th, td { padding: .25rem .55rem; border-bottom: 1px solid #ccc; text-align: right; }
th:first-child, td:first-child { text-align: left; }
code { font-size: .9rem; background: #f3f3f3; overflow-wrap: anywhere; }
@media print { body { margin: 0; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


def report(study: Study) -> str:
    """The page."""
    n, told = study.graph.num_nodes, int(study.graph.hops.argmin())
    farthest, cone = int(study.graph.hops.max()), str(study.deadlines["energy GNN"].cone)
    sections = [
        _section("Every node's answer", _picture(
            _answers(study),
            caption=f"One test graph of {n} nodes. Node {told}, ringed, was told the answer. "
            f"Above: all nodes in step. Below: the first of the random schedules, S = {STAGGER} "
            f"and D = {DELAY}. A cross is a wrong answer. The darker a node is, the lower the "
            f"probability that it gives to the right answer.",
        )),
        _section("The task", _paragraphs(
            f"The {study.scale.pairs} random graphs have at most five hops between any two nodes, "
            f"and the layered models have five layers: in step they reach every node. Every graph "
            f"comes with both answers, so that guessing is wrong on {100 * study.guessing:.0f} % "
            f"of the nodes.",
            "The models were trained with all nodes in step. Then every node computed at its own "
            "pace: it updates at random times, at most S ticks apart (stagger), using packets up "
            "to D ticks old (delay). S = 1 and D = 0 is in step. In the last setting "
            f"{LOSS:.0%} of the packets were lost, at random.",
        )),
        _section("What happened", _table(study) + _words(study)),
        _section("Error against delay, stagger and loss", _picture(
            _errors(study),
            caption=f"Share of wrong nodes on {study.tested} test graphs, mean and standard "
            f"deviation over {study.scale.runs} random schedules for each point. The "
            f"dotted line is the error of guessing.",
        )),
        _section("One node under many schedules", _picture(
            _histograms(study),
            caption=f"Output (a logit: its sign is the answer) of node {study.node}, {farthest} "
            f"hops from the one that was told, over {study.scale.many} random schedules with "
            f"S = {STAGGER} and D = {DELAY}. The dashed line is its output in step. This is the "
            f"paper's Figure 1(d) for trained models.",
        )),
        _section("Error by deadline", _picture(
            deadlines(study.deadlines),
            caption=f"Share of wrong nodes if the nodes had to answer at once, against the updates "
            f"that a node has made (left) and the bytes that it has sent (right), mean over "
            f"{study.scale.runs} schedules with {LOSSY}; bands reach to the worst schedule. Dotted "
            f"lines are the errors in step. The grey band is the light cone: the updates after "
            f"which the last node of a graph has heard of every other. No answer that depends on "
            f"all nodes is complete before. Here only one node was told, and answers can be right "
            f"as soon as all others have heard of that one.",
        ) + _paragraphs(f"{cone[0].upper()}{cone[1:]}.", f"In time: {study.advice}")),
        _section("What to try next", f"<ul>\n<li>{'</li><li>'.join(NEXT)}</li>\n</ul>\n"),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Hogwild: a demonstration</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        "<h1>Graph neural networks, in step and out of step</h1>\n"
        + _lead(study)
        + "\n".join(sections)
        + f"\n<footer>Seed {study.seed}; computed in {study.seconds:.0f} s by "
        "<code>hogwild demo</code>.</footer>\n</body>\n</html>\n"
    )


def _lead(study: Study) -> str:
    """The page in three sentences."""
    worst = {m: max(study.error(m, s)[0] for s in study.results[m]) for m in MODELS}
    wrong = ", ".join(f"{100 * worst[m]:.0f}\u00a0% ({MODELS[m]})" for m in MODELS)
    return _paragraphs(
        f"One sensor in a field is told one of two answers, and all must find it out from their "
        f"neighbours. Three networks learned that with all sensors in step. Where every sensor "
        f"computes at its own pace and packets are late or lost, up to so many answers are wrong: "
        f"{wrong}."
    )


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}</section>"


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def _table(study: Study) -> str:
    head, *rows = study.rows()
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    note = (
        f"<p><small>{len(MODELS)} trained models ({', '.join(MODELS.values())}) in {len(ROWS)} "
        f"rows: a row is a model and what its nodes do (its rule). "
        f"{escape(PRICE[0].upper() + PRICE[1:])}. Bytes: four a number, headers not counted. "
        f"The energy GNN's nodes make gradient steps, and send the numbers of their embeddings."
        f"</small></p>\n"
    )
    return '<div class="wide">\n<table>\n' + "\n".join(lines) + "\n</table>\n</div>\n" + note


def _picture(*figures: Figure, caption: str) -> str:
    """Figures side by side, inside of the page."""
    images = []
    for fig in figures:
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=200)
        data = base64.b64encode(buffer.getvalue()).decode()
        images.append(f'<img src="data:image/png;base64,{data}" alt="{escape(caption)}">\n')
    return f"<figure>\n{''.join(images)}<figcaption>{escape(caption)}</figcaption>\n</figure>\n"


def _words(study: Study) -> str:
    """The numbers in words."""
    before = ", ".join(f"{100 * study.error(m)[0]:.1f} % ({MODELS[m]})" for m in MODELS)
    worst = {m: max(study.error(m, s)[0] for s in study.results[m]) for m in LAYERED}
    after = " and ".join(f"{100 * worst[m]:.1f} % ({MODELS[m]})" for m in LAYERED)
    energy = study.results["soft"]
    condition = OPTIONS["soft"]["model_options"]["condition"]
    runs = sum(r.run.converged.numel() for r in energy.values())
    good = sum(int(r.run.converged.sum()) for r in energy.values())
    moved = max(float(r.distance.max()) for r in energy.values())
    return _paragraphs(
        f"In step, {before} of the nodes are wrong.",
        f"Out of step, up to {after} of the nodes are wrong; guessing errs on "
        f"{100 * study.guessing:.0f} %. A node applies its third layer at its third update, to the "
        f"values that it has heard so far: some neighbours have just begun, others are done. The "
        f"network then computes a function that it was never trained to compute.",
        f"The energy GNN's answer is the minimum of one strongly convex function of all nodes' "
        f"embeddings. A node computes its part of the minimum again at every update, however old "
        f"the packets are that it has; the next packet makes up for a lost one. Of {runs} runs "
        f"(graphs, settings and schedules), {good} came within a relative {TOL:g} of the "
        f"synchronous embeddings, and outputs ended within {100 * moved:.2g} % (of the largest) of "
        f"the synchronous ones. This is an observation: for the steps that nodes make here it is "
        f"not proved. For smaller ones (step='certified') it is a theorem, if losses are bounded. "
        f"Their size follows from the condition number of the energy, which was chosen before "
        f"training: it is at most {condition:g}. The "
        f"price is time and traffic: {shown(energy[LOSSY].price.updates)} updates and "
        f"{size(energy[LOSSY].price.bytes)} a node with {LOSS:.0%} lost, where a layered model "
        f"makes five updates.",
        "Layered models can do better with other rules, whose rows are in the table: a node waits "
        "for its neighbours' values of its current layer; or it waits, and sends every value until "
        "it is acknowledged; or it keeps its neighbours' newest values of all layers and computes "
        "all layers again ('caching'). Where five layers are enough, that may take less traffic "
        "than the energy GNN needs until it has converged. What nearly the same answers cost "
        "stands below, under 'Error by deadline'.",
    )


NEXT = (
    "<code>hogwild serve</code> (in a clone: <code>make serve</code>): the same live, on a page. "
    "Kill a node, drag one, lose packets, and see which answer survives.",
    "<code>hogwild demo --seed 1</code>: other graphs, other weights, other schedules.",
    "Your own trained PyG model, as it is: <code>hogwild.robustness(model, data)</code>.",
    "<code>hogwild train robots --model soft --model-option hidden_channels=8 --epochs 60 --lr "
    "0.02 --folder runs/robots</code>, then <code>hogwild robustness runs/robots --impair "
    "loss=0.3</code> and <code>hogwild certify runs/robots --step certified</code>: what "
    "asynchrony costs, and what is proved about it.",
)


# -- pictures --------------------------------------------------------------------------------------


def _answers(study: Study) -> Figure:
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


def _errors(study: Study) -> Figure:
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


def _histograms(study: Study) -> Figure:
    """Outputs of the node farthest from the one that was told, over many schedules."""
    fig = output_histogram(list(study.many.values()), study.node, titles=list(MODELS.values()))
    legend = fig.axes[0].get_legend()
    if legend is not None:
        legend.remove()  # it may cover bars; the caption says what the dashed line is
    return fig
