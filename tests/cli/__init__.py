"""Tests of the command line; a package, since its verbs have the names of what they call."""

from pathlib import Path

TASK = str(Path(__file__).parents[1] / "training" / "tiny_tasks.py") + ":Chains"
"""A task that is small enough to train on in a second."""
