"""What happened to a model under asynchrony, in a few sentences, with advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.executors.price import shown as count
from hogwild.models.base import Kind

if TYPE_CHECKING:
    from hogwild.analysis.robustness import Robustness


def verdict(of: Robustness) -> str:
    """What happened, what of it is proved, and what to do about it."""
    run = of.run
    total = run.converged.size(0)
    good = int(run.converged.flatten(1).all(1).sum())
    if good == total:
        word, why = _arrived(of)
        return (
            f"{word}: {good} of {schedules(total)} end{'s' if good == 1 else ''} at the "
            f"synchronous answer (relative deviation at most {float(run.deviation.max()):.1g}). "
            f"{why}."
        )
    effect, are = _effect(of), "is" if total - good == 1 else "are"
    made = of.settings
    silent = [i for i in made.impairments if not (i.recurs or i.bound(made.stagger, made.delay))]
    if silent:
        total_loss = BernoulliLoss(1.0) in silent
        return (
            f"Not converged, and no further tick helps: "
            f"{'no packet ever arrives' if total_loss else 'some packets may never arrive'} under "
            f"{silent[0]!r}, so that {total - good} of {schedules(total)} {are} up to "
            f"{float(run.deviation.max()):.2g} (relative) from the synchronous answer{effect}. "
            f"A node cannot know what it never hears, under any rule. What to do: let packets "
            f"through now and then."
        )
    if run.rule == "waiting" and not _completed(of):
        return (
            f"Stalls: under {total - good} of {schedules(total)} some nodes still wait for values "
            f"of the layer they need{effect}. The value of a layer is sent once; where it is lost, "
            f"it is missing for ever. What to do: {REMEDY}."
        )
    if run.rule == "overwriting":
        worse = of.decrease is not None and float(of.decrease.mean()) > 0
        return (
            f"{'Degrades' if worse else 'Depends on the schedule'}: predictions move by up to "
            f"{float(of.distance.max()):.2g} of the largest{effect}, since a node applies its "
            f"layers to whichever layer's values it last heard. What to do: {REMEDY}."
        )
    ended = f"Not converged within the {run.ticks} ticks"
    if run.stalled:
        ended = f"Stopped at tick {run.ticks}, as runs no longer come nearer"
    return (
        f"{ended}: {total - good} of {schedules(total)} {are} "
        f"still up to {float(run.deviation.max()):.2g} (relative) from the synchronous answer"
        f"{effect}. {_missing(of)}."
    )


REMEDY = (
    "rule='caching' gives the synchronous answer in any order and with losses, in packets of all "
    "layers; rule='resending' in smaller packets that are acknowledged"
)


def _arrived(of: Robustness) -> tuple[str, str]:
    """One word for runs that arrived, and why; "Immune" only where that is proved."""
    made = of.settings
    in_step = (made.stagger, made.delay, made.impairments) == (1, 0, ())
    if of.kind is Kind.EXPLICIT and in_step:
        return "In step", "With S = 1 and D = 0 all nodes update together"
    if of.certificate.guaranteed:
        bounded = of.run.staleness.bounded
        who = "Every schedule with these bounds does" if bounded else "With probability one all do"
        return "Immune", f"{who}, which is proved: {_reason(of)}"
    return "Arrives", f"That was seen in these runs and is not proved: {_reason(of)}"


def _completed(of: Robustness) -> bool:
    """Whether nodes that wait for layers have had all of them, from packets that were wrong."""
    layers = of.certificate.constants["layers"]
    return not all(i.exact for i in of.settings.impairments) and bool(
        (of.run.updates >= layers).all()
    )


def _missing(of: Robustness) -> str:
    """Why runs have not arrived, and what to do."""
    inexact = [type(i).__name__ for i in of.settings.impairments if not i.exact]
    if inexact and float(of.run.deviation.max()) < 1.0:
        packets = " and ".join(
            dict.fromkeys(i.packets for i in of.settings.impairments if not i.exact)
        )
        return (
            f"{packets[0].upper()}{packets[1:]} end near the answer and not at it: "
            f"{', '.join(inexact)} changes what packets say ({_reason(of)}). What to do: compare "
            f"the distance above with what you can bear, or send finer packets"
        )
    if inexact:
        other = "; rule='gradient' bears coarser ones" if of.run.rule == "messages" else ""
        return (
            f"{', '.join(inexact)} changes what packets say, so much that runs do not even come "
            f"near. What to do: send finer packets{other}"
        )
    needed = of.run.ticks_needed()
    said = ["their distance has not fallen in the second half of these ticks"]
    if needed is not None:
        said = [
            f"at the pace of the second half of these ticks, ticks={needed} would be enough, "
            f"{count(needed / of.run.ticks)} times as many"
        ]
    if of.run.rule == "gradient":
        said.append("rule='messages' needs fewer updates as a rule, most of all on long paths")
    elif of.run.rule == "messages" and needed is None:
        said.append("rule='gradient' may arrive where messages do not")
    elif of.kind is Kind.FIXED_POINT and needed is None and not of.certificate.guaranteed:
        said.append(
            "asynchronously the map need not converge unless it contracts in a (weighted) maximum "
            "norm over the nodes: look for such a norm"
        )
    proved = "is" if of.certificate.guaranteed else "is not"
    return (
        f"What to do: {'; '.join(said)}. That runs arrive in the end {proved} proved: {_reason(of)}"
    )


def _reason(of: Robustness) -> str:
    return of.certificate.reason.rstrip(".")


def schedules(count: int) -> str:
    """A number of schedules, in words."""
    return f"{count} schedule{'s' if count > 1 else ''}"


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
