"""The compiled library: where it is found, why it is missing, what its C interface refuses."""

import ctypes
import ctypes.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from kernel_cases import needs_library
from torch._subclasses import FakeTensorMode

from hogwild.engines.cpu import Posed
from hogwild.errors import UnsupportedError
from hogwild.kernels import build, native
from hogwild.kernels.native import Library, Missing

SOLVE = """
import torch
from hogwild import EnergyConv, Inputs
torch.manual_seed(0)
conv = EnergyConv(3).double()
x, edges = torch.randn(3, 3, dtype=torch.float64), torch.tensor([[0, 1], [1, 2]])
conv(x, edges).sum().backward()
print(conv.solver_path(Inputs(x, edges))[0])
from hogwild.cli import main
main(["info"])
"""


def run(*command, **variables):
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_addresses():
    """No tensor without memory of its own reaches compiled code; one without numbers needs none."""
    x = torch.ones(3)
    assert native.address(x) == x.data_ptr()
    assert native.address(None) is None
    assert not native.address(torch.empty(0))
    without = [x.to("meta"), torch._to_functional_tensor(x), FakeTensorMode().from_tensor(x)]
    for wrong in without:
        with pytest.raises(UnsupportedError, match=r"shape \[3\].*HOGWILD_KERNELS"):
            native.address(wrong)
    for transform in (torch.func.vmap, torch.func.functionalize):
        with pytest.raises(UnsupportedError, match="memory of its own"):
            transform(native.address)(x)


def test_switched_off():
    """Everything works, and says so in one line."""
    said = run("-c", SOLVE, HOGWILD_KERNELS="off").splitlines()
    why = "switched off by HOGWILD_KERNELS=off"
    assert said[0] == f"torch: there is no compiled library ({why})"
    lines = [line for line in said if line.startswith("compiled solve")]
    assert lines == [f"compiled solve   no: {why}"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Another place for compiled libraries."""
    monkeypatch.setattr(native, "COMPILED", tmp_path)
    monkeypatch.delenv("HOGWILD_KERNELS", raising=False)
    native.found.cache_clear()
    yield tmp_path
    native.found.cache_clear()


def test_not_compiled(folder):
    found = native.found()
    assert isinstance(found, Missing)
    assert "python -m hogwild.kernels.build" in found.reason
    assert native.library() is None


@pytest.mark.parametrize("text", [b"", b"not a library", b"\x7fELF" + bytes(200)])
def test_a_file_that_is_no_library(folder, text):
    (folder / "hogwild_native.so").write_bytes(text)
    found = native.found()
    assert isinstance(found, Missing)
    assert found.reason.startswith("the library cannot be loaded: ")
    assert "\n" not in found.reason


def test_another_library(folder):
    """A library without the kernels' functions."""
    (folder / "hogwild_native.so").symlink_to(ctypes.util.find_library("c") or "libc.so.6")
    found = native.found()
    assert isinstance(found, Missing)
    assert found.reason.startswith("the library cannot be loaded: ")


@needs_library
def test_an_instruction_set_is_asked_for(folder, monkeypatch):
    """Copies of one library take the places of those for several instruction sets."""
    here = next(build.COMPILED.glob("hogwild_*.so"))
    monkeypatch.setattr(native, "mark", lambda name: Library(here, "any").digest().decode())
    processor = int(Library(here, "any").level())
    (folder / "hogwild_native.so").symlink_to(here)
    monkeypatch.setenv("HOGWILD_KERNELS", "avx2")
    assert "the library is compiled for native" in native.found().reason
    (folder / "hogwild_native.so").unlink()
    for name in build.LEVELS:
        (folder / f"hogwild_{name}.so").symlink_to(here)
    for level, name in enumerate(build.LEVELS):
        native.found.cache_clear()
        monkeypatch.setenv("HOGWILD_KERNELS", name)
        if level <= processor:
            assert native.found().instructions == name
        else:
            assert f"this processor knows {list(build.LEVELS)[processor]}" in native.found().reason
    for other in ("", "on"):
        native.found.cache_clear()
        monkeypatch.setenv("HOGWILD_KERNELS", other)
        assert native.found().instructions == list(build.LEVELS)[processor]


@needs_library
def test_a_library_that_is_older_than_its_sources(monkeypatch):
    name = native.library().instructions
    for carried, words in (
        ("0123456789abcdef", "older than its sources"),
        (f"{build.digest()}-another", "compiled for another processor"),
    ):
        native.found.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(native, "mark", lambda name, mark=carried: mark)
            if "processor" in words:
                if name != "native":
                    continue  # a library for every processor
            else:
                patch.setattr(native, "digest", lambda: "0123456789abcdef")
            found = native.found()
        assert isinstance(found, Missing)
        assert words in found.reason
        assert "compiles it again" in found.reason
    native.found.cache_clear()
    assert isinstance(native.found(), Library)


# -- the C interface ----------------------------------------------------------------------------


def longs(*values):
    return np.array(values, dtype=np.int64)


def at(array):
    return array.ctypes.data


def plan(library, nodes, graphs, batch, src, dst, edges=None, leaf=8, hops=2):
    batch, src, dst = longs(*batch), longs(*src), longs(*dst)
    edges = len(src) if edges is None else edges
    return library.call("plan", nodes, graphs, at(batch), edges, at(src), at(dst), leaf, hops, 1e8)


@needs_library
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, 1, [0, 0, 0], [0], [3]), "not there"),
        ((3, 1, [0, 0, 0], [-1], [0]), "not there"),
        ((3, 1, [0, 0, 0], [2**62], [0]), "not there"),
        ((3, 2, [0, 1, 0], [], []), "not sorted"),
        ((3, 2, [0, 1, 2], [], []), "names a graph that is not there"),
        ((3, 2, [-1, 0, 1], [], []), "names a graph that is not there"),
        ((4, 2, [0, 0, 1, 1], [0], [2]), "joins two graphs"),
        ((-1, 1, [], [], []), "from 0 to"),
        ((1, -1, [0], [], []), "from 0 to"),
        ((1, 2**62, [0], [], []), "from 0 to"),
        ((2**62, 1, [0], [], []), "from 0 to"),
        ((1, 1, [0], [0], [0], -1), "from 0 to"),
        ((1, 1, [0], [0], [0], 2**40), "from 0 to"),
        ((1, 1, [0], [0], [0], 1, 8, 3), "hops"),
    ],
)
def test_plans_of_wrong_arrays_are_refused(arguments, words):
    handle, why = plan(native.library(), *arguments)
    assert not handle
    assert words in why


@needs_library
@pytest.mark.parametrize("leaf", [-5, 0, 1, 2**31 - 1])
def test_plans_with_any_size_of_a_piece(leaf):
    library = native.library()
    n = 30
    src = [*range(n - 1), *range(1, n)]
    dst = [*range(1, n), *range(n - 1)]
    handle, why = plan(library, n, 1, [0] * n, src, dst, leaf=leaf)
    assert handle, why
    numbers, work = ctypes.c_double(), ctypes.c_double()
    library.plan_cost(handle, ctypes.byref(numbers), ctypes.byref(work))
    assert n <= numbers.value <= n**2 * 4
    library.plan_free(handle)


# k, channels, heads, concat, ends, sent, activation, relu; (layers, inputs, widths) of the message,
# the self message and the update
GOOD = [2, 2, 1, 1, 2, 1, 0, 0, 2, 4, 3, 2, 1, 2, 2, 1, 4, 1]


def sizes(library, numbers):
    # Room behind the end: a wrong number of layers must not read beyond it.
    given, rising = longs(*numbers, *[1] * 64), np.zeros(4096, dtype=np.uint8)
    return library.sizes(at(given), 0.1, at(rising))


@needs_library
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 3), (0, 0), (0, -2), (0, 2**32 + 2), (1, 3), (2, 0), (2, -1), (2, 2), (4, 0), (4, 1),
        (4, 3), (5, 2), (6, 7), (8, 0), (8, 13), (8, -1), (8, 2**40), (9, 0), (9, 257), (10, 0),
        (10, 4097), (10, 2**40), (11, 1), (17, 2),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(place, value):
    library = native.library()
    good = sizes(library, GOOD)
    assert good
    library.sizes_free(good)
    assert not sizes(library, [*GOOD[:place], value, *GOOD[place + 1 :]])


@needs_library
def test_solves_of_nothing_are_refused():
    """No plan, no sizes, no arrays, no replicas, negative numbers: words, and no crash."""
    library = native.library()
    batch, none = longs(0, 0), longs()
    handle, _ = library.call("plan", 2, 1, at(batch), 0, at(none), at(none), 8, 2, 1e8)
    model = sizes(library, GOOD)
    shapes = longs(*[0] * 5)
    library.shapes(model, at(shapes))
    count, rows = shapes.tolist()[:2]
    parameters, nodes = np.zeros(count), np.zeros(rows * 2)
    h, residual = np.zeros(4), np.zeros(1)
    status, iterations = longs(9), longs(9)

    def solve(plan=handle, model=model, replicas=1, parameters=parameters, max_iter=10, out=h,
              threads=1):  # fmt: skip
        given = None if parameters is None else at(parameters)
        posed = Posed(plan, model, replicas, given, at(nodes), method=1)
        return library.call(
            "solve", ctypes.byref(posed), None, 1e-8, 0.0, max_iter, 40, 20, threads,
            None if out is None else at(out), at(status), at(iterations), at(residual),
        )  # fmt: skip

    for wrong, words in (
        ({"plan": None}, "no plan"),
        ({"model": None}, "no sizes"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": 2**60}, "replicas"),
        ({"parameters": None}, "null"),
        ({"out": None}, "null"),
        ({"max_iter": -1}, "max_iter"),
    ):
        failed, why = solve(**wrong)
        assert failed
        assert words in why
    for threads in (-3, 0, 1, 2**40):
        assert solve(threads=threads) == (0, "")
        assert status.tolist() == [0]
    library.plan_free(handle)
    library.sizes_free(model)


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_threads_that_do_not_start():
    """Where the system starts no thread, the calling one does all the work."""
    code = """
import resource, torch
from kernel_cases import layer, odd_graph
conv, inputs = layer(), odd_graph(1, [5] * 40, 1.5)
expected = conv.embed(inputs).value.detach()
# A thread's stack is as large as the limit on stacks at the start: more than there may be.
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
import threading
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no thread")
torch.get_num_threads = lambda: 4  # torch itself ends the process where it gets no threads
assert torch.equal(conv.embed(inputs).value, expected)
"""
    limited = (
        "import os, resource, sys\n"
        "hard = resource.getrlimit(resource.RLIMIT_STACK)[1]\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (1 << 36, hard))\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, *sys.path])
    assert run("-c", limited, code, PYTHONPATH=path, OMP_NUM_THREADS="1") == "no thread\n"


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_threads_after_a_fork_and_of_several_callers():
    """Helpers sleep between calls: a forked child has its own, and several callers share them."""
    code = """
import os
from concurrent.futures import ThreadPoolExecutor
import torch
from kernel_cases import layer, odd_graph
torch.set_num_threads(1)
conv, inputs = layer(1, 0.1), odd_graph(2, [9, 30, 1, 14, 5], 1.4, False)
def solved():
    with torch.no_grad():
        return conv.embed(inputs).value
expected = solved()
torch.get_num_threads = lambda: 3  # threads of the library, and not of torch
assert torch.equal(solved(), expected)
with ThreadPoolExecutor(4) as callers:
    for found in [callers.submit(solved) for _ in range(200)]:
        assert torch.equal(found.result(), expected)
child = os.fork()
if child == 0:
    os._exit(0 if all(torch.equal(solved(), expected) for _ in range(20)) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(solved(), expected)
print("done")
"""
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, *sys.path])
    assert run("-c", code, PYTHONPATH=path, OMP_NUM_THREADS="1") == "done\n"


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_while_other_threads_solve():
    """No child waits for a lock of a thread that it does not have."""
    code = """
import os, signal, threading
import torch
from kernel_cases import layer, odd_graph
torch.set_num_threads(1)
conv, inputs = layer(1, 0.1), odd_graph(2, [9, 5], 1.4, False)
def solved():
    with torch.no_grad():
        return conv.embed(inputs).value
expected, ended = solved(), threading.Event()
def go_on():
    while not ended.is_set():
        solved()
others = [threading.Thread(target=go_on, daemon=True) for _ in range(3)]
for other in others:
    other.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for ever
        os._exit(0 if torch.equal(solved(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
for other in others:
    other.join()
print("done")
"""
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, *sys.path])
    assert run("-c", code, PYTHONPATH=path, OMP_NUM_THREADS="1") == "done\n"
