r"""Which work the parts do between two exchanges: ``work="auto"``.

The cost of a kind of work is that of the whole convergence, and no part can tell it alone: a part
solves its own chain of nodes at once, and the parts together may need many exchanges. So the run
itself is the trial:

1. All parts solve. In most cases they settle within a few exchanges, and nothing else is tried.
2. If every part has made :data:`UPDATES` updates, the time that is left is extrapolated from the
   decay of the worst residual. If it is more than :data:`LONG` times the time so far, all parts
   take steps of each rule that fits the model, each for as long as the solves had, from where the
   solves have come.
3. The parts go on with the work that is predicted to end first.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from hogwild.cluster.engine import Engine, Watch
from hogwild.cluster.worker import Status
from hogwild.errors import AsynchronyError

UPDATES = 6
"""Updates of every part after which the solves are judged."""
LONG = 3.0
"""Other work is tried if solves would take this many times longer than they have taken so far."""
LEAST = 0.5
"""Least seconds of a trial."""
SURE = 2.0
"""A rule is chosen if it is predicted to end this many times sooner than solves."""


@dataclass
class Choice:
    """What the parts did, and why.

    Attributes:
        work: ``"solve"`` or the name of a rule.
        reason: Why, in words.
        trial: For each kind of work that was tried: seconds until all parts settle, as measured or,
            where other work was chosen, as predicted.
        done: Whether all parts have settled.
    """

    work: str
    reason: str
    trial: dict[str, float] = field(default_factory=dict)
    done: bool = False


@dataclass
class Trial:
    """The decay of the worst residual. Watches a run and stops it when it is to be judged.

    Attributes:
        tell: Told of everything, too.
        judge: Seconds after which the run is stopped; ``None``: when every part has made
            :data:`UPDATES` updates and the end is far.
    """

    tell: Watch
    judge: float | None = None
    seen: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, seconds: float, statuses: list[Status]) -> bool | None:
        go_on = self.tell(seconds, statuses)
        made = min((s.updates for s in statuses if not s.settled), default=0)
        worst = max((s.unrest for s in statuses), default=0.0)
        if made and math.isfinite(worst):
            self.seen.append((seconds, worst))
        if go_on is False:
            return False
        if self.judge is not None:
            return seconds < self.judge
        return made < UPDATES or self.left <= LONG * max(seconds, LEAST)

    @property
    def left(self) -> float:
        """Seconds until the worst residual is within its limit, if it decays as in the later half
        of the time: what is wrong between near nodes fades first, and says nothing of the rest.
        Where it has not decayed there, as in all of the time."""
        if not self.seen:
            return math.inf
        t1, u1 = self.seen[-1]
        if u1 <= 1.0:
            return 0.0
        middle = 0.5 * (self.seen[0][0] + t1)
        late = next(point for point in reversed(self.seen) if point[0] <= middle)
        for t0, u0 in (late, self.seen[0]):
            if u0 > u1 and t1 > t0:
                return math.log(u1) * (t1 - t0) / math.log(u0 / u1)
        return math.inf


def run_auto(engine: Engine, tell: Watch, seconds: float | None) -> Choice:
    """Run all parts to the end with the work that fits best.

    Args:
        engine: The parts.
        tell: Told of all statuses, with the seconds since the start of the work at hand.
        seconds: Most seconds in all.
    """
    began = time.monotonic()

    def rest() -> float | None:
        return None if seconds is None else max(seconds - (time.monotonic() - began), 0.0)

    engine.call("start", "solve")
    solves = Trial(tell)
    done = engine.iterate(solves, seconds)
    spent = time.monotonic() - began
    if done or (seconds is not None and spent >= seconds):
        ended = "the parts settled by solving" if done else "the time was over while they solved"
        return Choice("solve", f"{ended}, and no other work was tried", {"solve": spent}, done)
    trial = {"solve": solves.left}
    for name in _rules(engine):
        engine.call("save")
        try:
            engine.call("start", name)
        except AsynchronyError:  # the rule needs the reverse of every edge
            continue
        start, steps = time.monotonic(), Trial(tell, max(spent, LEAST))
        if engine.iterate(steps, rest()):
            trial[name] = time.monotonic() - start
            return Choice(name, _why(name, trial, UPDATES), trial, True)
        trial[name] = steps.left
    # A prediction is rough: solves go on unless a rule is to end much sooner.
    best = min(trial, key=lambda name: trial[name] * (1.0 if name == "solve" else SURE))
    engine.call("save")
    engine.call("start", best)
    return Choice(best, _why(best, trial, UPDATES), trial, engine.iterate(tell, rest()))


def _rules(engine: Engine) -> list[str]:
    """The rules that fit all parts."""
    kinds = engine.call("kinds")
    return [name for name in kinds[0] if name != "solve" and all(name in some for some in kinds)]


def _why(name: str, trial: dict[str, float], updates: int) -> str:
    others = ", ".join(
        f"{other} {seconds:.2g} s" if math.isfinite(seconds) else f"{other} no end"
        for other, seconds in trial.items()
    )
    return f"predicted to settle first after {updates} solves of every part: {others}"
