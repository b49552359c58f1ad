"""A swarm of real processes on this machine: one agent a node, faults for real.

:func:`run` exports a model, starts one ``hogwild-agent`` for each node of a graph on loopback,
kills, freezes and revives some of them, and compares their answers with the synchronous one. Agents
know nothing of each other but what they hear; only this observer sees them all.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from hogwild.errors import ConfigError, InputError
from hogwild.executors.notes import Notes
from hogwild.executors.observer import STATUS, Faults, Observer, free_ports, hops
from hogwild.executors.swarmed import Swarm
from hogwild.graph.inputs import Inputs
from hogwild.keys import make_keys
from hogwild.models.check import check_model
from hogwild.models.export import export
from hogwild.models.mode import evaluating
from hogwild.problems.base import Problem
from hogwild.rules import about, check_radius, choose
from hogwild.rules.balls import usual_radius

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
    check_radius(rule, radius)
    if radius is None and rule != "auto":
        with evaluating(found), torch.no_grad():
            problem = found.problem(inputs)
        made = about(choose(problem, rule))  # refuses models whose nodes have nothing to solve
        if "radius" in made.options and isinstance(problem, Problem):  # export refuses others
            radius = usual_radius(problem)
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
