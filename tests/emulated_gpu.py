"""The kernels of a GPU on a CPU, thread by thread (``emulated_gpu.h``): tests run them anywhere."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import torch

from hogwild.kernels import cuda
from hogwild.kernels.build import SOURCE, compiler
from hogwild.kernels.ticks_cuda import CudaTicks

THREADS = 64
GUARDS = 64
"""Numbers behind the shared memory of a block, which nobody may write."""
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


RUN_TICK = """
extern "C" void set_constants(const Ticks* ticks, const Real* weights) {
    hog_ticks = *ticks;
    memcpy(hog_weights, weights, sizeof hog_weights);
}
extern "C" void run_tick(int x, int y, double* shared, long long time, int what) {
    emulate(x, y, HOG_ALL, shared, [=] { hog_tick(time, what); });
}
"""


@cache
def compiled(text, folder, level="-O1"):
    """A library with the kernels of this source."""
    source = folder / f"kernels_{len(list(folder.iterdir()))}.cpp"
    source.write_text('#include "emulated_gpu.h"\n' + text)
    out = source.with_suffix(".so")
    call = [*compiler().split(), "-std=c++17", level, "-w", "-fPIC", "-shared", "-DHOG_EMULATED"]
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


class EmulatedKernel(cuda.CudaEnergyKernel):
    """The kernels of a GPU, on a CPU."""

    folder: Path
    threads, resident = THREADS, 1

    def _load(self):
        body = (SOURCE.parent / "energy.cu").read_text()
        text = cuda.prelude(self.design, THREADS, 1) + body + LAUNCHERS
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


class EmulatedTicks(CudaTicks):
    """The ticks of a GPU, on a CPU: blocks of few threads, one after the other."""

    folder: Path
    name = "emulated"

    room = 200_000
    range = 8
    """Nodes of a block."""

    @classmethod
    def room_on(cls, device):
        return cls.room

    def _load(self):
        self.library = compiled(self.shape.text() + RUN_TICK, self.folder, "-O0")

    def _blocks(self, nodes):
        return -(-nodes // self.range), self.range

    def _here(self):
        return True

    def _write(self):
        pass  # before every launch: a library has one set of constants

    def _launch(self, replicas):
        used = -(-self.shape.shared // 8)
        room = torch.zeros(used + GUARDS, dtype=torch.float64)
        room[used:] = torch.pi
        at = ctypes.c_void_p(room.data_ptr())
        self.library.set_constants(ctypes.byref(self._ticks), ctypes.byref(self._weights))
        for y in range(replicas):
            for x in range(self.blocks):
                self.library.run_tick(x, y, at, self._time, self._what)
        assert bool((room[used:] == torch.pi).all()), "a block wrote behind its shared memory"
