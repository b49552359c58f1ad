"""The command ``hogwild``: a verb parses, builds a frozen configuration, and calls the library.

Exit codes: 0 fine; 1 something unexpected; 2 bad usage or input, said in one message; 3 a solve, a
training run or an asynchronous run did not converge; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from hogwild.cli import certify, demo, evaluate, info, reproduce, robustness, simulate, train
from hogwild.cli.common import Parser
from hogwild.cli.flags import in_flags
from hogwild.errors import ConvergenceError, HogwildError
from hogwild.training.log import plain

VERBS = (train, evaluate, simulate, robustness, certify, info, demo, reproduce)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="hogwild",
        description="Graph neural networks that survive asynchrony.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  hogwild train chains --model energy-edge --epochs 500 --folder runs/chains\n"
        "  hogwild evaluate runs/chains\n"
        "  hogwild simulate runs/chains --stagger 5 --delay 2\n"
        "  hogwild info\n\n"
        "hogwild VERB --help explains a verb.",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    for verb in VERBS:
        name = verb.__name__.rpartition(".")[2]
        here = verbs.add_parser(
            name,
            help=verb.HELP,
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
    given = parser().parse_args(arguments)
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
        print(json.dumps(plain(outcome.data)) if given.json else outcome.text)
    except BrokenPipeError:  # whoever read has read enough
        sys.stderr.close()
    return 0 if outcome.converged else 3
