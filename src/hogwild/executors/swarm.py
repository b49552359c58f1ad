"""A swarm of real processes on this machine: one agent a node, faults for real.

:func:`run` exports a model, starts one ``hogwild-agent`` for each node of a graph on loopback,
kills, freezes and revives some of them, and compares their answers with the synchronous one. Agents
know nothing of each other but what they hear; only this observer sees them all. :class:`Swarm` says
what they did.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from hogwild.errors import ConfigError, InputError
from hogwild.executors.notes import Notes
from hogwild.executors.observer import STATUS, Faults, Observer, free_ports, hops
from hogwild.graph.inputs import Inputs
from hogwild.keys import make_keys
from hogwild.models.check import check_model
from hogwild.models.export import export
from hogwild.models.mode import evaluating
from hogwild.problems.base import Problem
from hogwild.rules import choose
from hogwild.rules.balls import usual_radius

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hogwild.asynchrony.trace import Trace


UPDATES = 60.0
"""Updates a second that are asked of one core. The number is a cautious guess: ``Swarm.rate`` and
``Swarm.updates`` show whether a machine keeps up."""


def run(
    model: nn.Module,
    data: Data,
    *,
    faults: Faults | None = None,
    seconds: float | None = None,
    rate: float | None = None,
    transport: str = "zenoh",
    tls: bool = False,
    rule: str = "auto",
    radius: int | None = None,
    precision: str = "float32",
    lease: float | None = None,
    on_silence: str = "drop",
    settle_after: float | None = None,
    tolerance: float | None = None,
    until_settled: bool = True,
    folder: str | Path | None = None,
    show: bool = False,
) -> Swarm:
    """Run a model as a swarm of processes on this machine.

    Args:
        model: A trained model that :func:`hogwild.models.export.export` takes.
        data: One graph, undirected; ``edge_weight`` equal in both directions.
        faults: What is done to the swarm.
        seconds: How long the swarm runs at most; by default, as long as word takes to cross the
            graph six times, and at least 30.
        rate: Turns of an agent a second; by default 50, or fewer where this machine has too few
            cores for so many agents.
        transport: ``"zenoh"`` or ``"udp"``.
        tls: Make keys for the agents (:func:`hogwild.keys.make_keys`) and encrypt their links; with
            Zenoh only.
        rule: As in :func:`hogwild.simulate`.
        radius: As in :func:`hogwild.simulate`.
        precision: Numbers in packets, ``"float16"``, ``"float32"`` or ``"float64"``.
        lease: Seconds of silence after which a neighbour counts as gone; by default ten turns, and
            at least 2.
        on_silence: ``"drop"`` or ``"hold"``.
        settle_after: Seconds of calm after which an agent says that it is settled; by default, what
            word takes to cross the graph, and at least 1 and ten turns.
        tolerance: The residual up to which an agent counts as settled.
        until_settled: Stop when all agents have said that they are settled, after the last fault.
        folder: Where the model, the agents' files and the notes of the swarm
            (:mod:`hogwild.executors.notes`) go; by default, a temporary folder.
        show: Print a live table.
    """
    found, faults = check_model(model), faults or Faults()
    inputs = Inputs.of(data)
    if inputs.num_graphs != 1:
        raise InputError(f"data holds {inputs.num_graphs} graphs; expected one, of one swarm")
    if not inputs.num_nodes:
        raise InputError("data has no nodes; expected a graph with one node at least")
    found.require_asynchronous(inputs)
    given = {"seconds": seconds, "rate": rate, "lease": lease, "settle_after": settle_after}
    for name, value in given.items():
        if value is not None and not 0 < value < 1e9:
            raise ConfigError(f"{name}={value!r}; expected a positive number, or None")
    if radius is not None and rule != "balls":
        raise ConfigError(f"radius={radius} was given with rule={rule!r}; expected rule='balls'")
    if rule == "balls" and radius is None:
        with evaluating(found), torch.no_grad():
            problem = found.problem(inputs)
        choose(problem, rule)  # refuses models whose nodes have nothing to solve
        radius = usual_radius(problem) if isinstance(problem, Problem) else None  # export refuses
    if transport == "zenoh" and find_spec("zenoh") is None:
        raise ConfigError(
            "transport='zenoh', but Zenoh is not installed; install hogwild-gnn[agents], or use "
            "transport='udp'"
        )
    if tls and transport != "zenoh":
        raise ConfigError(f"tls=True with transport={transport!r}; expected transport='zenoh'")
    rate = rate or min(50.0, UPDATES * (os.cpu_count() or 1) / inputs.num_nodes)
    lease = lease or max(2.0, 10.0 / rate)
    far = hops(inputs)
    diameter = float(far[np.isfinite(far)].max(initial=1.0))
    crossing = 1.5 * diameter * (1.0 / rate + faults.delay[1]) / (1.0 - faults.loss)
    settle_after = settle_after or max(1.0, crossing, 10.0 / rate)
    seconds = seconds or max(30.0, 6.0 * crossing)
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError(f"{folder} is a file; expected a folder for the agents' files")
    with contextlib.ExitStack() as stack:
        where = Path(folder or stack.enter_context(tempfile.TemporaryDirectory()))
        where.mkdir(parents=True, exist_ok=True)
        with evaluating(found), torch.no_grad():
            export(found, where / "model.hog", data=data)
        common = {
            "model": str(where / "model.hog"), "transport": transport, "rule": rule, "rate": rate,
            "precision": precision, "lease": lease, "on_silence": on_silence, "status": STATUS,
            "settle_after": settle_after, "nodes": inputs.num_nodes, "loss": faults.loss,
            "delay": list(faults.delay),
        }  # fmt: skip
        common |= {} if tolerance is None else {"tolerance": tolerance}
        common |= {} if radius is None else {"radius": radius}
        keys = None
        if tls:
            here = stack.enter_context(tempfile.TemporaryDirectory())  # no keys stay behind
            keys = make_keys(here, [str(i) for i in range(inputs.num_nodes)], days=1).folder
        notes = None if folder is None else Notes(where)
        if notes is not None:
            with evaluating(found), torch.no_grad():
                notes.begin(found, inputs, data.get("pos"))
        watch = Observer(found, inputs, where, common, faults, keys, notes)
        stack.callback(watch.stop)
        return watch.run(seconds, until_settled, show)


__all__ = ["Faults", "Swarm", "free_ports", "run"]


@dataclass
class Swarm:
    """What a swarm did.

    Attributes:
        times: Seconds since the first update, [T].
        error: Largest distance from the synchronous answer of the graph at that time, relative to
            its largest entry, [T].
        settled: Share of the living agents that said they were settled, [T].
        work: Mean number of updates of an agent, [T].
        sent: Mean number of bytes that an agent sent, [T].
        still: Seconds since an agent was last unsettled itself, as the observer sees all agents,
            [T]. Agents themselves only know their calm.
        deviation: The last error.
        updates: Mean number of updates of an agent. A settled agent makes none.
        turns: Mean number of turns of an agent.
        packets: Mean number of packets that an agent sent.
        bytes: Mean number of bytes in them.
        seconds: How long the swarm ran.
        alive: The agents that lived at the end.
        events: What was done to the swarm: (time, what).
        memory: Mean proportional memory of an agent in MB; ``None``: unknown.
        false_alarms: Samples in which an agent said that it was settled and the bound that it gave
            was below the true error.
        missed: Samples in which an agent had dropped a neighbour that lived and could be heard: it
            was starved of processor time for longer than the lease. Bounds are not judged then.
        rate: Turns a second that agents were asked for.
        trace: The schedule, which :func:`hogwild.simulate` replays; ``None`` if agents were killed
            or links were cut, because the simulator's graph does not change.
    """

    times: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    still: list[float] = field(default_factory=list)
    deviation: float = 1.0
    updates: float = 0.0
    turns: float = 0.0
    packets: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    alive: list[int] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    memory: float | None = None
    false_alarms: int = 0
    missed: int = 0
    rate: float = 0.0
    trace: Trace | None = None

    def reached(self, tolerance: float) -> float | None:
        """When the error was within a tolerance for good, in seconds; ``None``: never."""
        return _for_good(self.times, [e <= tolerance for e in self.error])

    def updates_to(self, tolerance: float) -> float | None:
        """Mean updates of an agent until the error was within a tolerance for good."""
        return _for_good(self.work, [e <= tolerance for e in self.error])

    def bytes_to(self, tolerance: float) -> float | None:
        """Mean bytes that an agent sent until the error was within a tolerance for good."""
        return _for_good(self.sent, [e <= tolerance for e in self.error])

    @property
    def settled_at(self) -> float | None:
        """When all agents had said for good that they were settled, in seconds; ``None``: never."""
        return _for_good(self.times, [share >= 1.0 for share in self.settled])

    @property
    def still_at(self) -> float | None:
        """When the last agent that was unsettled settled, in seconds; ``None``: unknown."""
        return self.times[-1] - self.still[-1] if self.still else None

    def plot(self, path: str | Path | None = None) -> Figure:
        """The error over time, with what was done to the swarm."""
        from hogwild.plots.style import BLUE, INK, figure

        with figure(5.5, 2.8, path) as drawn:
            ax = drawn.subplots()
            ax.semilogy(self.times, np.maximum(self.error, 1e-16), color=BLUE)
            before, row = -np.inf, 0
            for when, what in self.events:
                # A label that would touch the one before it goes one row higher.
                row = 1 - row if when - before < 0.15 * self.times[-1] else 0
                ax.axvline(when, color=INK, linewidth=0.8, linestyle=":")
                ax.text(
                    when, 1.0 + 0.08 * row, what, transform=ax.get_xaxis_transform(),
                    ha="center", va="bottom",
                )  # fmt: skip
                before = when
            ax.set_xlabel("seconds since the first update")
            ax.set_ylabel("largest relative error")
            ax.set_title(f"{len(self.alive)} agents alive at the end, one process each", pad=26)
        return drawn

    def __str__(self) -> str:
        within = {f"{t:.0e}": self.reached(t) for t in (1e-2, 1e-3, 1e-6)}
        told = ", ".join(f"{t} after {s:.1f} s" for t, s in within.items() if s is not None)
        memory = "" if self.memory is None else f", {self.memory:.0f} MB of memory each"
        done = self.turns / max(self.seconds, 1e-9)
        slow = ""
        if done < 0.5 * self.rate or self.missed:
            slow = (
                f"\nthe agents took {done:.1f} turns a second of {self.rate:.1f} asked for, and "
                f"had dropped\nliving neighbours in {self.missed} of {len(self.times)} samples: "
                f"this machine is too slow for so many agents;\nask for fewer turns (rate) or "
                f"allow longer silence (lease)"
            )
        return (
            f"{len(self.alive)} agents alive after {self.seconds:.1f} s; error "
            f"{self.deviation:.1e} ({told or 'not within 1e-2'})\n"
            f"price of an agent: {self.updates:.0f} updates, {self.packets:.0f} packets, "
            f"{self.bytes / 1000:.1f} kB{memory}\n"
            f"settled at the end: {100 * (self.settled[-1] if self.settled else 0):.0f} %; said so "
            f"with a wrong bound: {self.false_alarms} times{slow}"
        )


def _for_good(values: Sequence[float], holds: Sequence[bool]) -> float | None:
    """The value of the first sample from which on a condition holds; ``None``: there is none."""
    first = max((i + 1 for i, fine in enumerate(holds) if not fine), default=0)
    return values[first] if first < len(values) else None
