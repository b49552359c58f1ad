"""The README's Python blocks run, in order, as one script."""

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_readme_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 2
    space: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), space)
    loss = space["loss"]
    assert isinstance(loss, torch.Tensor)
    assert torch.isfinite(loss)
