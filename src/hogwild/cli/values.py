"""Values from flags."""

from __future__ import annotations

import tomllib
from typing import Any

from hogwild.errors import ConfigError


def value(text: str) -> Any:
    """A flag's value as TOML reads it (3, 0.1, true, "a", [1, 2]), a list also as (1, 2) or 1,2;
    else the text itself."""
    if text.lower() == "none":
        return None
    bare = text.strip()
    bare = bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare
    for written in (text, f"[{bare}]" if "," in bare else text):
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text


def pairs(given: list[str] | None, flag: str) -> dict[str, Any]:
    """``KEY=VALUE`` after ``flag``, any number of times."""
    out: dict[str, Any] = {}
    for text in given or []:
        key, equals, rest = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {text!r}; expected KEY=VALUE")
        out[key] = value(rest)
    return out
