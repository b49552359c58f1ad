"""Graphs that outgrow one machine: parts that solve for themselves, without barriers.

Only several workers need Ray, which is imported when they start.
"""

from hogwild.cluster.cutting import Partition, partition
from hogwild.cluster.inference import ClusterRun, Trace, infer
from hogwild.cluster.sources import open_graph
from hogwild.cluster.store import Store
from hogwild.cluster.training import Trainer
from hogwild.cluster.work import ErrorBar
from hogwild.cluster.worker import Disorder

__all__ = [
    "ClusterRun", "Disorder", "ErrorBar", "Partition", "Store", "Trace", "Trainer",
    "infer", "open_graph", "partition",
]  # fmt: skip
