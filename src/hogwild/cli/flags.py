"""Messages of the library, with flags instead of keywords."""

from __future__ import annotations

import re

from hogwild.cli.options import Verb, flags, words


def in_flags(said: object, options: Verb) -> str:
    """A message of the library, with flags that can be pasted instead of keywords: ``--epochs 0``
    for ``epochs=0``, ``--resume`` for ``resume=True``, ``--rule gradient --step certified`` for
    ``rule='gradient' with step='certified'``, and ``--task-option length=0`` for an option of a
    table."""
    known, given = flags(type(options)), options.as_dict()
    said_as = words(type(options)) | {"resume=True": "--resume"}  # training's, for every verb
    # Flags of one value; those of tables give one option each: --task-option of task_options.
    plain = {name for name, flag in known.items() if flag == f"--{name.replace('_', '-')}"}
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
    pattern = rf"(?<![\w./'\":,-])(?P<key>{either})(?:'(?P<word>[A-Za-z][\w-]*)')?"

    def flag_of(found: re.Match[str]) -> str:
        word, said_before = said_as[found["key"]], found.string[: found.start()]
        if word.endswith(found["key"]) and said_before.endswith(word.removesuffix(found["key"])):
            word = found["key"]  # it has its flag already
        value = found["word"] or ""
        # Advice is to be pasted; what was given, and what is no flag's, stays in its quotes.
        bare = found["key"][:-1] in plain and value != given.get(found["key"][:-1])
        return word + (value if bare or not value else f"'{value}'")

    # Of two keywords joined by "with" the flags stand side by side.
    text = re.sub(r"(?<=\w') with (?=\w+=')", " ", str(said))
    return re.sub(pattern, flag_of, text)
