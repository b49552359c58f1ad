"""The page of ``hogwild serve`` in a real browser: how soon it answers, and how smoothly it moves.

    PYTHONPATH=. python benchmarks/page.py [--sizes 200,2000] [--seconds 10]

Starts the server and a Chromium without a screen or a GPU (Playwright and Chromium must be
installed), opens the page with both sides, and prints for every number of nodes: milliseconds from
the start of the page to its first answer, frames that the browser drew a second, snapshots and
ticks that the server sent a second, and what a snapshot weighs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from typing import Any

from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def start() -> tuple[subprocess.Popen[str], str, float]:
    """The server, its address, and the seconds until it could be opened."""
    begun = time.perf_counter()
    words = [sys.executable, "-m", "hogwild", "serve", "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        found = re.search(r"http://localhost:\d+/", line)
        if found:
            return server, found.group(), time.perf_counter() - begun
    raise SystemExit("the server did not start")


def measure(browser: Any, where: str, nodes: int, seconds: float) -> dict[str, float]:
    """One number of nodes."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    sizes: list[int] = []
    ticks: list[int] = []

    def received(payload: Any) -> None:
        if isinstance(payload, bytes):
            sizes.append(len(payload))
            ticks.append(struct.unpack_from("<6I", payload)[2])

    page.on("websocket", lambda ws: ws.on("framereceived", received))
    page.goto(f"{where}#task=field&nodes={nodes}&speed=30")
    page.wait_for_selector("html[data-first]", state="attached")
    first = float(page.evaluate("document.documentElement.dataset.first"))
    page.wait_for_selector(f'#nodes:has(option:checked:text-is("{nodes}"))', state="attached")
    page.wait_for_timeout(3000)
    del sizes[:], ticks[:]
    begun, shown = time.perf_counter(), []
    while time.perf_counter() - begun < seconds:
        page.wait_for_timeout(1000)
        shown.append(float(page.evaluate("document.documentElement.dataset.fps")))
    took = time.perf_counter() - begun
    page.close()
    return {
        "nodes": nodes,
        "first answer, ms": first,
        "drawn a second": sum(shown) / len(shown),
        "least in a second": min(shown),
        "snapshots a second": len(sizes) / took,
        "ticks a second": (ticks[-1] - ticks[0]) / took if ticks else 0.0,
        "kB a snapshot": sum(sizes) / max(len(sizes), 1) / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="60,200,2000")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    server, where, seconds = start()
    try:
        print(f"{os.cpu_count()} cores; the server could be opened after {seconds:.1f} s")
        with sync_playwright() as playwright:
            path = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            for nodes in map(int, given.sizes.split(",")):
                row = measure(browser, where, nodes, given.seconds)
                print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
