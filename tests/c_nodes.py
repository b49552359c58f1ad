"""Generated C nodes, compiled and called through ctypes."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from hogwild.models.export import packed
from hogwild_node.c99 import generate

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
REALS = {"float32": ctypes.c_float, "float64": ctypes.c_double}


def filed(model):
    """A model as its file holds it."""
    return packed(model)


PROBES = """
size_t node_size(void);
const hog_real *node_h(const hog_node *node);
size_t node_size(void) { return sizeof(hog_node); }
const hog_real *node_h(const hog_node *node) { return node->h; }
size_t agent_size(void);
hog_node *agent_node(hog_agent *agent);
double agent_calm(const hog_agent *agent);
size_t agent_size(void) { return sizeof(hog_agent); }
hog_node *agent_node(hog_agent *agent) { return &agent->node; }
double agent_calm(const hog_agent *agent) { return agent->calm; }
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

    def __init__(self, file, dtype="float64", max_degree=8):
        text = generate(file, dtype=dtype, max_degree=max_degree)
        path = compiled(text, "-O0", "-shared", "-fPIC")
        self.c = ctypes.CDLL(str(path))
        shutil.rmtree(path.parent)
        self.dtype, self.real = np.dtype(dtype), REALS[dtype]
        for name in ("node_size", "agent_size", "hog_agent_hello", "hog_agent_data", "hog_write"):
            getattr(self.c, name).restype = ctypes.c_size_t
        self.c.agent_node.restype = ctypes.c_void_p
        self.c.node_h.argtypes = [ctypes.c_void_p]
        self.c.hog_degree.argtypes = [ctypes.c_void_p]
        self.c.agent_calm.restype = ctypes.c_double
        for name in ("hog_residual", "hog_degree"):
            getattr(self.c, name).restype = self.real
        self.edge_features = int(text.split("#define HOG_JOIN_FEATURES")[1].split()[0])
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
        known = near.edge_attr
        if known is not None and near.back_attr is not None:
            known = np.concatenate([known, near.back_attr])[: lib.edge_features]
        _also, edge = lib.pointer(known)
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


class CAgent:
    """An agent in C on a network in memory, with a clock that is ahead by ``skew`` seconds."""

    def __init__(self, library, features, transport, clock, neighbours, *, incarnation, skew=0.0):
        self.library, self.transport = library, transport
        self.clock = lambda: clock() + skew
        self.skew = skew
        self.state = ctypes.create_string_buffer(library.c.agent_size())
        self.raw = ctypes.create_string_buffer(4096)
        self.names = list(neighbours)
        self.dropped = 0
        _kept, pointer = library.pointer(features)
        now = self.now()
        assert library.c.hog_agent_init(self.state, pointer, ctypes.c_uint32(incarnation), now)
        for slot, edge in enumerate(neighbours.values()):
            _also, attr = library.pointer(edge.edge_attr)
            weight = library.real(edge.weight)
            assert library.c.hog_agent_link(self.state, slot, weight, attr, now)
        transport.connect({name: None for name in neighbours})

    def now(self):
        return ctypes.c_double(self.clock())

    def set_features(self, features):
        _kept, pointer = self.library.pointer(features)
        return self.library.c.hog_agent_set_features(self.state, pointer, self.now())

    def _receive(self, sender, raw, at):
        self.dropped += not self.receive(self.names.index(sender), raw, at + self.skew)

    def receive(self, slot, raw, at):
        c = self.library.c
        return c.hog_agent_receive(
            self.state, slot, raw, ctypes.c_size_t(len(raw)), ctypes.c_double(at)
        )

    def turn(self):
        c, now = self.library.c, self.now()
        for got in self.transport.receive():
            self._receive(got.sender, got.raw, got.at)
        c.hog_agent_turn(self.state, now)
        for slot, name in enumerate(self.names):
            for write, hello in ((c.hog_agent_hello, True), (c.hog_agent_data, False)):
                size = write(self.state, slot, self.raw, now)
                if size:
                    self.transport.send(name, self.raw.raw[:size], hello=hello)

    @property
    def h(self):
        found = self.library.c.node_h(self.library.c.agent_node(self.state))
        return np.array(found[: self.library.channels], np.float64)

    def read(self):
        """What an agent in Python says in a reading, this one says itself."""
        return self

    @property
    def members(self):
        degree = self.library.c.hog_degree(self.library.c.agent_node(self.state))
        return self.names[: round(degree) - 1]  # of two agents

    @property
    def calm(self):
        return self.library.c.agent_calm(self.state)

    @property
    def silent(self):
        return tuple(name for slot, name in enumerate(self.names) if self.is_silent(slot))

    def is_silent(self, slot):
        return bool(self.library.c.hog_agent_silent(self.state, slot, self.now()))

    @property
    def settled(self):
        return bool(self.library.c.hog_agent_settled(self.state))
