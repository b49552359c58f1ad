"""Say what is installed: versions, devices, models, tasks, optional packages."""

from __future__ import annotations

import argparse
import importlib.util
import platform

from hogwild.cli.common import Outcome

EXAMPLES = """\
  hogwild info
  hogwild info --json"""
OPTIONAL = ("matplotlib", "pandas", "tensorboard", "lightning", "jax")
"""What an extra brings, or a benchmark compares with."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(given: argparse.Namespace) -> Outcome:
    """Look."""
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
