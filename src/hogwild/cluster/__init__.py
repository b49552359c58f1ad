"""Graphs that outgrow one machine: parts that solve for themselves, without barriers.

Only several workers need Ray, which is imported when they start.
"""

from hogwild.cluster.cutting import Partition, partition
from hogwild.cluster.engine import Disorder
from hogwild.cluster.inference import ClusterRun, Trace, infer
from hogwild.cluster.sources import open_graph
from hogwild.cluster.store import Store
from hogwild.cluster.training import Fit, Trainer, fit
from hogwild.cluster.whole import Whole
from hogwild.cluster.work import ErrorBar

__all__ = [
    "ClusterRun", "Disorder", "ErrorBar", "Fit", "Partition", "Store", "Trace", "Trainer", "Whole",
    "fit", "infer", "open_graph", "partition",
]  # fmt: skip
