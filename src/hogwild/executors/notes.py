"""What a running swarm writes into its folder, so that others can watch it: the graph once, and the
agents' last words several times a second. A reader changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hogwild.executors.swarmed import Swarm
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model

GRAPH, WORDS = "swarm.json", "words.json"
SAID = ("prediction", "residual", "staleness", "state", "updates", "packets", "bytes")
"""What the notes hold of an agent's words."""


@dataclass(frozen=True)
class Notes:
    """Writes the notes of a swarm.

    Attributes:
        folder: Where.
    """

    folder: Path

    def begin(self, model: Model, inputs: Inputs, pos: Any = None) -> None:
        """Note the graph, and what the model says on it in step."""
        out = model.predict(inputs).double()
        _write(self.folder / WORDS, {"time": 0.0, "error": None, "alive": [], "agents": {}})
        _write(
            self.folder / GRAPH,
            {
                "nodes": inputs.num_nodes,
                "edges": inputs.edge_index.T.tolist(),
                "pos": None if pos is None else torch.as_tensor(pos).double().tolist(),
                "prediction": out.reshape(inputs.num_nodes, -1).tolist(),
            },
        )

    def look(self, out: Swarm, words: Mapping[int, dict[str, Any]], ended: bool = False) -> None:
        """Note how the swarm is."""
        agents = {i: {name: word[name] for name in SAID} for i, word in words.items()}
        events = [[t, what] for t, what in out.events]
        said = {
            "time": out.times[-1], "error": out.error[-1], "alive": out.alive, "agents": agents,
            "events": events, "ended": ended,
        }  # fmt: skip
        _write(self.folder / WORDS, said)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file that is replaced many times a second: a reader never sees half of it. Unlike
    :func:`hogwild.files.write_atomically`, nothing waits for the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content))
    beside.replace(path)
