"""The compiled library under sanitizers: addresses, undefined behaviour, data races (slow)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hogwild.kernels import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="sanitizers are loaded as on Linux"),
]
TESTS = Path(__file__).parents[1]

WORK = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from hogwild.kernels import native
native.COMPILED = Path(sys.argv[1])
native.found.cache_clear()
assert native.library() is not None, native.found()
torch.get_num_threads = lambda: 4  # threads of the library, and not of torch
from helpers import DOUBLE, chain, star
from kernel_cases import layer, odd_graph, solved
from hogwild import Inputs
from hogwild.solvers import Newton

OPTIONS = [
    {}, {"message": "node", "heads": 2, "edge_dim": 2}, {"aggr": "mean", "widths": ()},
    {"normalize": True, "hidden_channels": 3}, {"heads": 3, "concat": False, "replicas": 2},
    {"hidden_channels": 8, "message_channels": 5, "widths": (7,), "edge_dim": 1},
    {"hidden_channels": 1, "message_channels": 1, "widths": (1, 30, 1)},
    {"act": "squareplus", "gate": "relu", "widths": (8, 2, 3)},
    {"hidden_channels": 1, "message_channels": 20, "widths": ()},
    {"hidden_channels": 11, "heads": 4, "message_channels": 2, "widths": (2,)},
    {"hidden_channels": 32, "heads": 2},
]
for number, options in enumerate(OPTIONS):
    conv = layer(number, 0.1, **options)
    for sizes, density in (([1], 0), ([1, 2, 8, 9, 17] * 4, 1.4), ([60], 2.0), ([40, 3], 0.3)):
        inputs = odd_graph(number, sizes, density, False, conv.edge_dim, weighted=True)
        assert conv.solver_path(inputs) == ["compiled (native)"]
        found, gradients = solved(conv, inputs)
        assert all(bool(torch.isfinite(g).all()) for g in gradients)
        solved(conv, inputs, found.value.detach() + 0.1)
    heard = torch.randn(inputs.edge_index.size(1), 3, **DOUBLE)
    solved(conv, replace(inputs, heard=heard))
conv = layer(3, 0.3, solver=Newton())
inputs = odd_graph(7, [12, 5], 1.5, False)
conv.embed(replace(inputs, x=30.0 * inputs.x))  # secant curvature
conv = layer(validate=False, on_failure="ignore")
inputs.x[3] = float("nan")
conv.embed(inputs).value.sum().backward()
conv.embed(replace(inputs, batch=2 * inputs.batch, batch_size=4))  # graphs without nodes
for edges in ([[0], [99]], [[-1], [0]]):
    try:
        conv.embed(Inputs(inputs.x, torch.tensor(edges)))
        raise SystemExit("no error")
    except ValueError as error:
        assert "not there" in str(error)
solved(layer(), Inputs(torch.randn(500, 3, **DOUBLE), chain(500)))
solved(layer(), Inputs(torch.randn(1600, 3, **DOUBLE), star(1600)))  # conjugate gradients
edges = torch.randint(3000, (2, 21000))  # and several threads on one graph
solved(layer(), Inputs(torch.randn(3000, 3, **DOUBLE), edges))
print("done")
"""


def under(tmp_path, flags, preload, **variables):
    """Compile with these flags, and run :data:`WORK` with a sanitizer's library loaded first."""
    try:
        command = build.compiler().split()
    except build.NoCompiler as reason:
        pytest.skip(f"no compiler: {reason}")
    there = subprocess.run(
        [*command, f"-print-file-name={preload}"], capture_output=True, text=True
    ).stdout.strip()
    if not os.path.isabs(there):
        pytest.skip(f"this compiler has no {preload}")
    out = tmp_path / "hogwild_native.so"
    mark = f'-DHOG_DIGEST="{build.mark("native")}"'
    usual = [flag for flag in build.FLAGS if flag != "-O3"]
    subprocess.run(
        [*command, *usual, "-O1", "-g", "-march=native", *flags, mark, str(build.SOURCE), "-o",
         str(out)], check=True,
    )  # fmt: skip
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path, "LD_PRELOAD": there, "OMP_NUM_THREADS": "1"}
        | variables,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert done.stdout == "done\n"
    return done.stderr


def test_addresses_and_undefined_behaviour(tmp_path):
    said = under(
        tmp_path,
        ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
         "-DHOG_POISON"],
        "libasan.so",
        # Python and torch keep memory until the end; their allocators are not ours.
        ASAN_OPTIONS="detect_leaks=0",
    )  # fmt: skip
    assert "runtime error" not in said
    assert "AddressSanitizer" not in said


def test_data_races(tmp_path):
    said = under(
        tmp_path, ["-fsanitize=thread"], "libtsan.so",
        # What happens between threads of Python and torch, which are not compiled for this.
        TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66 report_signal_unsafe=0",
    )  # fmt: skip
    assert "WARNING: ThreadSanitizer" not in said
