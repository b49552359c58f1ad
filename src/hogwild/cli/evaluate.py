"""``hogwild evaluate``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hogwild.cli.common import Finished, Outcome, of_file


@dataclass(frozen=True, kw_only=True)
class Options(Finished):
    """Measure a trained model anew: every replica on its training, validation and test graphs.

    The numbers come from the parameters in the folder and not from what training wrote down, so
    that a folder from elsewhere can be checked.

    Examples:
      hogwild evaluate runs/chains
      hogwild evaluate runs/triangles --task my_tasks.py:Triangles --json
    """


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.load`, and measure."""
    result = options.load()
    with of_file(options.task):
        result = replace(result, metrics=result.evaluate())
    return Outcome(result.summary(), result.as_dict())
