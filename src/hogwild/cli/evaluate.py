"""Measure a trained model anew: every replica on its own training, validation and test graphs."""

from __future__ import annotations

import argparse
from dataclasses import replace

from hogwild.cli.common import Outcome, folder_arguments, loaded, of_file

EXAMPLES = """\
  hogwild evaluate runs/chains
  hogwild evaluate runs/triangles --task my_tasks.py:Triangles --json"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """A folder."""
    folder_arguments(parser)


def run(given: argparse.Namespace) -> Outcome:
    """Evaluate."""
    result = loaded(given)
    with of_file(given.task):
        result = replace(result, metrics=result.evaluate())
    return Outcome(result.summary(), result.as_dict())
