"""The kernels of a GPU on a CPU, thread by thread (``emulated_gpu.h``): tests run them anywhere."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import torch

from hogwild.engines import gpu
from hogwild.kernels.build import SOURCE, compiler

THREADS = 64
LAUNCHERS = """
extern "C" void run_solve(int x, double* shared, Batch* b, const double* h0, Options* o, double* h,
                          long long* status, long long* iterations, double* residual) {
    emulate(x, 0, HOG_THREADS, shared,
            [=] { hog_solve(*b, h0, *o, h, status, iterations, residual); });
}
extern "C" void run_adjoint(int x, double* shared, Batch* b, const double* h,
                            const double* gradient, double* nodes, double* edges, double* weight,
                            double* loop_weight, double* sums, long long* status) {
    emulate(x, 0, HOG_THREADS, shared, [=] {
        hog_adjoint(*b, h, gradient, nodes, edges, weight, loop_weight, sums, status);
    });
}
extern "C" void run_parameters(int x, int y, const double* parameters, const double* sums,
                               long long runs, double* out) {
    emulate(x, y, 128, nullptr, [=] { hog_parameters(parameters, sums, runs, out); });
}
"""


@cache
def compiled(text, folder):
    """A library with the kernels of this source."""
    source = folder / f"kernels_{len(list(folder.iterdir()))}.cpp"
    source.write_text('#include "emulated_gpu.h"\n' + text)
    out = source.with_suffix(".so")
    call = [*compiler().split(), "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-DHOG_EMULATED"]
    places = [f"-I{SOURCE.parent}", f"-I{Path(__file__).parent}"]
    subprocess.run([*call, *places, str(source), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def arguments_of(given):
    """The arguments of a launch, as the launchers take them."""
    numbers = ctypes.c_double, ctypes.c_longlong
    return [
        ctypes.byref(a) if isinstance(a, ctypes.Structure)
        else a if isinstance(a, numbers)
        else ctypes.c_void_p(a)
        for a in given
    ]  # fmt: skip


class EmulatedKernel(gpu.GpuEngine):
    """The kernels of a GPU, on a CPU."""

    folder: Path
    device = "cpu"
    threads, resident = THREADS, 1

    def _load(self):
        body = (SOURCE.parent / "energy.cu").read_text()
        text = gpu.prelude(self.design, THREADS, 1) + body + LAUNCHERS
        self.library = compiled(text, self.folder)

    @property
    def name(self):
        return "emulated"

    def _launch(self, name, grid, threads, shared, *arguments):
        room = torch.zeros(shared // 8 + 1, dtype=torch.float64)
        run = getattr(self.library, name.replace("hog_", "run_"))
        given = arguments_of(arguments)
        for x in range(grid[0]):
            if name == "hog_parameters":
                for y in range(grid[1]):
                    run(x, y, *given)
            else:
                run(x, ctypes.c_void_p(room.data_ptr()), *given)
