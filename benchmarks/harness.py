"""What all benchmarks share: their flags, the machine's description, processes of their own, tables
and records.

A benchmark names its flags (:func:`parser`), and hands every finished row to a :class:`Record`,
which prints it and writes ``NAME.json`` (numbers, with the machine) and ``NAME.md`` (the table)
after every row, where ``--output`` names a folder. The committed records are in
``benchmarks/results``, a folder for each machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from hogwild.files import write_atomically
from hogwild.kernels.native import SWITCH

RESULTS = Path(__file__).parent / "results"
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
THREADS = (
    "CPU threads of every contender; default: one a core. On a machine that others use too, take "
    "fewer than its cores: OpenMP's barriers are very slow when a core is taken away"
)


def parser(documentation: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with the flags of every benchmark."""
    made = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--threads", type=int, help=THREADS)
    made.add_argument("--output", type=Path, help=f"folder for {name}.json and {name}.md")
    return made


def limit_threads(count: int | None) -> None:
    """Let torch use ``count`` threads, and JAX (which reads the process's CPUs) as many."""
    if count:
        torch.set_num_threads(count)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])


def environment(device: str = "cpu") -> dict[str, str | int]:
    """Versions, device and threads of a measurement."""
    found: dict[str, str | int] = {"python": platform.python_version()}
    for package in ("torch", "torch_geometric", "numpy", "scipy", "jax"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    else:
        info = Path("/proc/cpuinfo")
        lines = info.read_text().splitlines() if info.exists() else []
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        found["device"] = names[0] if names else platform.processor() or platform.machine()
    found["threads"] = torch.get_num_threads()
    return found


def described(where: dict[str, Any]) -> str:
    """An environment in one line."""
    return ", ".join(f"{key} {value}" for key, value in where.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


class Record:
    """The rows of a table, and the numbers behind them."""

    def __init__(
        self,
        output: Path | None,
        name: str,
        title: str,
        head: Sequence[str],
        device: str = "cpu",
        **more: Any,
    ) -> None:
        self.output, self.name, self.title, self.head = output, name, title, head
        self.place: dict[str, Any] = environment(device) | more
        self.rows: list[Sequence[str]] = []
        self.cells: list[Any] = []
        self.about: dict[str, Any] = {}  # written beside the cells
        self.note = ""  # below the table

    def add(self, row: Sequence[str], *cells: Any) -> None:
        """Add a row, and what it was made of; print it and write everything."""
        self.rows.append(row)
        self.cells += cells
        print("  ".join(row), flush=True)
        self.write()

    def write(self) -> None:
        """Write the table and the cells where a folder is given."""
        if self.output is not None:
            record = {"environment": self.place, **self.about, "cells": self.cells}
            text = json.dumps(record, indent=1) + "\n"
            write_atomically(self.output / f"{self.name}.json", text.encode())
            write_atomically(self.output / f"{self.name}.md", str(self).encode())

    def __str__(self) -> str:
        text = f"{self.title} ({described(self.place)}).\n\n" + table(self.head, self.rows)
        return text + (f"\n{self.note}\n" if self.note else "")


def apart(script: str, *words: object, kernels: str | None = None) -> Any:
    """What a benchmark measures in a process of its own: it runs with these flags and prints JSON
    in its last line. ``kernels="off"`` leaves compiled code out."""
    chosen = {} if kernels is None else {SWITCH: kernels}
    call = [sys.executable, script, *map(str, words)]
    done = subprocess.run(call, env=os.environ | chosen, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(call)} failed")
    return json.loads(done.stdout.splitlines()[-1])


def or_dash(value: float | None, form: str = ".1f") -> str:
    """A number, or a dash where there is none."""
    return "—" if value is None else format(value, form)
