"""What happened to a model under asynchrony and what it cost, in a few sentences, with advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.executors.deadlines import NEAR, Deadlines, Price
from hogwild.models.base import Kind
from hogwild.progress import aligned, shown, size
from hogwild.rules import about, sooner

if TYPE_CHECKING:
    from hogwild.analysis.robustness import Robustness


FAST = 1.5
"""Who is in time within so many light cones cannot be much faster."""
SLOW = 3.0
"""Who needs more light cones than this can be helped."""


def counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


# -- in time ---------------------------------------------------------------------------------------


def advice(seen: Mapping[str, Deadlines]) -> str:
    """What each of these runs needs to be in time, which of them to take, and what would help.
    They are runs under the same schedules, by name: of one model with several rules, or of several
    models. In time means within 5 % of the synchronous error."""
    ready = {name: price for name, one in seen.items() if (price := one.within()) is not None}
    order = sorted(seen, key=lambda name: ready[name].ticks if name in ready else float("inf"))
    best, goal = order[0], seen[order[0]].goal()
    sentences = [_needs(name, seen, name != best and seen[name].goal() == goal) for name in order]
    if len(seen) > 1 and ready:
        sentences.append(_choice(seen, ready))
    return ". ".join([*sentences, remedy(best, seen[best])]) + "."


def table(seen: Mapping[str, Deadlines]) -> str:
    """One row for each of these runs: the error in the end, and what it costs to be near it."""
    rows = [["", "in step", "in the end", f"within {NEAR:.0%}: ticks", "light cones", "updates",
             "packets", "bytes"]]  # fmt: skip
    for name, one in seen.items():
        price, last = one.within(), one.rows()[-1]
        cells = ["–", f"{last['deviation']:.2g}"]
        if one.metric is not None and one.synchronous is not None:
            cells = [one.metric.show(float(one.synchronous.mean())), one.metric.show(last["error"])]
        costs = ["never", "–", "–", "–", "–"]
        if price is not None:
            cones = one.cones(price.ticks)
            costs = [f"{price.ticks:,}", "–" if cones != cones else f"{cones:.1f}",
                     shown(price.updates), shown(price.packets), size(price.bytes)]  # fmt: skip
        rows.append([name, *cells, *costs])
    return aligned(rows)


def _needs(name: str, seen: Mapping[str, Deadlines], goal_is_known: bool) -> str:
    """What one of them needs, and how much worse than the best its answer is."""
    one = seen[name]
    text = f"{name}: {one.reached() if goal_is_known else one.sentence()}"
    error, least = _wrong(one), min(map(_wrong, seen.values()))
    if one.metric is not None and one.synchronous is not None and error > (1 + NEAR) * least:
        more = f", {error / least - 1:.0%} more than the best here" if least > 0 else ""
        text += f", but its error is {one.metric.show(float(one.synchronous.mean()))}{more}"
    return text


def _wrong(one: Deadlines) -> float:
    """The synchronous error, lower is better; 0 without a target."""
    if one.synchronous is None or one.metric is None:
        return 0.0
    value = float(one.synchronous.mean())
    return 1.0 - value if one.metric.higher_is_better and one.metric.percent else value


def _choice(seen: Mapping[str, Deadlines], ready: Mapping[str, Price]) -> str:
    """Which of them to take. A few per cent of the error outweigh no time: among those whose error
    is near the least, the least time and the fewest bytes."""
    least = min(_wrong(seen[name]) for name in ready)
    good = [name for name in ready if _wrong(seen[name]) <= (1 + NEAR) * least]
    quick = min(good, key=lambda name: ready[name].ticks)
    small = min(good, key=lambda name: ready[name].bytes)
    if all(ready[name].ticks == 0 for name in good):
        return "Which of them to take, this error does not say"
    if quick == small:
        return f"Take {quick}: least time and fewest bytes"
    return (
        f"Take {quick} for the least time, or {small} for the fewest bytes "
        f"({size(ready[small].bytes)} instead of {size(ready[quick].bytes)} a node, in "
        f"{ready[small].ticks:,} ticks instead of {ready[quick].ticks:,})"
    )


def remedy(name: str, one: Deadlines) -> str:
    """What would help one of them to be in time earlier."""
    price, rule, cone = one.within(), about(one.settings.rule), one.cone
    if not cone.crossed:
        return "What would help: a network on which information can cross the graph at all"
    if price is None:
        better = sooner(one.settings.rule)
        more = f"more ticks, if runs still come nearer{better and '; '}{better}"
        return f"What would help {name}: {rule.remedy or more}"
    if price.ticks == 0:
        return (
            "Nothing would help: what nodes answer before the first update is as good, so this "
            "error says nothing about deadlines"
        )
    cones = one.cones(price.ticks)
    if cones <= FAST:
        early = "; this error does not need all that, and is met before" if cones < 1 else ""
        return (
            f"What would help {name}: only a faster network (smaller S and D, fewer losses, fewer "
            f"hops): the last node has heard of every other after {shown(cone.mean)} updates a "
            f"node{early}"
        )
    if cones <= SLOW:
        return f"{name} is within {SLOW:g} light cones; little is left to gain"
    helps = filter(None, (sooner(one.settings.rule), rule.tuning))
    return f"What would help {name}: {'; '.join(helps)}"


# -- what happened ---------------------------------------------------------------------------------


def verdict(of: Robustness) -> str:
    """What happened, what of it is proved, and what to do about it."""
    run, made, total = of.run, of.settings, of.run.converged.size(0)
    bad = total - int(run.converged.flatten(1).all(1).sum())
    schedules, far = counted(total, "schedule"), float(run.deviation.max())
    if not bad:
        head, why = _arrived(of)
        return (
            f"{head}: {total} of {schedules} end{'s' if total == 1 else ''} at the synchronous "
            f"answer (relative deviation at most {far:.1g}). {why}."
        )
    effect, are, rule = _effect(of), "is" if bad == 1 else "are", about(run.rule)
    silent = [i for i in made.impairments if not (i.recurs or i.bound(made.stagger, made.delay))]
    if silent:
        total_loss = BernoulliLoss(1.0) in silent
        return (
            f"Not converged, and no further tick helps: "
            f"{'no packet ever arrives' if total_loss else 'some packets may never arrive'} under "
            f"{silent[0]!r}, so that {bad} of {schedules} {are} up to {far:.2g} (relative) from "
            f"the synchronous answer{effect}. A node cannot know what it never hears, under any "
            f"rule. What to do: let packets through now and then."
        )
    if rule.remedy:
        worse = of.decrease is not None and float(of.decrease.mean()) > 0
        return (
            f"{'Degrades' if worse else 'Depends on the schedule'}: predictions move by up to "
            f"{float(of.distance.max()):.2g} of the largest{effect}, since a node applies its "
            f"layers to whichever layer's values it last heard. What to do: {rule.remedy}."
        )
    ended = f"Not converged within the {run.ticks} ticks"
    if run.stalled:
        ended = f"Stopped at tick {run.ticks}, as runs no longer come nearer"
    return (
        f"{ended}: {bad} of {schedules} {are} still up to {far:.2g} (relative) from the "
        f"synchronous answer{effect}. {_missing(of)}."
    )


def _arrived(of: Robustness) -> tuple[str, str]:
    """One word for runs that arrived, and why; "Immune" only where that is proved."""
    made, reason = of.settings, of.certificate.reason.rstrip(".")
    if of.kind is Kind.EXPLICIT and (made.stagger, made.delay, made.impairments) == (1, 0, ()):
        return "In step", "With S = 1 and D = 0 all nodes update together"
    if of.certificate.guaranteed:
        bounded = of.run.staleness.bounded
        who = "Every schedule with these bounds does" if bounded else "With probability one all do"
        return "Immune", f"{who}, which is proved: {reason}"
    return "Arrives", f"That was seen in these runs and is not proved: {reason}"


def _missing(of: Robustness) -> str:
    """Why runs have not arrived, and what to do."""
    run, rule, reason = of.run, about(of.run.rule), of.certificate.reason.rstrip(".")
    inexact = [i for i in of.settings.impairments if not i.exact]
    names = ", ".join(type(i).__name__ for i in inexact)
    if inexact and float(run.deviation.max()) < 1.0:
        return (
            f"{names} changes what packets say, so that runs end near the answer and not at it "
            f"({reason}). What to do: compare the distance above with what you can bear, or send "
            f"finer packets"
        )
    if inexact:
        helps = "send finer packets"
        if rule.safer:
            helps += f"; rule={rule.safer!r} bears coarser ones"
        return (
            f"{names} changes what packets say, so much that runs do not even come near. What to "
            f"do: {helps}"
        )
    needed = run.ticks_needed()
    helps = "their distance has not fallen in the second half of these ticks"
    if needed is not None:
        helps = (
            f"at the pace of the second half of these ticks, ticks={needed} would be enough, "
            f"{shown(needed / run.ticks)} times as many"
        )
    if rule.safer and needed is None:
        helps += f"; rule={rule.safer!r} may arrive where this rule does not"
    elif of.kind is Kind.FIXED_POINT and needed is None and not of.certificate.guaranteed:
        helps += (
            "; asynchronously the map need not converge unless it contracts in a (weighted) "
            "maximum norm over the nodes: look for such a norm"
        )
    elif better := sooner(run.rule):
        helps += f"; {better}"
    proved = "is" if of.certificate.guaranteed else "is not"
    return f"What to do: {helps}. That runs arrive in the end {proved} proved: {reason}"


def _effect(of: Robustness) -> str:
    """The effect on the metric, as a clause."""
    if of.metric is None:
        return ""
    row = of.summary()
    before, after = of.metric.show(row["synchronous"]), of.shown("asynchronous")
    if before == of.metric.show(row["asynchronous"]):
        return f" and {of.metric.name} stays {before}"
    moves = "falls" if row["asynchronous"] < row["synchronous"] else "rises"
    return f" and {of.metric.name} {moves} from {before} to {after}"
