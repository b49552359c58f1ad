"""Pictures: computation graphs, and what runs and sweeps look like.

Matplotlib is an extra (``pip install hogwild-gnn[plots]``), loaded when a picture is drawn. Every
function returns the figure, and with ``path`` writes it there: the ending (png, pdf, svg) says in
what format.
"""

from hogwild.plots.charts import convergence, heatmap, output_histogram
from hogwild.plots.computation import ComputationGraph, computation_graph

__all__ = [
    "ComputationGraph",
    "computation_graph",
    "convergence",
    "heatmap",
    "output_histogram",
]
