"""The command ``hogwild``: each verb parses its options and calls a function of the library.

A verb is a function with a table of options, whose docstring is the help text
(:mod:`hogwild.cli.options`); it returns an :class:`~hogwild.cli.common.Outcome`. With --json the
options are part of what is printed.

Exit codes: 0 fine; 1 something unexpected; 2 bad usage or input, said in one message; 3 a solve, a
training run or an asynchronous run did not converge; 130 interrupted.

Help must be fast: torch and other slow modules are imported only when a verb runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import hogwild
from hogwild.cli.options import Verb, parse
from hogwild.errors import ConvergenceError, HogwildError, among

VERBS = {
    "train": "training", "evaluate": "training", "simulate": "runs", "track": "runs",
    "robustness": "runs", "sweep": "runs", "certify": "runs", "export": "agents",
    "swarm": "agents", "keys": "agents", "cluster": "cluster", "serve": "show", "info": "show",
    "demo": "show",
}  # fmt: skip
"""The module of every verb."""
EXAMPLES = """\
examples:
  hogwild demo
  hogwild train robots --model soft --epochs 60 --lr 0.02 --folder runs/robots
  hogwild evaluate runs/robots
  hogwild robustness runs/robots --impair loss=0.3
  hogwild track runs/robots --scenario join-leave
  hogwild certify runs/robots
  hogwild export runs/robots --out model.hog
  hogwild swarm runs/robots --loss 0.3
  hogwild keys keys --ids 0-11
  hogwild cluster runs/roads roads.npz --workers 4
  hogwild serve

exit codes:
  0 fine; 1 something unexpected; 2 bad usage or input; 3 not converged; 130 interrupted

hogwild VERB --help explains a verb."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] not in VERBS:
        _without_verb(words)
    return execute(verb(words[0]), words[1:], f"hogwild {words[0]}", "hogwild")


def execute(what: Verb, words: Sequence[str], command: str, name: str) -> int:
    """Run a verb with these words, print its result, and return the exit code. The help shows
    ``command``, and error messages begin with ``name``."""
    in_flags: Callable[[object], str] = str
    try:
        options = parse(what, words, command)
        in_flags = options.in_flags
        outcome = what.run(options)
    except ConvergenceError as error:
        print(f"{name}: not converged: {in_flags(error)}", file=sys.stderr)
        return 3
    except HogwildError as error:
        print(f"{name}: {in_flags(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:  # not about a place that was asked for
            raise
        print(f"{name}: {error.filename2 or error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"{name}: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    data = {**outcome.data, "options": {**options.as_dict(), **outcome.resolved}}
    try:
        if options.json:
            from hogwild.files import plain

            print(json.dumps(plain(data)))
        else:
            print(outcome.text)
    except BrokenPipeError:  # the reader has closed the pipe
        sys.stderr.close()
    return 0 if outcome.converged else 3


def verb(name: str) -> Verb:
    """The verb of this name."""
    found: Verb = getattr(importlib.import_module(f"hogwild.cli.{VERBS[name]}"), name)
    return found


def _without_verb(words: Sequence[str]) -> NoReturn:
    """Help, the version, or what is wrong with these words."""
    lines = {name: verb(name).help.strip().splitlines()[0] for name in VERBS}
    parser = argparse.ArgumentParser(
        prog="hogwild",
        usage="hogwild VERB [options]",
        description="Graph neural networks that survive asynchrony.\n\nverbs:\n"
        + "\n".join(f"  {name:12}{line}" for name, line in lines.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"hogwild {hogwild.__version__}")
    parser.add_argument("verb", metavar="VERB", help=argparse.SUPPRESS)
    given = parser.parse_known_args(words)[0].verb
    if given in VERBS:
        parser.error(f"{words[0]!r} comes before the verb; expected hogwild {given} {words[0]}")
    parser.error(f"unknown verb {given!r}; {among(VERBS, given)}")
