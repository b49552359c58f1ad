"""What a tracked run was like: errors, lags, recoveries and the price, over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hogwild.asynchrony.moving import Scenario
from hogwild.executors.deadlines import LightCone, light_cone
from hogwild.executors.simulation import Settings
from hogwild.graph.inputs import Inputs
from hogwild.progress import shown, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CROSSING = 20_000
"""Ticks in which news crosses a graph, or is taken not to."""


@dataclass
class Track:
    """A model on a graph that changes. T moments, Q runs, U nodes that are ever there, F frames,
    C = F − 1 changes.

    Attributes:
        scenario: Graph and features over time.
        ids: The identities of the nodes, [U].
        times: The ticks at which the run was looked at, after the updates of that tick, [T].
        error: Distance of each node's embedding (its largest entry) from the exact answer of the
            moment, [T, Q, U]; NaN where a node is not there.
        lag: Ticks since the answer was replaced that the embeddings are nearest to; 0 where they
            are nearest to the answer of the moment, [T, Q].
        since: Updates of a node since the last change, mean over the nodes, [T, Q].
        updates: Updates of all nodes so far, [T, Q].
        packets: Packets of all nodes so far, hellos included, [T, Q].
        bytes: Bytes in these packets, [T, Q]: every number as a float32, without headers.
        score: What the predictions of the moment are worth, [T, Q]; lower is better; ``None``: the
            scenario has no targets.
        exact_score: What the predictions of each frame's exact answer are worth, [F].
        score_name: What the score is, in words.
        answers: The exact embeddings of each frame, [F, U, k]; NaN where a node is not there.
        moves: The size of each change, [C]: how far the exact embeddings move (largest entry of a
            node, root of the mean square over the nodes that stay).
        embeddings: Embeddings over time, [T, Q, U, k]; ``None`` unless asked for.
        node_ticks: Sum over all ticks of the number of nodes.
        settings: The settings of the runs, with the name of the rule that nodes followed.
        restart: Ticks after which all nodes began anew; ``None``: never.
        lease: Ticks for which nodes counted on neighbours that were gone.
        seconds: Wall-clock time of the simulation.
    """

    scenario: Scenario
    ids: Tensor
    times: list[int]
    error: Tensor
    lag: Tensor
    since: Tensor
    updates: Tensor
    packets: Tensor
    bytes: Tensor
    score: Tensor | None
    exact_score: list[float] | None
    score_name: str
    answers: Tensor
    moves: Tensor
    embeddings: Tensor | None
    node_ticks: int
    settings: Settings
    restart: int | None
    lease: int
    seconds: float

    @property
    def rule(self) -> str:
        """The rule that nodes followed."""
        return self.settings.rule

    @property
    def changes(self) -> list[int]:
        """The ticks at which the graph or its features changed, [C]."""
        return self.scenario.times[1:]

    @property
    def spread(self) -> Tensor:
        """The error of a moment: the root of the mean square over the nodes, [T, Q]."""
        return self.error.square().nanmean(-1).sqrt()

    @property
    def drift(self) -> float:
        """The largest move of any entry of the exact answer in a tick: a change moves it within one
        tick, however long it then stands still."""
        moved = (self.answers[1:] - self.answers[:-1]).abs().nan_to_num(0.0)
        return float(moved.max()) if moved.numel() else 0.0

    # -- after changes -----------------------------------------------------------------------------

    def _firsts(self, holds: Tensor) -> Iterator[tuple[int, int, int]]:
        """Change, run and moment at which a condition [C, T, Q] first holds between each change and
        the next, where it does."""
        times = torch.tensor(self.times)
        begins = torch.searchsorted(times, torch.tensor([*self.changes, self.scenario.length]))
        for change, (begin, end) in enumerate(pairwise(begins.tolist())):
            for run in range(holds.size(-1)):
                for moment in holds[change, begin:end, run].nonzero()[:1, 0].tolist():
                    yield change, run, begin + moment

    def after(self, updates: float) -> Tensor:
        """The error of each node once its run has made so many updates a node since the change,
        relative to the size of the change, [C, Q, U]; NaN where the next change came before."""
        out = torch.full((len(self.changes), *self.error.shape[1:]), torch.nan)
        enough = (self.since >= updates).expand(len(self.changes), -1, -1)
        for change, run, moment in self._firsts(enough):
            out[change, run] = self.error[moment, run] / self.moves[change]
        return out

    def recovery(self, share: float = 0.1) -> Tensor:
        """Ticks from each change until the error of the moment is at most this share of the change,
        [C, Q]; infinite where the next change came before."""
        out = torch.full((len(self.changes), self.error.size(1)), torch.inf, dtype=torch.float64)
        for change, run, moment in self._firsts(self.spread <= share * self.moves[:, None, None]):
            out[change, run] = self.times[moment] + 1 - self.changes[change]
        return out

    @cached_property
    def cone(self) -> LightCone:
        """The light cone of the first graph under the schedule of the runs: the fewest updates in
        which news of a change can cross it."""
        frame, made = self.scenario.frames[0], replace(self.settings, ticks=CROSSING)
        return light_cone(Inputs.of(frame.data).repeat(made.runs).graph(), made)

    # -- the price ---------------------------------------------------------------------------------

    @property
    def price(self) -> dict[str, float]:
        """Updates, packets and bytes of a node in a tick, mean over nodes, ticks and runs."""
        totals = {"updates": self.updates, "packets": self.packets, "bytes": self.bytes}
        return {k: float(v[-1].double().mean()) / self.node_ticks for k, v in totals.items()}

    def summary(self) -> dict[str, Any]:
        """The numbers of one row of a table."""
        size = self.answers.square().nanmean().sqrt()
        out: dict[str, Any] = {
            "rule": self.rule,
            "restart": self.restart,
            "changes": len(self.changes),
            "error": float(self.spread.square().mean().sqrt()),
            "relative_error": float(self.spread.square().mean().sqrt() / size),
            "lag": float(self.lag.double().mean()),
        }
        if len(self.changes):
            recovered = self.recovery()
            out["recovery"] = float(recovered.flatten().sort().values[recovered.numel() // 2])
            out["recovered"] = float(recovered.isfinite().double().mean())
        if self.score is not None and self.exact_score is not None:
            out["score"] = float(self.score.double().mean())
            spans = torch.tensor([*self.scenario.times, self.scenario.length]).diff().double()
            exact = torch.tensor(self.exact_score, dtype=torch.float64)
            out["exact_score"] = float((spans * exact).sum() / spans.sum())
        return out | {f"{name}_a_tick": value for name, value in self.price.items()}

    def __str__(self) -> str:
        row, made = self.summary(), self.settings
        again = "" if self.restart is None else f", restarted every {self.restart} ticks"
        lease = f", lease {self.lease}" if self.lease else ""
        impaired = "".join(f", {impairment!r}" for impairment in made.impairments)
        lines = [
            f"{self.scenario!r}; S = {made.stagger}, D = {made.delay}{lease}{impaired}; "
            f"rule {self.rule}{again}",
            f"error {row['error']:.3g}, {row['relative_error']:.1%} of the embeddings; lag "
            f"{shown(row['lag'])} ticks (mean)",
        ]
        if self.changes:
            median = "never" if row["recovery"] == float("inf") else f"{row['recovery']:.0f} ticks"
            lines.append(
                f"{len(self.changes)} changes of {float(self.moves.median()):.3g} (median); an "
                f"error of 10 % of the change after {median} (median), before the next change in "
                f"{row['recovered']:.0%} of cases"
            )
        if "score" in row:
            lines.append(
                f"{self.score_name} of the predictions {row['score']:.4g}; of the exact answers "
                f"{row['exact_score']:.4g} (lower is better)"
            )
        lines.append(str(self.cone))
        lines.append(
            f"price of a node in 100 ticks: {100 * row['updates_a_tick']:.0f} updates, "
            f"{100 * row['packets_a_tick']:.0f} packets, {size(100 * row['bytes_a_tick'])}"
        )
        return "\n".join(lines)

    # -- pictures ----------------------------------------------------------------------------------

    def plot(self, path: str | Path | None = None) -> Figure:
        """Error and lag over time, with the changes marked."""
        from hogwild.plots.motion import tracking

        return tracking(self, path)
