"""Make the pictures of the page, in a real browser, from the root of the repository:

    PYTHONPATH=src:node/src python docs/pictures.py

Needs Chromium and the extra ``test``. Writes into docs/figures:

* ``swarm.webp``: the picture of the README that moves; ``swarm.png``: its last frame, for readers
  who want no motion.
* ``serve.png``: the whole page after two nodes were killed.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

FIGURES = Path(__file__).parent / "figures"
STATE = "task=field&nodes=60&seed=3&stagger=5&delay=2&loss=0.3&speed=10"
KILLED = (14, 22, 31, 40)
FRAME = 125
"""Milliseconds of a frame."""
LOOK = """
  body { padding: 0; background: var(--card); } main { display: block; }
  header, #presets, #panel, #keys, .below, .choose, .about-node, .numbers { display: none; }
  .stage { width: 760px; padding: 12px 12px 8px; background: var(--card); }
  .side { border: 0; padding: 0; } .side h2 { display: block; margin: 0 0 4px; font-size: 1.15rem; }
  .verdict { min-height: 4.4em; margin: 0 0 4px; }
  .caption { margin: 0 0 10px; font-size: 1.05rem; color: var(--soft); }
"""
CAPTIONS = (
    (0, "Sixty sensors find out a field. 30 % of all packets are lost, and nobody keeps time."),
    (34, "Four sensors are switched off."),
    (46, "The energy GNN finds the new answer. The GCN is done, and wrong."),
)


@contextmanager
def page_of(browser: Any, where: str, state: str, **options: Any) -> Iterator[Any]:
    """A page that shows a state."""
    context = browser.new_context(bypass_csp=True, **options)
    page = context.new_page()
    page.goto(f"{where}#{state}")
    page.wait_for_selector("html[data-first]", state="attached")
    yield page
    context.close()


def kill(page: Any, nodes: tuple[int, ...]) -> None:
    """Kill nodes, and choose none."""
    page.evaluate(
        """async (nodes) => {
          const { act } = await import('/main.js');
          nodes.forEach((node) => act.toggle(node));
          act.choose(-1, false);
        }""",
        list(nodes),
    )


def moving(browser: Any, where: str) -> None:
    """The picture that moves."""
    frames: list[Image.Image] = []
    with page_of(browser, where, STATE, viewport={"width": 760, "height": 600}) as page:
        page.add_style_tag(content=LOOK)
        page.evaluate(
            "() => { const p = document.createElement('p'); p.className = 'caption';"
            " document.querySelector('.stage').prepend(p); }"
        )
        page.evaluate("() => document.querySelector('#again').click()")
        page.wait_for_timeout(300)
        told = dict(CAPTIONS)
        for k in range(80):
            if k in told:
                page.evaluate(
                    "(t) => { document.querySelector('.caption').textContent = t; }", told[k]
                )
            if k == 35:
                kill(page, KILLED)
            shot = page.locator(".stage").screenshot()
            frames.append(Image.open(io.BytesIO(shot)).convert("RGB"))
            page.wait_for_timeout(30)
    times = [FRAME] * (len(frames) - 1) + [3000]
    frames[0].save(
        FIGURES / "swarm.webp", save_all=True, append_images=frames[1:], duration=times, loop=0,
        quality=28, method=6,
    )  # fmt: skip
    frames[-1].save(FIGURES / "swarm.png", optimize=True)


def whole(browser: Any, where: str) -> None:
    """The whole page."""
    state = "task=field&nodes=60&speed=20&seed=3&loss=0.2"
    with page_of(browser, where, state, viewport={"width": 1400, "height": 1000}) as page:
        page.wait_for_selector('[data-side="0"] .verdict[data-state="right"]')
        kill(page, (22, 31))
        page.wait_for_selector('[data-side="0"] .verdict[data-state="wait"]')
        page.wait_for_timeout(2500)
        page.screenshot(path=FIGURES / "serve.png", full_page=True)


def main() -> None:
    """Make all of them."""
    words = [sys.executable, "-m", "hogwild", "serve", "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    where = next(
        found.group() for line in server.stderr if (found := re.search(r"http://\S+/", line))
    )
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            moving(browser, where)
            whole(browser, where)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
