"""The last state of an agent in a file, for a warm restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from hogwild_node.agent import Agent
from hogwild_node.errors import SetupError
from hogwild_node.model import NodeModel
from hogwild_node.ops import Array


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
