"""``hogwild info``."""

from __future__ import annotations

import importlib.util
import platform
from dataclasses import dataclass

from hogwild.cli.common import Outcome
from hogwild.cli.options import Verb

OPTIONAL = ("matplotlib", "pandas", "tensorboard", "lightning", "zenoh", "cryptography", "jax")
"""Packages of extras, and packages that benchmarks compare with."""


@dataclass(frozen=True, kw_only=True)
class Options(Verb):
    """Say what is installed: versions, devices, models, tasks, optional packages.

    The models and tasks are those that hogwild train takes by name.

    Examples:
      hogwild info
      hogwild info --json
    """


def run(options: Options) -> Outcome:
    """Collect what is installed."""
    import torch
    import torch_geometric

    import hogwild
    from hogwild.tasks import TASKS
    from hogwild.training import MODELS

    cuda = torch.cuda.is_available()
    data = {
        "hogwild": hogwild.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "threads": torch.get_num_threads(),
        "models": list(MODELS),
        "tasks": list(TASKS),
        "optional": {name: importlib.util.find_spec(name) is not None for name in OPTIONAL},
    }
    lines = []
    for key, found in data.items():
        if isinstance(found, dict):
            found = ", ".join(f"{k} {'yes' if v else 'no'}" for k, v in found.items())
        elif isinstance(found, list):
            found = ", ".join(found)
        lines.append(f"{key:16s} {found}")
    return Outcome("\n".join(lines), data)
