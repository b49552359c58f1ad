"""The command ``hogwild-agent``: one node of a swarm, as a process.

The last state of an agent is kept in a file, for a warm restart.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # matrices are tiny: threads only cost memory

import numpy as np

from hogwild_node import model as models
from hogwild_node.agent import Agent
from hogwild_node.errors import NodeError, SetupError
from hogwild_node.model import NodeModel
from hogwild_node.ops import Array
from hogwild_node.options import TRANSPORTS, edges, numbers, settings
from hogwild_node.packets import Link
from hogwild_node.transports import Transport, Trial

SAVE_PERIOD = 2.0
"""Seconds between two saves of the state."""
ASK_PERIOD = 2.0
"""Seconds between two questions to silent neighbours why there is no link."""


def transport_of(found: dict[str, Any], model: str) -> Transport:
    """The agent's links."""
    kind, listen = found.get("transport", "zenoh"), found.get("listen", "127.0.0.1:21000")
    if kind == "zenoh":
        from hogwild_node.transports.zenoh import ZenohTransport

        certificates = None
        if "certificates" in found:
            from hogwild_node.transports.tls import Certificates

            certificates = Certificates.of(found["certificates"])
        return ZenohTransport(
            found["id"], model, listen, certificates=certificates,
            controller=found.get("controller"), lease=found.get("lease", 2.0),
        )  # fmt: skip
    if kind != "udp":
        raise SetupError(f"transport={kind!r}; expected one of {', '.join(TRANSPORTS)}")
    for secret in ("certificates", "controller"):
        if secret in found:
            raise SetupError(
                f"{secret} was given with transport=udp, which encrypts nothing; expected "
                f"transport=zenoh, or no {secret}"
            )
    from hogwild_node.transports.udp import UDPTransport

    return UDPTransport(listen)


def trial_of(found: dict[str, Any]) -> Trial | None:
    """The losses and delays of a trial, if there are any."""
    faults = {key: found[key] for key in ("loss", "delay", "seed") if key in found}
    trial, cut = Trial(**faults), frozenset(found.get("cut", ()))
    if cut:
        signal.signal(signal.SIGUSR1, lambda *_: setattr(trial, "cut", cut))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(trial, "cut", frozenset()))
    return trial if cut or trial.loss or trial.delay[1] else None


def status(agent: Agent) -> str:
    """The agent's state as one line of JSON."""
    told: dict[str, Any] = {
        "time": time.time(), "id": agent.id, "neighbours": list(agent.links),
        "addresses": [link.edge.address for link in agent.links.values()],
        "still": agent.clock() - agent.unsettled, "turns": agent.turns,
        "restarts": agent.work.restarts,
        "reasons": {
            name.partition(": ")[2]: count
            for name, count in agent.counts.items()
            if name.startswith("dropped: ")
        },
    }  # fmt: skip
    told |= {name: agent.counts[name] for name in ("packets", "bytes", "received", "dropped")}
    for name, value in vars(agent.read()).items():
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        told[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return json.dumps(told)


class Trace:
    """Notes in a file what an agent had heard at each of its updates."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.updates = file, 0

    def note(self, agent: Agent) -> None:
        """Note the last turn, if it made an update with all neighbours taking part."""
        if agent.updates == self.updates:
            return
        self.updates = agent.updates
        if len(agent.members) == len(agent.links):
            heard = {name: agent.links[name].sequence or 0 for name in agent.members}
            line = {"id": agent.id, "time": agent.now, "turn": agent.turns, "heard": heard}
            print(json.dumps(line), file=self.file)


class Every:
    """Says every so many seconds that it is time, the first time at once; ``None``: never."""

    def __init__(self, seconds: float | None, first: float = 0.0) -> None:
        self.seconds, self.due = seconds, time.monotonic() + first

    def __call__(self) -> bool:
        if self.seconds is None or time.monotonic() < self.due:
            return False
        self.due = time.monotonic() + self.seconds
        return True


def run(found: dict[str, Any]) -> None:
    """Be an agent until told to stop."""
    model, name = models.load(found["model"]), found["id"]
    state = found.get("state")
    passed = ("rule", "radius", "precision", "lease", "tolerance", "settle_after", "nodes")
    options = {key: found[key] for key in passed if key in found}
    h = None if state is None else saved(state, model, name)
    if state is not None and h is None and Path(state).exists():
        _say(f"{state} is of another agent or model; the agent begins anew")
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.append(1))
    with contextlib.ExitStack() as stack:
        transport = stack.enter_context(transport_of(found, model.name))
        transport.trial = trial_of(found)
        agent = Agent(
            model, name, found["features"], transport,
            neighbours=found.get("neighbours", {}), h=h, **options,
        )  # fmt: skip
        threading.Thread(target=_explain, args=(agent, stop), daemon=True).start()
        trace = None
        if "trace" in found:
            trace = Trace(stack.enter_context(open(found["trace"], "a")))
        if state is not None:
            save(agent, state)  # an unwritable place is told at once
        saving, telling = Every(SAVE_PERIOD, SAVE_PERIOD), Every(found.get("status"))
        end = time.monotonic() + found.get("seconds", math.inf)

        def each(agent: Agent) -> None:
            if trace is not None:
                trace.note(agent)
            if state is not None and saving():
                try:
                    save(agent, state)
                except OSError as error:  # a full disk must not end a robot
                    _say(f"{state} cannot be written ({error.strerror}); the agent goes on")
            for raw in transport.control():
                _control(agent, raw)
            if telling():
                print(status(agent), flush=True)
            transport.tell(lambda: status(agent))

        agent.run(
            rate=found.get("rate", 50.0),
            stopped=lambda: bool(stop) or time.monotonic() >= end,
            each=each,
        )
        if state is not None:
            save(agent, state)
        if "status" in found:
            print(status(agent), flush=True)


def _explain(agent: Agent, stop: list[int]) -> None:
    """Say why silent neighbours refuse this agent, or are refused, and what else keeps the agent
    from its answer, once for each reason."""
    told: dict[str, str] = {}
    trouble: str | None = None
    while not stop:
        time.sleep(ASK_PERIOD)
        if agent.work.trouble != trouble:
            trouble = agent.work.trouble
            if trouble is not None:
                _say(trouble)
        for name, link in list(agent.links.items()):
            if agent.clock() - link.last <= agent.lease:
                told.pop(name, None)
                continue
            if agent.clock() - agent.begun <= agent.lease:
                continue
            why = agent.transport.refusal(name)
            if why is None and name not in told:
                why = _silence(agent, link)
            if why is not None and why != told.get(name):
                told[name] = why
                _say(f"no link to neighbour {name} at {link.edge.address}: {why}")


def _silence(agent: Agent, link: Link) -> str:
    """What is known of a neighbour that is silent, where the transport knows no reason."""
    if math.isinf(link.last):
        return "no packet from it, or none of this model and rule"
    return f"nothing from it for {agent.clock() - link.last:.0f} s"


def _control(agent: Agent, raw: bytes) -> None:
    """New features or neighbours; what does not fit is reported and changes nothing."""
    try:
        told = json.loads(raw)
        if not isinstance(told, dict) or not told or told.keys() - {"features", "neighbours"}:
            raise SetupError(
                f"it is {json.dumps(told)[:80]}; expected an object with features, neighbours, or "
                f"both"
            )
        features = agent.features
        if "features" in told:
            features = agent.checked(numbers(told["features"], "features"))
        if "neighbours" in told:
            agent.set_neighbours(edges(told["neighbours"]))
        agent.set_features(features)
    except Exception as error:  # whatever was sent must not end the agent
        _say(f"ignored a control message: {error}")


def _say(what: str) -> None:
    print(f"hogwild-agent: {what}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    try:
        run(settings(argv))
    except NodeError as error:
        print(f"hogwild-agent: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # nobody reads the status lines any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        where = "standard output" if error.filename is None else error.filename
        _say(f"{where}: {error.strerror}; expected a place that can be read and written")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def save(agent: Agent, path: str | Path) -> None:
    """Write the embedding of an agent to a file, whole or not at all."""
    path = Path(path)
    told = {"model": agent.model.name, "id": agent.id, "h": agent.h[0, :, 0].tolist()}
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(told))
    part.replace(path)


def saved(path: str | Path, model: NodeModel, id: str) -> Array | None:
    """The embedding in a file of this agent and model; ``None``: there is none to use.

    Raises:
        SetupError: The file is something else, which a save would overwrite.
    """
    try:
        if Path(path).stat().st_size == 0:
            return None
        found = json.loads(Path(path).read_text())
        h = np.array(found["h"], dtype=np.float64)
        fits = (found["model"], found["id"]) == (model.name, str(id))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"{path} is not the saved state of an agent; expected one, or a new file's name"
        ) from error
    good = fits and h.shape == (model.channels,) and bool(np.isfinite(h).all())
    return h if good else None


if __name__ == "__main__":
    sys.exit(main())
