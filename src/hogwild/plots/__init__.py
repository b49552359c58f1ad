"""Pictures of runs, sweeps and trainings.

Matplotlib is an extra (``pip install 'hogwild-gnn[plots]'``), loaded when a picture is drawn. Every
function returns the figure, and writes it to ``path`` if one is given; the ending of the path (png,
pdf, svg) is the format.
"""

from hogwild.plots.charts import heatmap, output_histogram
from hogwild.plots.courses import curves, deadlines
from hogwild.plots.motion import tracking

__all__ = ["curves", "deadlines", "heatmap", "output_histogram", "tracking"]
