"""Graphs that outgrow one machine: parts that solve for themselves, without barriers.

Only several workers need Ray, which is imported when they start.
"""

from hogwild.cluster.bound import ErrorBar
from hogwild.cluster.infer import infer
from hogwild.cluster.local import Disorder
from hogwild.cluster.partition import Partition, partition
from hogwild.cluster.result import ClusterRun
from hogwild.cluster.store import Store
from hogwild.cluster.trace import Trace
from hogwild.cluster.whole import Whole

__all__ = [
    "ClusterRun", "Disorder", "ErrorBar", "Partition", "Store", "Trace", "Whole", "infer",
    "partition",
]  # fmt: skip
