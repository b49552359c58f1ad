"""The GPU's kernels compiled for a CPU: one thread a block, so that their logic is tested anywhere."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache

import torch

from hogwild.kernels import cuda
from hogwild.kernels.build import FLAGS, SOURCE, compiler


@cache
def compiled(design, folder):
    """The functions of ``energy.cu`` for one model."""
    text = cuda.prelude(design, threads=32) + (SOURCE.parent / "energy.cu").read_text()
    source = folder / f"energy_{abs(hash(design))}.cpp"
    source.write_text(text)
    out = source.with_suffix(".so")
    flags = [f for f in FLAGS if f not in ("-O3", "-fvisibility=hidden")]
    call = [*compiler().split(), *flags, "-O1", "-w", "-DHOG_SCALAR", f"-I{SOURCE.parent}"]
    subprocess.run([*call, str(source), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


class ScalarKernel(cuda.CudaEnergyKernel):
    """The kernels of a GPU, on a CPU."""

    folder = None

    def __init__(self, native, graph, design, tensors):
        cuda.EnergyKernel.__init__(self, native, graph, design, tensors)
        self.device = 0
        self.library = compiled(design, self.folder)
        self.on_device = cuda.device_plan(graph, native, design.channels)

    @property
    def name(self):
        return "scalar"

    def _launch(self, name, grid, threads, shared, *arguments):
        room = torch.empty(shared // 8 + 1, dtype=torch.float64)
        function = getattr(self.library, name)
        given = [a if isinstance(a, ctypes.Structure) else ctypes.c_void_p(a) for a in arguments]
        # A thread of hog_parameters takes one parameter, a block of the others one graph.
        count = threads if name == "hog_parameters" else 1
        for x in range(grid[0]):
            for y in range(grid[1] * count):
                self.library.hog_scalar_block(x, y, ctypes.c_void_p(room.data_ptr()))
                function(*given)
