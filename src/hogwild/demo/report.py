"""The demonstration as one page of HTML, with all pictures inside."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING

import torch

from hogwild.demo import LOSSY, MODELS, OPTIONS, PAPER, PRICE, ROWS, SETTINGS, TOL, Study
from hogwild.plots.courses import deadlines
from hogwild.plots.style import INK, RED, figure
from hogwild.progress import shown, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def report(study: Study) -> str:
    """The page."""
    n, hops = study.graph.num_nodes, study.graph.hops
    told = int(hops.argmin())
    cone, asynchronous = str(study.deadlines["energy GNN"].cone), f"{PAPER}".replace("=", " = ")
    worst = {m: max(study.error(m, setting)[0] for setting in SETTINGS) for m in MODELS}
    wrong = ", ".join(f"{100 * worst[m]:.0f}\u00a0% ({MODELS[m]})" for m in MODELS)
    lead = _paragraphs(
        f"One sensor in a field is told one of two answers, and all must find it out from their "
        f"neighbours. Three networks learned that with all sensors in step. Where every sensor "
        f"computes at its own pace and packets are late or lost, up to so many answers are wrong: "
        f"{wrong}."
    )
    sections = {
        "Every node's answer": _picture(
            _answers(study, told),
            f"One test graph of {n} nodes. Node {told}, ringed, was told the answer. Above: all "
            f"nodes in step. Below: one random schedule, {asynchronous}. A cross is "
            f"a wrong answer. The darker a node is, the lower the probability that it gives to the "
            f"right answer.",
        ),
        "The task": _paragraphs(
            f"The {study.scale.pairs} random graphs have at most five hops between any two nodes, "
            f"and the layered models have five layers: in step they reach every node. Every graph "
            f"comes with both answers, so that guessing is wrong on {100 * study.guessing:.0f} % "
            f"of the nodes.",
            f"The models were trained with all nodes in step. Then every node computed at its own "
            f"pace: it updates at random times, at most S ticks apart (stagger), using packets up "
            f"to D ticks old (delay). S = 1 and D = 0 is in step. In the last setting "
            f"{LOSSY.loss:.0%} of the packets were lost, at random.",
        ),
        "What happened": _table(study) + _words(study, worst),
        "Error by deadline": _picture(
            deadlines(study.deadlines),
            f"Share of wrong nodes if the nodes had to answer at once, against the updates that a "
            f"node has made (left) and the bytes that it has sent (right), mean over "
            f"{study.scale.runs} schedules with {LOSSY}; bands reach to the worst schedule. Dotted "
            f"lines are the errors in step. The grey band is the light cone: the updates after "
            f"which the last node of a graph has heard of every other. No answer that depends on "
            f"all nodes is complete before. Here only one node was told, and answers can be right "
            f"as soon as all others have heard of that one.",
        )
        + _paragraphs(f"{cone[0].upper()}{cone[1:]}.", f"In time: {study.advice}"),
        "What to try next": f"<ul>\n<li>{'</li><li>'.join(NEXT)}</li>\n</ul>\n",
    }
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Hogwild: a demonstration</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Graph neural networks, in step and out of step</h1>\n{lead}"
        + "\n".join(f"<section>\n<h2>{escape(title)}</h2>\n{body}</section>"
                    for title, body in sections.items())
        + f"\n<footer>Seed {study.seed}; computed in {study.seconds:.0f} s by "
        "<code>hogwild demo</code>.</footer>\n</body>\n</html>\n"
    )  # fmt: skip


def _paragraphs(*texts: str) -> str:
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def _table(study: Study) -> str:
    lines = []
    for kind, row in zip(["th", *["td"] * len(ROWS)], study.rows(), strict=True):
        lines.append(f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in row)}</tr>")
    note = (
        f"<p><small>{len(MODELS)} trained models ({', '.join(MODELS.values())}) in {len(ROWS)} "
        f"rows: a row is a model and what its nodes do (its rule). "
        f"{escape(PRICE[0].upper() + PRICE[1:])}. Bytes: four a number, headers not counted. "
        f"The energy GNN's nodes make gradient steps, and send the numbers of their embeddings."
        f"</small></p>\n"
    )
    return '<div class="wide">\n<table>\n' + "\n".join(lines) + "\n</table>\n</div>\n" + note


def _picture(fig: Figure, caption: str) -> str:
    """A figure inside of the page."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=200)
    data, text = base64.b64encode(buffer.getvalue()).decode(), escape(caption)
    image = f'<img src="data:image/png;base64,{data}" alt="{text}">\n'
    return f"<figure>\n{image}<figcaption>{text}</figcaption>\n</figure>\n"


def _words(study: Study, worst: dict[str, float]) -> str:
    """The numbers in words."""
    before = ", ".join(f"{100 * study.error(m)[0]:.1f} % ({MODELS[m]})" for m in MODELS)
    after = " and ".join(f"{100 * worst[m]:.1f} % ({MODELS[m]})" for m in ("gcn", "gat"))
    energy = study.results["soft"]
    arrived = torch.cat([r.run.converged.flatten() for r in energy.values()])
    moved, price = max(float(r.distance.max()) for r in energy.values()), energy[LOSSY].price
    return _paragraphs(
        f"In step, {before} of the nodes are wrong.",
        f"Out of step, up to {after} of the nodes are wrong; guessing errs on "
        f"{100 * study.guessing:.0f} %. A node applies its third layer at its third update, to the "
        f"values that it has heard so far: some neighbours have just begun, others are done. The "
        f"network then computes a function that it was never trained to compute.",
        f"The energy GNN's answer is the minimum of one strongly convex function of all nodes' "
        f"embeddings. A node computes its part of the minimum again at every update, however old "
        f"the packets are that it has; the next packet makes up for a lost one. Of "
        f"{arrived.numel()} runs (graphs, settings and schedules), {int(arrived.sum())} came "
        f"within a relative {TOL:g} of the synchronous embeddings, and outputs ended within "
        f"{100 * moved:.2g} % (of the largest) of the synchronous ones. This is an observation: "
        f"for the steps that nodes make here it is not proved. For smaller ones "
        f"(step='certified') it is a theorem, if losses are bounded. Their size follows from the "
        f"condition number of the energy, which was chosen before training: it is at most "
        f"{OPTIONS['soft']['model_options']['condition']:g}. The price is time and traffic: "
        f"{shown(price.updates)} updates and {size(price.bytes)} a node with {LOSSY.loss:.0%} "
        f"lost, where a layered model makes five updates.",
        "Layered models can do better with other rules, whose rows are in the table: a node waits "
        "for its neighbours' values of its current layer, and sends every value until it is "
        "acknowledged ('resending'); or it keeps its neighbours' newest values of all layers and "
        "computes all layers again ('caching'). What nearly the same answers cost stands below, "
        "under 'Error by deadline'.",
    )


def _answers(study: Study, told: int) -> Figure:
    """One test graph with every node's answer, in step above and under one schedule below."""
    data = study.graph
    ends = data.pos[data.edge_index].numpy()  # [2, E, 2]
    with figure(7.2, 5.2) as fig:
        axes = fig.subplots(2, len(MODELS), squeeze=False)
        for column, (model, name) in enumerate(MODELS.items()):
            seen = study.close[model]
            for row, out in enumerate((seen.prediction, seen.run.predictions[0])):
                ax = axes[row, column]
                ax.plot(ends[..., 0], ends[..., 1], color=INK, linewidth=0.6, zorder=1)
                sure = torch.sigmoid(out[:, 0])
                sure = torch.where(data.y == 1, sure, 1 - sure)
                right = (out[:, 0] > 0) == (data.y == 1)
                for some, marker, edge, area in ((right, "o", INK, 90), (~right, "X", RED, 120)):
                    image = ax.scatter(
                        *data.pos[some].T.numpy(), c=sure[some].numpy(), marker=marker, s=area,
                        vmin=0, vmax=1, cmap="cividis", edgecolors=edge, linewidths=1.0, zorder=3,
                    )  # fmt: skip
                ax.plot(*data.pos[told].numpy(), "o", markersize=15, markerfacecolor="none",
                        markeredgecolor=INK, markeredgewidth=0.9, zorder=2)  # fmt: skip
                when = f"{PAPER}".replace("=", " = ") if row else "in step"
                ax.set_title(f"{name}\n{when}: {int(right.sum())} of {len(right)} right")
                ax.set(xticks=[], yticks=[], aspect="equal")
                ax.margins(0.1)
                ax.spines[:].set_visible(False)
        bar = fig.colorbar(image, ax=axes, label="probability given to the right answer",
                           shrink=0.6, aspect=30)  # fmt: skip
        bar.outline.set_visible(False)
    return fig
