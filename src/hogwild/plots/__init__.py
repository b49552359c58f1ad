"""Pictures: the paper's first figure, and what runs and sweeps look like.

Matplotlib is an extra (``pip install hogwild-gnn[plots]``), loaded when a picture is drawn. Every
function returns the figure, and with ``path`` writes it there: the ending (png, pdf, svg) says in
what format. ``python -m hogwild.plots --help`` draws from the command line.
"""

from hogwild.plots.charts import convergence, heatmap, output_histogram
from hogwild.plots.command import main
from hogwild.plots.computation import ComputationGraph, computation_graph
from hogwild.plots.paper import figure1

__all__ = [
    "ComputationGraph",
    "computation_graph",
    "convergence",
    "figure1",
    "heatmap",
    "main",
    "output_histogram",
]
