"""The command ``hogwild``: each verb parses its options and calls a function of the library.

A verb is a module of this package: ``Options``, a dataclass whose fields are the flags and whose
docstring is the help text (:mod:`hogwild.cli.options`), and ``run(options)``, which returns an
:class:`~hogwild.cli.common.Outcome`. With --json the options are part of what is printed.

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
from functools import partial
from typing import Any, NoReturn

import hogwild
from hogwild.cli.flags import in_flags
from hogwild.cli.options import parse
from hogwild.errors import ConvergenceError, HogwildError, among

VERBS = (
    "train", "evaluate", "simulate", "track", "robustness", "sweep", "certify", "export", "swarm",
    "keys", "cluster", "serve", "info", "demo",
)  # fmt: skip
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
    return execute(module(words[0]), words[1:], f"hogwild {words[0]}", "hogwild")


def execute(verb: Any, words: Sequence[str], command: str, name: str) -> int:
    """Run a verb, a module with ``Options`` and ``run``, with these words; print its result, and
    return the exit code. The help shows ``command``, and error messages begin with ``name``."""
    said: Callable[[object], str] = str
    try:
        options = parse(verb.Options, words, command)
        said = partial(in_flags, options=options)
        outcome = verb.run(options)
    except ConvergenceError as error:
        print(f"{name}: not converged: {said(error)}", file=sys.stderr)
        return 3
    except HogwildError as error:
        print(f"{name}: {said(error)}", file=sys.stderr)
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
            from hogwild.training.log import plain

            print(json.dumps(plain(data)))
        else:
            print(outcome.text)
    except BrokenPipeError:  # the reader has closed the pipe
        sys.stderr.close()
    return 0 if outcome.converged else 3


def module(verb: str) -> Any:
    """The module of a verb."""
    return importlib.import_module(f"hogwild.cli.{verb}")


def _without_verb(words: Sequence[str]) -> NoReturn:
    """Help, the version, or what is wrong with these words."""
    lines = {verb: module(verb).Options.__doc__.strip().splitlines()[0] for verb in VERBS}
    parser = argparse.ArgumentParser(
        prog="hogwild",
        usage="hogwild VERB [options]",
        description="Graph neural networks that survive asynchrony.\n\nverbs:\n"
        + "\n".join(f"  {verb:12}{line}" for verb, line in lines.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"hogwild {hogwild.__version__}")
    parser.add_argument("verb", metavar="VERB", help=argparse.SUPPRESS)
    given = parser.parse_known_args(words)[0].verb
    if given in VERBS:
        parser.error(f"{words[0]!r} comes before the verb; expected hogwild {given} {words[0]}")
    parser.error(f"unknown verb {given!r}; {among(VERBS, given)}")
