"""Graphs that outgrow one machine: parts that solve for themselves, without barriers.

Only several workers need Ray, which is imported when they start.
"""

import warnings
from typing import Any

from hogwild.cluster.cutting import Partition, partition
from hogwild.cluster.inference import ClusterRun, Trace, infer
from hogwild.cluster.sources import graph_of, open_graph
from hogwild.cluster.store import Store
from hogwild.cluster.training import Fit, Trainer, fit
from hogwild.cluster.work import ErrorBar
from hogwild.cluster.worker import Disorder

__all__ = [
    "ClusterRun", "Disorder", "ErrorBar", "Fit", "Partition", "Store", "Trace", "Trainer",
    "fit", "infer", "open_graph", "partition",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "Whole":
        warnings.warn(
            "hogwild.cluster.Whole is gone; give a Data or hogwild.Inputs, whose tensors may be "
            "memory-mapped: torch.from_numpy(numpy.load(file, mmap_mode='c'))",
            DeprecationWarning,
            stacklevel=2,
        )
        return graph_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
