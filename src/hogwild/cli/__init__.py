"""The command ``hogwild``: a verb parses, builds a frozen configuration, and calls the library.

Exit codes: 0 fine; 1 something unexpected; 2 bad usage or input, said in one message; 3 a solve, a
training run or an asynchronous run did not converge; 130 interrupted.

Help must come at once: only the module of the verb that was asked for is imported, and what takes
long to import (torch) only when the verb runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

import hogwild
from hogwild.cli.common import Parser
from hogwild.cli.flags import in_flags
from hogwild.errors import ConvergenceError, HogwildError

VERBS = {
    "train": "train a model on a task",
    "evaluate": "measure a trained model anew",
    "simulate": "run a trained model asynchronously",
    "robustness": "what asynchrony costs a trained model",
    "certify": "what is proved about a trained model",
    "info": "what is installed: versions, devices, models, tasks",
    "demo": "models in step and out of step, and a report",
    "reproduce": "regenerate the paper's tables and figures",
}
"""Every verb is a module of this package, with what follows in a line."""
EXAMPLES = """\
examples:
  hogwild demo
  hogwild train chains --model energy-edge --epochs 500 --folder runs/chains
  hogwild evaluate runs/chains
  hogwild robustness runs/chains --loss 0.3
  hogwild certify runs/chains

hogwild VERB --help explains a verb."""


def parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command line, with all flags of the verb that these arguments begin with."""
    top = Parser(
        prog="hogwild",
        description="Graph neural networks that survive asynchrony.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    top.add_argument("--version", action="version", version=f"hogwild {hogwild.__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, line in VERBS.items():
        if name != asked:
            verbs.add_parser(name, help=line)
            continue
        verb = importlib.import_module(f"hogwild.cli.{name}")
        here = verbs.add_parser(
            name,
            help=line,
            description=verb.__doc__,
            epilog=f"examples:\n{verb.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.arguments(here)
        here.add_argument("--json", action="store_true", help="print one JSON object instead")
        here.set_defaults(run=verb.run, actions=here._actions)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    given = parser(words).parse_args(words)
    try:
        outcome = given.run(given)
    except ConvergenceError as error:
        print(f"hogwild: not converged: {in_flags(error, given)}", file=sys.stderr)
        return 3
    except HogwildError as error:
        print(f"hogwild: {in_flags(error, given)}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:  # not about a place that was asked for
            raise
        print(f"hogwild: {error.filename2 or error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"hogwild: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    try:
        print(_json(outcome.data) if given.json else outcome.text)
    except BrokenPipeError:  # whoever read has read enough
        sys.stderr.close()
    return 0 if outcome.converged else 3


def _json(data: object) -> str:
    from hogwild.training.log import plain

    return json.dumps(plain(data))
