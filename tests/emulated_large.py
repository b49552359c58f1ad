"""The kernels for large graphs on a CPU, thread by thread (``emulated_gpu.h``)."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from emulated_gpu import THREADS, arguments_of, compiled

from hogwild.engines import gpu, gpu_large
from hogwild.kernels.build import SOURCE

LAUNCHERS = """
extern "C" void run_solve_large(int blocks, int room, double* shared, Large* b, const double* h0,
                                Options* o, double* h, long long* status, long long* iterations,
                                double* residual) {
    emulate_grid(0, 0, blocks, HOG_THREADS, shared, room,
                 [=] { hog_solve_large(*b, h0, *o, h, status, iterations, residual); });
}
extern "C" void run_adjoint_large(int blocks, int room, double* shared, Large* b, const double* h,
                                  const double* gradient, double rtol, double* parameters,
                                  double* nodes, double* edges, double* weight, double* loop_weight,
                                  double* sums, long long* status) {
    emulate_grid(0, 0, blocks, HOG_THREADS, shared, room, [=] {
        hog_adjoint_large(*b, h, gradient, rtol, parameters, nodes, edges, weight, loop_weight,
                          sums, status);
    });
}
"""


class EmulatedLargeKernel(gpu_large.LargeGpuEngine):
    """The kernels for large graphs with three blocks of threads."""

    folder: Path
    fewest = 0
    device = "cpu"
    threads, blocks = THREADS, 3
    turns = 500

    @staticmethod
    def is_fastest_for(native, problem):
        return True

    def _load(self):
        body = (SOURCE.parent / "large.cu").read_text()
        self.library = compiled(
            gpu.prelude(self.design, THREADS, 1) + body + LAUNCHERS, self.folder
        )

    @property
    def name(self):
        return "emulated"

    def _launch(self, name, shared, *arguments):
        room = torch.full((self.blocks * shared // 8,), torch.nan, dtype=torch.float64)
        run = getattr(self.library, name.replace("hog_", "run_"))
        at = ctypes.c_void_p(room.data_ptr())
        run(self.blocks, shared // 8, at, *arguments_of(arguments))
