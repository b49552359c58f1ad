"""Docstrings follow PyG and use reStructuredText roles; the site is Markdown. This translates."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|mod|data):`~?([^`]+)`")
BLOCK = re.compile(r"^([ ]*)\.\. math::[ ]*(.*)\n((?:\1[ ]+.*\n?|[ ]*\n)*)", re.MULTILINE)
CODE = re.compile(r"^[ ]*\.\. code-block:: \w+\n", re.MULTILINE)


def markdown(text: str) -> str:
    """Mathematics to dollars, references to code."""

    def block(match: re.Match[str]) -> str:
        indent, first, rest = match.groups()
        body = " ".join(line.strip() for line in [first, *rest.splitlines()] if line.strip())
        if "&" in body:
            body = rf"\begin{{aligned}} {body} \end{{aligned}}"
        return f"\n{indent}$$\n{indent}{body}\n{indent}$$\n\n"

    text = BLOCK.sub(block, CODE.sub("", text))
    text = re.sub(r":math:`([^`]+)`", lambda m: f"${' '.join(m[1].split())}$", text)
    return ROLE.sub(lambda m: f"`{m[1].rsplit('.', 1)[-1]}`", text)


class Restructured(griffe.Extension):
    """Rewrites every docstring once it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
