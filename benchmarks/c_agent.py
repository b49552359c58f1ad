r"""A node in C: size of the code, size of the state and time of an update, beside the NumPy rule.

An energy GNN of the paper's size (k = 2 by default, networks of widths 4 and 4, parameters as they
are drawn) is written as C99 in float32 and in float64 and compiled with ``cc``. *Code* and
*parameters* are the sections .text and .rodata of the object file, without the C library. *State*
is the size of ``hog_node`` with eight slots. *Stack* adds the frames of the functions that call
each other in an update, as GCC reports them. An update is one step of the rule ``"gradient"`` with
the given number of neighbours; the node hears a packet before each update. Times are CPU times, the
least of five measurements. The C nodes and the NumPy rule take turns.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from training_step import described, environment, table, write

from hogwild import EnergyGNN
from hogwild.models.export import described as exported
from hogwild_node import model as node_models
from hogwild_node.c99 import generate
from hogwild_node.model import Neighbour, star_of
from hogwild_node.model_file import ModelFile, name_of

FEATURES, SLOTS = 3, 8
SIZES = ("code", "parameters", "state", "stack")
VARIANTS = {
    "edge-wise, k = 2": {},
    "node-wise, k = 2": {"message": "node"},
    "3 attention heads, k = 2": {"heads": 3},
    "edge-wise, k = 8": {"hidden_channels": 8},
}
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static void draw(hog_real *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = (hog_real)rand() / (hog_real)RAND_MAX - (hog_real)0.5;
}
int main(int argc, char **argv)
{
    static hog_node node;
    static hog_real heard[64][HOG_NUMBERS];
    int degree = atoi(argv[1]);
    long updates = atol(argv[2]);
    hog_real x[HOG_FEATURES];
    clock_t begun;
    (void)argc;
    draw(x, HOG_FEATURES);
    hog_init(&node, x);
    for (int slot = 0; slot < degree; slot++) {
        draw(x, HOG_FEATURES);
        hog_join(&node, slot, 1, x, 3, 0);
    }
    for (int i = 0; i < 64; i++) {
        draw(heard[i], HOG_NUMBERS);
        for (int c = 2 * HOG_CHANNELS; c < HOG_NUMBERS; c++) heard[i][c] = 0;
    }
    hog_update(&node);
    begun = clock();
    for (long i = 0; i < updates; i++) {
        if (degree) hog_hear(&node, (int)(i % degree), heard[i % 64]);
        hog_update(&node);
    }
    printf("%zu %.6f %g\\n", sizeof node,
           1e6 * (double)(clock() - begun) / CLOCKS_PER_SEC / (double)updates, (double)node.h[0]);
    return 0;
}
"""


def build(text: str, folder: Path, optimise: str) -> dict[str, int]:
    """Compile a node with its clock; bytes of the code, of the parameters and of the stack."""
    cc = shutil.which("cc")
    if cc is None:
        raise SystemExit("there is no C compiler; expected cc on the path")
    (folder / "node.c").write_text(text)
    (folder / "main.c").write_text(f'#define HOG_DECLARATIONS\n#include "node.c"\n{PROGRAM}')
    flags = [
        cc,
        optimise,
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-DHOG_NODE_ONLY",
    ]
    subprocess.run([*flags, "-fstack-usage", "-c", "node.c"], cwd=folder, check=True)
    subprocess.run([*flags, "main.c", "node.o", "-lm", "-o", "node"], cwd=folder, check=True)
    listed = subprocess.run(
        ["size", "-A", "node.o"], cwd=folder, check=True, capture_output=True, text=True
    )
    sizes = {"code": 0, "parameters": 0, "stack": 0}
    for line in listed.stdout.splitlines():
        for section, name in ((".text", "code"), (".rodata", "parameters")):
            if line.startswith(section):
                sizes[name] += int(line.split()[1])
    frames = {}
    for line in (folder / "node.su").read_text().splitlines():
        place, size, *_ = line.split("\t")
        frames[place.split(":")[-1].split(".")[0]] = int(size)
    path = [frames.pop(name, 0) for name in ("hog_update", "hog_step", "hog_refresh")]
    frames.pop("hog_pose", None)
    networks = [size for name, size in frames.items() if name.startswith("hog_net")]
    others = [size for name, size in frames.items() if not name.startswith("hog_net")]
    sizes["stack"] = sum(path) + max(networks, default=0) + max(others, default=0)
    return sizes


def in_c(folder: Path, degree: int, updates: int) -> tuple[int, float]:
    """Bytes of the state, and microseconds of an update."""
    done = subprocess.run(
        ["./node", str(degree), str(updates)], cwd=folder, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    size, microseconds, _ = done.stdout.split()
    return int(size), float(microseconds)


class InNumPy:
    """The same node in NumPy."""

    def __init__(self, file: ModelFile, degree: int) -> None:
        random = np.random.default_rng(0)
        model = node_models.of(file)
        near = [Neighbour(random.normal(size=FEATURES), 3.0) for _ in range(degree)]
        self.star = star_of(degree)
        local = model.pose(random.normal(size=FEATURES), near, "gradient")
        self.rule = model.rule("gradient", local, self.star)
        self.h = model.start(local)
        self.inbox = random.normal(size=(1, model.channels, degree))
        self.mail = np.zeros((1, self.rule.letter, degree))
        self.rule.begin(self.h, self.inbox)

    def time(self, updates: int) -> float:
        begun = time.process_time()
        for _ in range(updates):
            self.h, _ = self.rule.update(self.h, self.inbox, self.mail, self.star)
        return 1e6 * (time.process_time() - begun) / updates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--degree", type=int, default=6, help="neighbours; default: %(default)s")
    parser.add_argument("--updates", type=int, default=100_000, help="in C; default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for c_agent.json and c_agent.md")
    arguments = parser.parse_args()
    if not 0 <= arguments.degree <= SLOTS:
        parser.error(f"--degree {arguments.degree}; expected 0 to {SLOTS}")
    torch.set_num_threads(1)
    cells, rows = [], []
    for name, options in VARIANTS.items():
        torch.manual_seed(0)
        config, tensors = exported(EnergyGNN(FEATURES, out_channels=1, **options).double())
        file = ModelFile(config, tensors, name_of(config, tensors))
        with tempfile.TemporaryDirectory() as place:
            built = {}
            for dtype in ("float32", "float64"):
                for optimise in ("-Os", "-O2"):
                    folder = Path(place) / f"{dtype}{optimise}"
                    folder.mkdir()
                    text = generate(file, dtype=dtype, max_degree=SLOTS)
                    built[dtype, optimise] = folder, build(text, folder, optimise)
            numpy = InNumPy(file, arguments.degree)
            times: dict[object, list[float]] = {key: [] for key in (*built, "numpy")}
            states = {}
            for _ in range(5):
                for key, (folder, *_) in built.items():
                    states[key], spent = in_c(folder, arguments.degree, arguments.updates)
                    times[key].append(spent)
                times["numpy"].append(numpy.time(max(arguments.updates // 200, 1)))
        for (dtype, optimise), (_, sizes) in built.items():
            key = dtype, optimise
            cells.append({
                "model": name, "program": f"C {dtype} {optimise}", **sizes,
                "state": states[key], "microseconds": min(times[key]),
            })  # fmt: skip
        cells.append(
            {"model": name, "program": "NumPy float64", "microseconds": min(times["numpy"])}
        )
    for cell in cells:
        shown = [f"{cell[key] / 1000:.1f}" if key in cell else "" for key in SIZES]
        spent = cell["microseconds"]
        shown.append(f"{spent:.1f}" if spent < 100 else f"{spent:.0f}")
        rows.append([cell["model"], cell["program"], *shown])
    where = environment("cpu")
    compiler = subprocess.run(["cc", "--version"], check=True, capture_output=True, text=True)
    where["cc"] = compiler.stdout.splitlines()[0]
    head = ("model", "program", *(f"{size}, kB" for size in SIZES), "µs an update")
    markdown = f"{arguments.degree} neighbours ({described(where)}).\n\n" + table(head, rows)
    print(markdown)
    write(arguments.output, "c_agent", {"environment": where, "cells": cells}, markdown)


if __name__ == "__main__":
    main()
