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
    from hogwild.kernels.native import Missing, found
    from hogwild.tasks import TASKS
    from hogwild.training import MODELS

    kernels = found()
    if isinstance(kernels, Missing):
        solve = f"no: {kernels.reason}"
    else:
        solve = f"yes ({kernels.instructions})"
    cuda = torch.cuda.is_available()
    data = {
        "hogwild": hogwild.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "threads": torch.get_num_threads(),
        "compiled solve": solve,
        "models": list(MODELS),
        "tasks": list(TASKS),
        "optional": {name: importlib.util.find_spec(name) is not None for name in OPTIONAL},
    }
    lines = []
    for key, value in data.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {'yes' if v else 'no'}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        lines.append(f"{key:16s} {value}")
    return Outcome("\n".join(lines), data)
