"""A swarm of real processes on this machine: one agent a node, faults for real.

:func:`run` exports a model, starts one ``hogwild-agent`` for each node of a graph on loopback,
kills, freezes and revives some of them, and compares their answers with the synchronous one. Agents
know nothing of each other but what they hear; only this process sees them all.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from torch import nn
from torch_geometric.data import Data

from hogwild.errors import AsynchronyError, ConfigError, InputError
from hogwild.executors.swarm_result import Faults, Swarm, trace_of
from hogwild.graph.inputs import Inputs
from hogwild.keys import make_keys
from hogwild.models.base import Model
from hogwild.models.export import export
from hogwild.models.validation import evaluating
from hogwild.models.wrapped import check_model
from hogwild.problems.base import Problem
from hogwild.rules import about, check_radius, choose
from hogwild.rules.balls import usual_radius
from hogwild_node.model import load

UPDATES = 60.0
"""Updates a second that are asked of one core. The number is a cautious guess: ``Swarm.rate`` and
``Swarm.updates`` show whether a machine keeps up."""
DONE = {
    "kill": "killed", "revive": "revived", "freeze": "frozen", "thaw": "thawed",
    "cut": "links cut", "heal": "links healed",
}  # fmt: skip
SIGNALS = {
    what: getattr(signal, name)
    for what, name in {
        "freeze": "SIGSTOP", "thaw": "SIGCONT", "cut": "SIGUSR1", "heal": "SIGUSR2"
    }.items()
    if hasattr(signal, name)  # Windows has none of them
}  # fmt: skip
STATUS = 0.1
"""Seconds between two status lines of an agent."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now, for TCP and for UDP.

    They are below those that systems give to outgoing connections, so that no other program gets
    one of them by chance before the agent does.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 12_000):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                one = stack.enter_context(socket.socket(socket.AF_INET, kind))
                one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AsynchronyError(f"{len(found)} ports of 127.0.0.1 are free; expected {count}, for agents")


def hops(inputs: Inputs) -> np.ndarray:
    """The number of hops between every two nodes, [N, N]; infinite where there is no path."""
    n, (src, dst) = inputs.num_nodes, inputs.edge_index.cpu().numpy()
    found: np.ndarray = shortest_path(
        csr_matrix((np.ones(src.size), (src, dst)), shape=(n, n)), unweighted=True
    )
    return found


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
    settle_after: float | None = None,
    until_settled: bool = True,
    folder: str | Path | None = None,
    show: bool = False,
) -> Swarm:
    """Run a model as a swarm of processes on this machine.

    Args:
        model: A trained model that :func:`hogwild.models.export.export` takes.
        data: One graph, undirected; ``edge_weight`` equal in both directions.
        faults: What is done to the swarm.
        seconds: How long the swarm runs at most; by default, as long as information takes to cross
            the graph six times, and at least 30.
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
        settle_after: Seconds of calm after which an agent says that it is settled; by default, what
            information takes to cross the graph, and at least 1 and ten turns.
        until_settled: Stop when all agents have said that they are settled, after the last fault.
        folder: Where the model and the agents' files go; by default, a temporary folder.
        show: Print every second how the swarm is.
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
        for old in (*where.glob("agent*.trace"), *where.glob("agent*.log")):
            old.unlink()  # of a former run in the same folder
        with evaluating(found), torch.no_grad():
            export(found, where / "model.hog", data=data)
        common = {
            "model": str(where / "model.hog"), "transport": transport, "rule": rule, "rate": rate,
            "precision": precision, "lease": lease, "status": STATUS,
            "settle_after": settle_after, "nodes": inputs.num_nodes, "loss": faults.loss,
            "delay": list(faults.delay),
        }  # fmt: skip
        common |= {} if radius is None else {"radius": radius}
        keys = None
        if tls:
            here = stack.enter_context(tempfile.TemporaryDirectory())  # no keys stay behind
            keys = make_keys(here, [str(i) for i in range(inputs.num_nodes)], days=1).folder
        swarm = SwarmProcesses(found, data, inputs, where, common, faults, keys)
        stack.callback(swarm.stop)
        return swarm.run(seconds, until_settled, show)


class SwarmProcesses:
    """Starts the agents, listens to their status lines, and does to them what the faults say."""

    def __init__(
        self,
        model: Model,
        data: Data,
        inputs: Inputs,
        where: Path,
        common: dict[str, Any],
        faults: Faults,
        keys: Path | None = None,
    ) -> None:
        self.model, self.data, self.inputs, self.where = model, data, inputs, where
        self.common, self.faults, self.n, self.keys = common, faults, inputs.num_nodes, keys
        self.quiet = float(common["lease"] + common["settle_after"])  # seconds that news may spread
        self.ports = free_ports(self.n)
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.lines: dict[int, dict[str, Any]] = {}  # the last status of every agent
        self.lock = threading.Lock()
        self.answers: dict[tuple[object, ...], tuple[Any, float]] = {}
        self.convexity = load(common["model"]).convexity
        self.half = self._half() if faults.partition else frozenset()
        self.parted = False
        self.revived: list[int] = []
        self.frozen: frozenset[int] = frozenset()
        self.disturbed = -math.inf  # when an agent last missed a neighbour that lives
        self._readers: dict[int, threading.Thread] = {}
        self.seen = Swarm(alive=list(range(self.n)), rate=float(common["rate"]))

    # -- processes ---------------------------------------------------------------------------------

    def start(self, i: int) -> None:
        """Start agent i."""
        src, dst = self.inputs.edge_index
        near: dict[str, Any] = {}
        for e in (dst == i).nonzero()[:, 0].tolist():
            j = int(src[e])
            entry: dict[str, Any] = {"address": f"127.0.0.1:{self.ports[j]}"}
            if self.inputs.edge_weight is not None:
                entry["weight"] = float(self.inputs.edge_weight[e])
            if self.inputs.edge_attr is not None:
                entry["edge_attr"] = self.inputs.edge_attr[e].reshape(-1).tolist()
            near[str(j)] = entry
        beyond = [j for j in near if (int(j) in self.half) != (i in self.half)]
        config = self.common | ({"cut": beyond} if beyond else {}) | {
            "trace": str(self.where / f"agent{i}.trace"),
            "id": str(i), "listen": f"127.0.0.1:{self.ports[i]}", "seed": self.faults.seed + i,
            "features": self.inputs.x[i].tolist(), "neighbours": near,
        }  # fmt: skip
        if self.keys is not None:
            config["certificates"] = str(self.keys / str(i))
        path = self.where / f"agent{i}.toml"
        path.write_text(_toml(config))
        with (self.where / f"agent{i}.log").open("a") as errors:
            self.processes[i] = subprocess.Popen(
                [sys.executable, "-m", "hogwild_node.command", "--config", str(path)],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._readers[i] = threading.Thread(
            target=self._listen, args=(i, self.processes[i].stdout), daemon=True
        )
        self._readers[i].start()

    def _listen(self, i: int, stdout: IO[str]) -> None:
        with contextlib.suppress(ValueError):  # the pipe was closed
            for line in stdout:
                with contextlib.suppress(json.JSONDecodeError), self.lock:
                    if self.processes[i].stdout is stdout:  # not the lines of a dead one
                        self.lines[i] = json.loads(line)

    def stop(self) -> None:
        """End all agents, whatever happened."""
        for process in self.processes.values():
            with contextlib.suppress(OSError):
                if hasattr(signal, "SIGCONT"):  # a frozen process cannot end
                    process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + 3.0
        for process in self.processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    # -- the run -----------------------------------------------------------------------------------

    def run(self, seconds: float, until_settled: bool, show: bool) -> Swarm:
        out, todo = self.seen, self._plan()
        self._answer(out.alive)  # the model refuses what it cannot read before any start
        for i in range(self.n):
            self.start(i)
        begun, shown = self._begin(), 0.0
        if show:
            where = f"to watch: hogwild serve --attach 127.0.0.1:{self.ports[0]}"
            never = "to watch, leave tls (--tls) out: keys of a single run have no controller"
            _say(where if self.keys is None else never)
        while True:
            self._require_alive()
            t = time.monotonic() - begun
            while todo and todo[0][0] <= t:
                _, what, who = todo.pop(0)
                self._do(what, who)
                out.events.append((t, f"{len(who)} {DONE[what]}"))
            with self.lock:
                lines = dict(self.lines)
            if self.revived and all(lines.get(i, {}).get("updates") for i in self.revived):
                out.events.append((t, f"{len(self.revived)} back"))
                self.revived = []
            alive = [i for i in out.alive if i in lines]
            self._look(t, lines, alive)
            if show and t >= shown + 1.0:
                shown = t
                _say(_summary(out, [lines[i] for i in alive]))
            done = until_settled and not todo and self._rested(t) and out.settled[-1] == 1.0
            if t >= seconds or done:
                break
            time.sleep(STATUS)
        out.seconds, out.deviation = out.times[-1], out.error[-1]
        for name in ("updates", "turns", "packets", "bytes"):
            setattr(out, name, sum(lines[i][name] for i in alive) / max(len(alive), 1))
        out.memory = _memory([self.processes[i].pid for i in alive])
        self.stop()  # the agents write their traces to the end
        if not self.faults.kill and not self.faults.partition:
            out.trace = trace_of(self.where, self.inputs)
        return out

    def _begin(self) -> float:
        """Wait for the first update of every agent; the time of the last one."""
        launched, patience = time.monotonic(), 60.0 + 2.0 * self.n
        while True:
            self._require_alive()
            with self.lock:
                ready = sum(bool(line["updates"]) for line in self.lines.values())
            now = time.monotonic()
            if ready == self.n:
                return now
            if now - launched > patience:
                raise AsynchronyError(
                    f"only {ready} of {self.n} agents made an update within {patience:.0f} s: this "
                    f"machine is too slow for so many agents, or some cannot hear each other "
                    f"({self.where}/agent*.log where --keep was given); try fewer agents"
                )
            time.sleep(0.05)

    def _plan(self) -> list[tuple[float, str, list[int]]]:
        """What is done to whom, by time."""
        f, chosen = self.faults, np.random.default_rng(self.faults.seed).permutation(self.n)
        killed = sorted(chosen[: round(f.kill * self.n)].tolist())
        frozen = sorted(chosen[::-1][: round(f.freeze * self.n)].tolist())
        ends = {
            i for i, j in self.inputs.edge_index.T.tolist() if (i in self.half) != (j in self.half)
        }
        plan = [
            (f.kill_at, "kill", killed),
            (math.inf if f.revive_at is None else f.revive_at, "revive", killed),
            (f.freeze_at, "freeze", frozen), (f.thaw_at, "thaw", frozen),
            (f.partition_at, "cut", sorted(ends)), (f.heal_at, "heal", sorted(ends)),
        ]  # fmt: skip
        return sorted(step for step in plan if step[2] and step[0] < math.inf)

    def _half(self) -> frozenset[int]:
        """The half of the nodes that is nearest to one node, which the seed draws."""
        first = int(np.random.default_rng(self.faults.seed).integers(self.n))
        near = np.argsort(hops(self.inputs)[first], kind="stable")
        return frozenset(near[: self.n // 2].tolist())

    def _do(self, what: str, who: Sequence[int]) -> None:
        alive = self.seen.alive
        for i in who:
            if what == "kill":
                self.processes[i].kill()
                self.processes[i].wait()
                self._readers[i].join(2.0)
                alive.remove(i)
                with self.lock:
                    self.lines.pop(i, None)
            elif what == "revive":
                self.start(i)
                alive.append(i)
                self.revived.append(i)
            else:
                self.processes[i].send_signal(SIGNALS[what])
        alive.sort()
        self.parted = {"cut": True, "heal": False}.get(what, self.parted)
        self.frozen = {"freeze": frozenset(who), "thaw": frozenset[int]()}.get(what, self.frozen)

    def _require_alive(self) -> None:
        for i, process in self.processes.items():
            if process.poll() is not None and i in self.seen.alive:
                log = (self.where / f"agent{i}.log").read_text().strip().splitlines()
                raise AsynchronyError(
                    f"agent {i} ended with status {process.returncode}: "
                    f"{log[-1] if log else 'no message'}"
                )

    def _look(self, t: float, lines: dict[int, Any], alive: list[int]) -> None:
        """One sample of the whole swarm."""
        out = self.seen
        awake = [i for i in out.alive if i not in self.frozen]  # the others count as gone
        alive = [i for i in alive if i not in self.frozen]
        answer, doubt = self._answer(awake)
        place = {i: q for q, i in enumerate(awake)}
        gaps = [np.array(lines[i]["h"]) - answer[place[i]] for i in alive]
        size = max(float(np.abs(answer).max()), 1e-300)
        complete = len(alive) == len(awake)
        error = float(max(np.abs(g).max() for g in gaps)) / size if gaps and complete else 1.0
        settled = [i for i in alive if lines[i]["state"] == "settled"]
        out.times.append(t)
        out.error.append(error)
        for name, means in (("updates", out.work), ("bytes", out.sent)):
            means.append(sum(lines[i][name] for i in alive) / max(len(alive), 1))
        out.still.append(min((lines[i]["still"] for i in alive), default=0.0))
        out.settled.append(len(settled) / max(len(awake), 1))
        missed = any(self._reachable(i, int(j)) for i in alive for j in lines[i]["silent"])
        if missed and not self._recent(t):
            self.disturbed, out.missed = t, out.missed + 1
        if self._rested(t) and complete:  # before, agents cannot know what was done to the swarm
            beyond = math.sqrt(sum(float((g**2).sum()) for g in gaps)) - doubt
            bounds = [lines[i]["bound"] for i in settled]
            out.false_alarms += sum(b is not None and beyond > b for b in bounds)

    def _rested(self, t: float) -> bool:
        """Whether news of the last event, and of the last link that failed, has had time to
        spread."""
        return not self._recent(t) and t > self.disturbed + self.quiet

    def _recent(self, t: float) -> bool:
        """Whether something was done to the swarm of late."""
        return bool(self.seen.events) and t <= self.seen.events[-1][0] + self.quiet

    def _reachable(self, i: int, j: int) -> bool:
        """Whether nothing was done to the swarm that keeps i from hearing j."""
        apart = self.parted and (i in self.half) != (j in self.half)
        return j in self.seen.alive and not self.frozen & {i, j} and not apart

    def _answer(self, alive: Sequence[int]) -> tuple[Any, float]:
        """The synchronous answer of the graph of those alive, without the links that are cut,
        [n, k]; and how far it may be from the exact one."""
        key = (self.parted, *alive)
        if key not in self.answers:
            part = self.data.subgraph(torch.tensor(alive, dtype=torch.long))
            if self.parted:
                within = torch.tensor([i in self.half for i in alive])
                part = part.edge_subgraph(within[part.edge_index[0]] == within[part.edge_index[1]])
            with evaluating(self.model), torch.no_grad():
                found = self.model.embed(Inputs.of(part))
            rounding = float(torch.finfo(found.value.dtype).eps * found.value.abs().max())
            left = float(found.residual.max()) / self.convexity if self.convexity else 0.0
            doubt = math.sqrt(found.value.numel()) * (left + rounding)
            self.answers[key] = found.value.double().numpy(), doubt
        return self.answers[key]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _summary(out: Swarm, lines: list[dict[str, Any]]) -> str:
    """How the swarm is, in a line."""
    ages = sorted(line["staleness"] for line in lines if line["staleness"] is not None)
    staleness = f"{1000 * ages[len(ages) // 2]:.0f} ms" if ages else "-"
    residual = max((line["residual"] or 0.0 for line in lines), default=0.0)
    calm = min((line["calm"] for line in lines), default=0.0)
    return (
        f"{out.times[-1]:7.1f} s  {len(lines)} agents  error {out.error[-1]:.1e}  residual "
        f"{residual:.1e}  calm {calm:.1f} s  settled {100 * out.settled[-1]:.0f} %  staleness "
        f"{staleness}  {out.work[-1]:.0f} updates each"
    )


def _memory(pids: Sequence[int]) -> float | None:
    """Mean proportional memory of some processes in MB."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError, StopIteration, ValueError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            line = next(x for x in lines if x.startswith("Pss:"))
            found.append(int(line.split()[1]) / 1024)
    return sum(found) / len(found) if found else None


def _toml(config: dict[str, Any]) -> str:
    """A configuration as TOML: top-level values, then one table for each neighbour."""
    plain = {k: v for k, v in config.items() if k != "neighbours"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for name, entry in config["neighbours"].items():
        lines += ["", f"[neighbours.{json.dumps(name)}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    return "\n".join(lines) + os.linesep
