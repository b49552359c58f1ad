"""The kernels of a GPU on a CPU, thread by thread (``emulated_gpu.h``): tests run them anywhere."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import torch

from hogwild.kernels import cuda, large
from hogwild.kernels.build import SOURCE, compiler

THREADS = 64
LAUNCHERS = {
    "energy.cu": """
extern "C" void run_solve(int x, double* shared, Batch* b, const double* h0, Options* o, double* h,
                          long long* status, long long* iterations, double* residual) {
    emulate(x, 0, 1, HOG_THREADS, shared, 0,
            [=] { hog_solve(*b, h0, *o, h, status, iterations, residual); });
}
extern "C" void run_adjoint(int x, double* shared, Batch* b, const double* h,
                            const double* gradient, double* nodes, double* edges, double* weight,
                            double* loop_weight, double* sums, long long* status) {
    emulate(x, 0, 1, HOG_THREADS, shared, 0, [=] {
        hog_adjoint(*b, h, gradient, nodes, edges, weight, loop_weight, sums, status);
    });
}
extern "C" void run_parameters(int x, int y, const double* parameters, const double* sums,
                               long long runs, double* out) {
    emulate(x, y, 1, 128, nullptr, 0, [=] { hog_parameters(parameters, sums, runs, out); });
}
""",
    "large.cu": """
extern "C" void run_solve_large(int blocks, int room, double* shared, Large* b, const double* h0,
                                Options* o, double* h, long long* status, long long* iterations,
                                double* residual) {
    emulate(0, 0, blocks, HOG_THREADS, shared, room,
            [=] { hog_solve_large(*b, h0, *o, h, status, iterations, residual); });
}
extern "C" void run_adjoint_large(int blocks, int room, double* shared, Large* b, const double* h,
                                  const double* gradient, double rtol, double* parameters,
                                  double* nodes, double* edges, double* weight, double* loop_weight,
                                  double* sums, long long* status) {
    emulate(0, 0, blocks, HOG_THREADS, shared, room, [=] {
        hog_adjoint_large(*b, h, gradient, rtol, parameters, nodes, edges, weight, loop_weight,
                          sums, status);
    });
}
""",
}


@cache
def compiled(program, design, folder):
    """The kernels of a program for one model."""
    body = (SOURCE.parent / program).read_text()
    prelude = cuda.prelude(design, THREADS, 1)
    source = folder / f"energy_{len(list(folder.iterdir()))}.cpp"
    source.write_text('#include "emulated_gpu.h"\n' + prelude + body + LAUNCHERS[program])
    out = source.with_suffix(".so")
    call = [*compiler().split(), "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-DHOG_EMULATED"]
    places = [f"-I{SOURCE.parent}", f"-I{Path(__file__).parent}"]
    subprocess.run([*call, *places, str(source), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def arguments_of(given):
    """The arguments of a launch, as the launchers take them."""
    return [
        ctypes.byref(a) if isinstance(a, ctypes.Structure)
        else a if isinstance(a, ctypes._SimpleCData)
        else ctypes.c_void_p(a)
        for a in given
    ]  # fmt: skip


class EmulatedKernel(cuda.CudaEnergyKernel):
    """The kernels of a GPU, on a CPU."""

    folder: Path
    threads, resident = THREADS, 1

    def _load(self):
        self.library = compiled("energy.cu", self.design, self.folder)

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


class EmulatedLargeKernel(large.LargeEnergyKernel):
    """The kernels for large graphs, on a CPU, with three blocks of threads."""

    folder: Path
    threads, blocks = THREADS, 3

    @staticmethod
    def pays(native, graph, design):
        return True

    def _load(self):
        self.library = compiled("large.cu", self.design, self.folder)

    @property
    def name(self):
        return "emulated"

    def _launch(self, name, shared, *arguments):
        room = torch.full((self.blocks * shared // 8,), torch.nan, dtype=torch.float64)
        run = getattr(self.library, name.replace("hog_", "run_"))
        at = ctypes.c_void_p(room.data_ptr())
        run(self.blocks, shared // 8, at, *arguments_of(arguments))
