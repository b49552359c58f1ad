"""The library speaks of keywords, the command line of flags."""

from __future__ import annotations

import argparse
import re


def in_flags(said: object, given: argparse.Namespace) -> str:
    """What the library says of keywords, said of flags that can be pasted: ``epochs=0`` as
    ``--epochs 0``, ``rule='gradient' with step='certified'`` as ``--rule gradient --step
    certified``, and an option from a table with its flag, ``--task-option length=0``."""
    flags = {a.dest: a.option_strings[0] for a in given.actions if a.option_strings}
    words = {"resume=True": "--resume"} | {f"{name}=": f"{flag} " for name, flag in flags.items()}
    plain = set(flags)
    for action in given.actions:
        if isinstance(action, argparse._AppendAction):
            keys = (text.partition("=")[0] for text in getattr(given, action.dest) or [])
            plain.discard(action.dest)
            for key in filter(None, keys):  # a name that a flag has, too, is left as it is
                words[f"{key}="] = f"{key}=" if key in flags else f"{flags[action.dest]} {key}="
    known = "|".join(sorted(map(re.escape, words), reverse=True))  # the longer of two alike first
    # Nothing inside a path, a quotation, an impairment's options or a longer name.
    pattern = rf"(?<![\w./'\":,-])(?P<key>{known})(?:'(?P<word>[A-Za-z][\w-]*)')?"

    def flag(found: re.Match[str]) -> str:
        word, said_before = words[found["key"]], found.string[: found.start()]
        if word.endswith(found["key"]) and said_before.endswith(word.removesuffix(found["key"])):
            word = found["key"]  # it has its flag already
        value = found["word"] or ""
        # Advice is to be pasted; what was given, and what is no flag's, stays in its quotes.
        bare = found["key"][:-1] in plain and value != getattr(given, found["key"][:-1], None)
        return word + (value if bare or not value else f"'{value}'")

    # Of two keywords joined by "with" the flags stand side by side.
    text = re.sub(r"(?<=\w') with (?=\w+=')", " ", str(said))
    return re.sub(pattern, flag, text)
