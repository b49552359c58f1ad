"""C text: numbers, tables and the parts that are the same for all models."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import numpy as np

from hogwild_node.errors import ModelFileError
from hogwild_node.ops import Array


def part(name: str) -> str:
    """A file of the folder ``parts``."""
    return files("hogwild_node.c99").joinpath("parts", name).read_text("utf-8")


def literal(x: float, dtype: str) -> str:
    """A number as a C constant with all its digits."""
    with np.errstate(over="ignore"):
        number = np.float32(x) if dtype == "float32" else np.float64(x)
    if not np.isfinite(number):
        raise ModelFileError(
            f"the model has the number {x!r}, which is not finite in {dtype}; expected finite "
            f"parameters: train the model again, or generate float64"
        )
    return f"{number!s}f" if dtype == "float32" else str(number)


def table(name: str, values: Array, dtype: str) -> str:
    """A constant array, row by row; a stack of matrices [H, a, b] has the size [H][a b]."""
    flat = np.asarray(values, np.float64)
    sets = flat.reshape(flat.shape[0], -1) if flat.ndim == 3 else flat.reshape(1, -1)
    size = f"[{sets.shape[0]}][{sets.shape[1]}]" if flat.ndim == 3 else f"[{flat.size}]"
    rows = [wrapped([literal(x, dtype) for x in row]) for row in sets.tolist()]
    body = rows[0] if flat.ndim < 3 else ",\n".join(f"    {{\n{row}\n    }}" for row in rows)
    return f"HOG_TABLE hog_real {name}{size} = {{\n{body}\n}};\n"


def wrapped(words: Sequence[str], indent: str = "    ", width: int = 100) -> str:
    """Words with commas between them, in lines."""
    lines, line = [], indent
    for i, word in enumerate(words):
        word += "," if i + 1 < len(words) else ""
        if len(line) + len(word) + 1 > width and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += word + " "
    return "\n".join([*lines, line.rstrip()])


def defined(**names: object) -> str:
    """Macros."""
    width = max(map(len, names))
    return "".join(f"#define {name:{width}} {value}\n" for name, value in names.items())
