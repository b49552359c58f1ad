"""The library speaks of keywords, the command line of flags."""

from __future__ import annotations

import re

from hogwild.cli.options import Verb, flags, words


def in_flags(said: object, options: Verb) -> str:
    """What the library says of keywords, said of flags: ``epochs=0`` as ``--epochs 0``,
    ``resume=True`` as ``--resume``, and an option from a table with its flag,
    ``--task-option length=0``."""
    known, given = flags(type(options)), options.as_dict()
    said_as = words(type(options)) | {"resume=True": "--resume"}  # training's, for every verb
    for name, flag in known.items():
        texts = given.get(name)
        if isinstance(texts, dict | tuple):  # KEY=VALUE, any number of times
            keys = (text.partition("=")[0] for text in texts if isinstance(text, str))
            for key in filter(None, keys):  # a name that a flag has, too, is left as it is
                said_as[f"{key}="] = f"{key}=" if key in known else f"{flag} {key}="
    either = "|".join(
        sorted(map(re.escape, said_as), reverse=True)
    )  # the longer of two alike first
    # Nothing inside a path, a quotation, an impairment's options or a longer name.
    return re.sub(rf"(?<![\w./'\":,-])({either})", lambda found: said_as[found[0]], str(said))
