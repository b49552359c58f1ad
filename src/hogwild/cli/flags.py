"""The library speaks of keywords, the command line of flags."""

from __future__ import annotations

import argparse
import re


def in_flags(said: object, given: argparse.Namespace) -> str:
    """What the library says of keywords, said of flags: ``epochs=0`` as ``--epochs 0``, and an
    option from a table with its flag, ``--task-option length=0``."""
    flags = {a.dest: a.option_strings[0] for a in given.actions if a.option_strings}
    words = {"resume=True": "--resume"} | {f"{name}=": f"{flag} " for name, flag in flags.items()}
    for action in given.actions:
        if isinstance(action, argparse._AppendAction):
            keys = (text.partition("=")[0] for text in getattr(given, action.dest) or [])
            for key in filter(None, keys):  # a name that a flag has, too, is left as it is
                words[f"{key}="] = f"{key}=" if key in flags else f"{flags[action.dest]} {key}="
    known = "|".join(sorted(map(re.escape, words), reverse=True))  # the longer of two alike first
    # Nothing inside a path, a quotation, an impairment's options or a longer name.
    return re.sub(rf"(?<![\w./'\":,-])({known})", lambda found: words[found[0]], str(said))
