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

import shutil
import subprocess
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Record, parser

from hogwild import EnergyGNN
from hogwild.models.export import packed
from hogwild_node import model as node_models
from hogwild_node.c99 import generate
from hogwild_node.model import Neighbour, star_of
from hogwild_node.model_file import ModelFile

FEATURES, SLOTS = 3, 8
SIZES = ("code", "parameters", "state", "stack")
VARIANTS = {
    "edge-wise, k = 2": {},
    "node-wise, k = 2": {"message": "node"},
    "3 attention heads, k = 2": {"heads": 3},
    "edge-wise, k = 8": {"hidden_channels": 8},
}
FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-DHOG_NODE_ONLY")
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
    flags = [cc, optimise, *FLAGS]
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
        local = model.build(random.normal(size=FEATURES), near, "gradient")
        self.rule = model.rule("gradient", local, self.star)
        self.h = model.start(local)
        self.inbox = random.normal(size=(1, model.channels, degree))
        self.mail = np.zeros((1, self.rule.letter_width, degree))
        self.rule.begin(self.h, self.inbox)

    def time(self, updates: int) -> float:
        begun = time.process_time()
        for _ in range(updates):
            self.h, _ = self.rule.update(self.h, self.inbox, self.mail, self.star)
        return 1e6 * (time.process_time() - begun) / updates


def row(cell: dict[str, Any]) -> list[str]:
    """The line of a cell in the table."""
    sizes = [f"{cell[key] / 1000:.1f}" if key in cell else "" for key in SIZES]
    digits = 1 if cell["microseconds"] < 100 else 0
    return [cell["model"], cell["program"], *sizes, f"{cell['microseconds']:.{digits}f}"]


def main() -> None:
    flags = parser(__doc__, "c_agent")
    flags.add_argument("--degree", type=int, default=6, help="neighbours; default: %(default)s")
    flags.add_argument("--updates", type=int, default=100_000, help="in C; default: %(default)s")
    given = flags.parse_args()
    if not 0 <= given.degree <= SLOTS:
        flags.error(f"--degree {given.degree}; expected 0 to {SLOTS}")
    torch.set_num_threads(1)
    compiler = subprocess.run(["cc", "--version"], check=True, capture_output=True, text=True)
    record = Record(
        given.output, "c_agent", f"{given.degree} neighbours",
        ("model", "program", *(f"{size}, kB" for size in SIZES), "µs an update"),
        cc=compiler.stdout.splitlines()[0],
    )  # fmt: skip
    for name, options in VARIANTS.items():
        torch.manual_seed(0)
        file = packed(EnergyGNN(FEATURES, out_channels=1, **options).double())
        with tempfile.TemporaryDirectory() as place:
            built = {}
            for dtype, optimise in product(("float32", "float64"), ("-Os", "-O2")):
                folder = Path(place) / f"{dtype}{optimise}"
                folder.mkdir()
                text = generate(file, dtype=dtype, max_degree=SLOTS)
                built[f"C {dtype} {optimise}"] = folder, build(text, folder, optimise)
            numpy = InNumPy(file, given.degree)
            times: dict[str, list[float]] = {key: [] for key in (*built, "NumPy float64")}
            states = {}
            for _ in range(5):
                for key, (folder, _sizes) in built.items():
                    states[key], spent = in_c(folder, given.degree, given.updates)
                    times[key].append(spent)
                times["NumPy float64"].append(numpy.time(max(given.updates // 200, 1)))
        for key, spents in times.items():
            more = {**built[key][1], "state": states[key]} if key in built else {}
            cell = {"model": name, "program": key, **more, "microseconds": min(spents)}
            record.add(row(cell), cell)


if __name__ == "__main__":
    main()
