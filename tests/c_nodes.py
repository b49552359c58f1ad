"""Generated C nodes, compiled and called through ctypes."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from hogwild.models.export import described
from hogwild_node.c99 import generate
from hogwild_node.model_file import ModelFile, name_of

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
REALS = {"float32": ctypes.c_float, "float64": ctypes.c_double}


def filed(model):
    """A model as its file holds it."""
    config, tensors = described(model)
    return ModelFile(config, tensors, name_of(config, tensors))


PROBES = """
size_t node_size(void);
const hog_real *node_h(const hog_node *node);
size_t node_size(void) { return sizeof(hog_node); }
const hog_real *node_h(const hog_node *node) { return node->h; }
"""


def compiled(text, *flags, out="node.so", main=PROBES):
    """Compile C text and a program that uses it; the path of the result."""
    folder = Path(tempfile.mkdtemp())
    (folder / "node.c").write_text(text)
    (folder / "main.c").write_text(f'#define HOG_DECLARATIONS\n#include "node.c"\n{main}\n')
    command = [CC, *WARNINGS, "-Wdouble-promotion", *flags, "node.c", "main.c", "-o", out, "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / out


class Library:
    """A compiled model."""

    def __init__(self, file, dtype="float64", max_degree=8, optimise="-O0"):
        text = generate(file, dtype=dtype, max_degree=max_degree)
        path = compiled(text, optimise, "-shared", "-fPIC")
        self.c = ctypes.CDLL(str(path))
        shutil.rmtree(path.parent)
        self.dtype, self.real = np.dtype(dtype), REALS[dtype]
        self.c.node_size.restype = ctypes.c_size_t
        for name in ("hog_residual", "hog_degree"):
            getattr(self.c, name).restype = self.real
        self.numbers = int(text.split("#define HOG_NUMBERS")[1].split()[0])
        self.channels = file.config["hidden_channels"]
        self.outputs = file.config["out_channels"]
        self.c.node_h.restype = ctypes.POINTER(self.real)

    def pointer(self, x):
        if x is None:
            return None, None
        kept = np.ascontiguousarray(x, self.dtype)
        return kept, kept.ctypes.data_as(ctypes.c_void_p)


class CNode:
    """A node in C."""

    def __init__(self, library, features):
        self.library = library
        self.state = ctypes.create_string_buffer(library.c.node_size())
        kept, pointer = library.pointer(features)
        assert library.c.hog_init(self.state, pointer) == int(np.isfinite(kept).all())

    def set_features(self, features):
        _kept, pointer = self.library.pointer(features)
        return self.library.c.hog_set_features(self.state, pointer)

    def join(self, slot, near):
        lib = self.library
        _kept, features = lib.pointer(near.features)
        _also, edge = lib.pointer(near.edge_attr)
        weight, degree = lib.real(near.weight), lib.real(near.degree)
        return lib.c.hog_join(self.state, slot, weight, features, degree, edge)

    def leave(self, slot):
        return self.library.c.hog_leave(self.state, slot)

    def hear(self, slot, numbers):
        assert len(numbers) == self.library.numbers
        _kept, pointer = self.library.pointer(numbers)
        return self.library.c.hog_hear(self.state, slot, pointer)

    def update(self):
        return self.library.c.hog_update(self.state)

    def say(self, slot):
        found = np.empty(self.library.numbers, self.library.dtype)
        told = self.library.c.hog_say(self.state, slot, found.ctypes.data_as(ctypes.c_void_p))
        return found if told else None

    def predict(self):
        found = np.empty(self.library.outputs, self.library.dtype)
        self.library.c.hog_predict(self.state, found.ctypes.data_as(ctypes.c_void_p))
        return found

    @property
    def h(self):
        found = self.library.c.node_h(self.state)
        return np.array(found[: self.library.channels], np.float64)

    @property
    def residual(self):
        return self.library.c.hog_residual(self.state)

    @property
    def degree(self):
        return self.library.c.hog_degree(self.state)
