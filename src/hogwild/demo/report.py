"""The demonstration as one page of HTML, with all pictures inside."""

from __future__ import annotations

import base64
import io
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from hogwild.demo import pictures
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
from hogwild.progress import shown, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERED = [model for model in MODELS if model != "soft"]
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
    farthest = int(study.graph.hops.max())
    sections = [
        _section("Every node's answer", _picture(
            pictures.answers(study),
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
            pictures.errors(study),
            caption=f"Share of wrong nodes on {study.tested} test graphs, mean and standard "
            f"deviation over {study.scale.runs} random schedules for each point. The "
            f"dotted line is the error of guessing.",
        ) + _falls(study)),
        _section("One node under many schedules", _picture(
            pictures.histograms(study),
            caption=f"Output (a logit: its sign is the answer) of node {study.node}, {farthest} "
            f"hops from the one that was told, over {study.scale.many} random schedules with "
            f"S = {STAGGER} and D = {DELAY}. The dashed line is its output in step. This is the "
            f"paper's Figure 1(d) for trained models.",
        )),
        _section("Error by deadline", _picture(
            pictures.deadlines(study),
            caption=f"Share of wrong nodes if the nodes had to answer at once, against the updates "
            f"that a node has made (left) and the bytes that it has sent (right), mean over "
            f"{study.scale.runs} schedules with {LOSSY}; bands reach to the worst schedule. Dotted "
            f"lines are the errors in step. The grey band is the light cone: the updates after "
            f"which the last node of a graph has heard of every other. No answer that depends on "
            f"all nodes is complete before. Here only one node was told, and answers can be right "
            f"as soon as all others have heard of that one.",
        ) + _paragraphs(_cone(study), f"In time: {study.advice}")),
        _section("How the energy GNN converges", _picture(
            *pictures.curves(study),
            caption=f"Distance from the synchronous embeddings, relative to their largest entry, "
            f"against the mean number of updates a node has made (left) and against time (right); "
            f"one curve for each of {study.scale.runs} schedules. Where curves on the left "
            f"coincide, an update out of step helps as much as an update in step.",
        )),
        _section("What to try next", _next()),
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
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
              for row in rows]  # fmt: skip
    note = (
        f"<p><small>{len(MODELS)} trained models ({', '.join(MODELS.values())}) in {len(ROWS)} "
        f"rows: a row is a model and what its nodes do (its rule). "
    )
    note += f"{escape(PRICE[0].upper() + PRICE[1:])}. Bytes: four a number, headers not counted. "
    note += (
        "The energy GNN's nodes make gradient steps, and send the numbers of their embeddings."
        "</small></p>\n"
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
        _others(study),
    )


OTHERS = {
    "waiting": "waits for its neighbours' values of its current layer",
    "resending": "waits, and sends every value until it is acknowledged",
    "caching": "keeps its neighbours' newest values of all layers and recomputes all layers",
}
"""Other rules for layered models, by name."""


def _others(study: Study) -> str:
    """The layered models with other rules, in words."""
    said = [
        f"in the row {name!r} of the table a node {OTHERS[rule]} (rule={rule!r})"
        for name, _, rule in ROWS.values()
        if rule in OTHERS
    ]
    cheaper = [
        name
        for row, (name, _, rule) in ROWS.items()
        if rule in OTHERS
        and study.error(row, LOSSY)[0] <= study.error("soft", LOSSY)[0]
        and study.results[row][LOSSY].price.bytes < study.results["soft"][LOSSY].price.bytes
    ]
    choice = (
        f" Five layers reach every node here. Where layers are enough, {' and '.join(cheaper)} "
        f"give the same answers for less traffic than the energy GNN needs until it has converged. "
        f"What nearly the same answers cost stands below, under 'Error by deadline'."
        if cheaper
        else ""
    )
    return f"Layered models can do better with other rules: {'; '.join(said)}.{choice}"


def _cone(study: Study) -> str:
    """The light cone, as a sentence."""
    text = str(study.deadlines["energy GNN"].cone)
    return f"{text[0].upper()}{text[1:]}."


def _falls(study: Study) -> str:
    """The largest fall of each layered model's error with more asynchrony, and why there is one."""
    curves = (
        [Setting(STAGGER, d) for d in sorted(study.scale.delays)],
        [Setting(s, DELAY) for s in sorted(study.scale.staggers)],
    )
    steps = [step for curve in curves for step in pairwise(curve)]
    found = []
    for model in LAYERED:
        falls = [(study.error(model, a)[0] - study.error(model, b)[0], a, b) for a, b in steps]
        fall, a, b = max(falls, default=(0.0, PAPER, PAPER))
        if fall < 5e-4:  # the page shows tenths of a percent
            continue
        (before, _), (after, deviation) = study.error(model, a), study.error(model, b)
        chance = ", within a standard deviation" if fall < deviation else ""
        found.append(
            f"the {MODELS[model]} errs on {100 * before:.1f} % of the nodes at S = {a[0]}, "
            f"D = {a[1]} and on {100 * after:.1f} % at S = {b[0]}, D = {b[1]}{chance}"
        )
    if not found:
        return ""
    return _paragraphs(
        f"Not every curve rises: {'; '.join(found)}. Out of step a layered model computes another "
        f"function in every setting, and training did not decide which of them is nearer to the "
        f"right answers. An old packet can even help: where a neighbour is layers ahead, its "
        f"earlier value may be the one that the layer needs."
    )


def _next() -> str:
    condition = OPTIONS["soft"]["model_options"]["condition"]
    items = [
        "<code>hogwild serve</code> (in a clone: <code>make serve</code>): the same live, on a "
        "page. Kill a node, drag one, lose packets, and see which answer survives.",
        "<code>hogwild demo --seed 1</code>: other graphs, other weights, other schedules.",
        "<code>hogwild train robots --model soft --model-option hidden_channels=8 --epochs 60 "
        "--lr 0.02 --folder runs/robots</code>, then <code>hogwild robustness runs/robots --impair "
        "loss=0.3</code> and <code>hogwild certify runs/robots --step certified</code>: what "
        "asynchrony costs, and what is proved about it.",
        "Your own trained PyG model, as it is: <code>hogwild.robustness(model, data)</code>.",
        "Lost packets, crashes, stragglers: <code>hogwild.simulate(model, data, "
        "impairments=BernoulliLoss(0.3))</code>, from "
        "<code>hogwild.asynchrony</code>.",
        "Fewer updates: <code>hogwild robustness runs/robots --rule balls</code>, where every node "
        "solves what it has heard of, or <code>--rule messages</code>, in larger packets.",
        f"The condition number of this energy is at most {condition:g}. Smaller ones need fewer "
        f"updates, larger ones reach further: <code>hogwild train … --model-option "
        f"condition=41</code>.",
    ]
    return "<ul>\n" + "".join(f"<li>{item}</li>\n" for item in items) + "</ul>\n"
