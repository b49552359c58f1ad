"""``python -m hogwild.plots``: pictures from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hogwild.plots.paper import figure1


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, draw, say where the picture is."""
    parser = argparse.ArgumentParser(
        prog="python -m hogwild.plots",
        description="Draw a picture and save it; the ending (png, pdf, svg) says in what format.",
    )
    pictures = parser.add_subparsers(dest="picture", required=True, metavar="PICTURE")
    first = pictures.add_parser(
        "figure1",
        help="the paper's Figure 1: what asynchrony does to a layered GNN",
        description=(
            "The paper's Figure 1, from simulated runs. (a) A linear graph with binary features. "
            "(b) A 3-layer GNN on it in step: every value is the sum of the arrows into it. "
            "(c) The same GNN when nodes update at random times and hear late (S = 5, D = 2): "
            "arrows that are missing are grey, arrows that should not be there red. (d) Output of "
            "the middle node over many schedules: of that GNN, of a GCN with random weights, and "
            "of an energy GNN, whose answer is the same under all of them."
        ),
        epilog="example: python -m hogwild.plots figure1 figure1.pdf --seed 3 --runs 2000",
    )
    first.add_argument("path", help="file to write, such as figure1.png")
    first.add_argument(
        "--seed", type=int, default=0, help="of the schedules and the random weights (default: 0)"
    )
    first.add_argument(
        "--runs", type=int, default=500, help="schedules in panel (d) (default: 500)"
    )
    given = parser.parse_args(argv)
    figure1(given.path, seed=given.seed, runs=given.runs)
    print(given.path)
    return 0
