"""Times as people write them: ``20ms``, ``0.02``, ``15ms,25ms``."""

from __future__ import annotations

import re
from typing import Any

from hogwild_node.errors import SetupError

UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}


def interval(given: Any, name: str = "delay") -> tuple[float, float]:
    """The least and the most seconds: of one time (both are equal) or of two, with or without a
    unit.

    Raises:
        SetupError: It is something else.
    """
    parts = given.split(",") if isinstance(given, str) else given
    parts = parts if isinstance(parts, list | tuple) else [parts]
    found = [re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*([a-z]*)\s*", str(part)) for part in parts]
    try:
        times = [float(part[1]) * UNITS[part[2]] for part in found if part is not None]
    except (ValueError, KeyError):
        times = []
    good = len(times) == len(parts) and 1 <= len(times) <= 2
    if not good or not times[0] <= times[-1] < float("inf"):
        raise SetupError(
            f"{name} is {given!r}; expected a time such as 20ms, or the least and the most such as "
            f"15ms,25ms"
        )
    return times[0], times[-1]
