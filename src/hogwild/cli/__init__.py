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
from collections.abc import Callable, Sequence

import hogwild
from hogwild.cli.common import Outcome, Parser
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
        runs(here, verb.run)
    return top


def runs(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Outcome]) -> None:
    """Complete a parser that has all flags of its own: what :func:`execute` needs of it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run, actions=parser._actions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return execute(parser(words).parse_args(words), "hogwild")


def execute(given: argparse.Namespace, name: str) -> int:
    """Do what the flags ask for, and print what comes of it; the exit code.

    Args:
        given: Flags, of a parser that :func:`runs` completed.
        name: Of the command; messages begin with it.
    """
    try:
        outcome = given.run(given)
    except ConvergenceError as error:
        print(f"{name}: not converged: {in_flags(error, given)}", file=sys.stderr)
        return 3
    except HogwildError as error:
        print(f"{name}: {in_flags(error, given)}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:  # not about a place that was asked for
            raise
        print(f"{name}: {error.filename2 or error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"{name}: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    try:
        print(_json(outcome.data) if given.json else outcome.text)
    except BrokenPipeError:  # whoever read has read enough
        sys.stderr.close()
    return 0 if outcome.converged else 3


def _json(data: object) -> str:
    from hogwild.training.log import plain

    return json.dumps(plain(data))
