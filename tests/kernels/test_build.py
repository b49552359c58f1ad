"""The build of the compiled library, of wheels and of the source distribution."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hogwild.engines import gpu, gpu_large
from hogwild.kernels import build
from hogwild.kernels.build import SOURCE

ROOT = Path(__file__).parents[2]


def test_no_compiler_leaves_the_folder_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent")
    old = tmp_path / "hogwild_native.so"
    old.write_bytes(b"earlier")
    with pytest.raises(build.NoCompiler, match="CXX='/nonexistent' was not found"):
        build.build(tmp_path)
    assert old.read_bytes() == b"earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["hogwild_native.so"]


def test_a_compiler_that_fails_leaves_the_folder_as_it_is(tmp_path, monkeypatch):
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho 'error: unknown flag' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    folder = tmp_path / "compiled"
    with pytest.raises(build.NoCompiler, match="failed: error: unknown flag"):
        build.build(folder)
    assert not folder.exists()


def test_the_command_says_that_nothing_was_compiled():
    done = subprocess.run(
        [sys.executable, "-m", "hogwild.kernels.build"],
        env=os.environ | {"CXX": "/nonexistent"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "nothing was compiled: CXX='/nonexistent' was not found\n"


def test_the_mark_follows_the_sources_and_the_processor(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    (source / "library.cpp").write_text("int main() {}")
    monkeypatch.setattr(build, "SOURCE", source / "library.cpp")
    before = build.mark("native"), build.mark("avx2")
    assert before[0] == f"{before[1]}-{build.processor()}"
    (source / "__pycache__").mkdir()  # what is no source does not count
    (source / "notes.txt").write_text("no source")
    assert (build.mark("native"), build.mark("avx2")) == before
    (source / "energy.h").write_text("// another header")
    assert build.mark("avx2") != before[1]
    monkeypatch.setattr(build, "processor", lambda: "another")
    assert build.mark("native") == f"{build.mark('avx2')}-another"


@pytest.fixture
def compiled(tmp_path):
    try:
        build.compiler()
    except build.NoCompiler as reason:
        pytest.skip(f"no compiler: {reason}")
    return tmp_path / "compiled"


@pytest.mark.slow
def test_builds_replace_each_other(compiled):
    """A library for every instruction set, then for this machine alone."""
    every = build.build(compiled, native=False)
    assert [p.name for p in every] == [f"hogwild_{name}.so" for name in build.levels(False)]
    assert sorted(compiled.iterdir()) == sorted(every)  # and nothing unfinished
    (alone,) = build.build(compiled)
    assert list(compiled.iterdir()) == [alone]


SOLVE = """
import sys
import torch
import hogwild, hogwild_node
from hogwild import EnergyConv, Inputs
assert hogwild.__file__.startswith(sys.argv[1]), hogwild.__file__
torch.manual_seed(0)
conv = EnergyConv(3).double()
x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
conv(x, edges).square().sum().backward()
print(conv.solver_path(Inputs(x, edges))[0])
print(float(x.grad.abs().sum()))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what a wheel is built from, with a library that was compiled earlier."""
    place = tmp_path_factory.mktemp("source")
    kept = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
        capture_output=True, text=True,
    )  # fmt: skip
    if kept.returncode:
        pytest.skip("the tests are not in a repository")
    for name in kept.stdout.rstrip("\0").split("\0"):
        wanted = name.startswith("src/") or "/" not in name
        if wanted and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes((ROOT / name).read_bytes())
    stale = place / "src" / "hogwild" / "kernels" / "compiled" / "hogwild_native.so"
    stale.parent.mkdir(exist_ok=True)
    stale.write_bytes(b"for another machine")
    return place


def pip(*arguments, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, arguments)], env=os.environ | variables,
        capture_output=True, text=True,
    )  # fmt: skip
    said = done.stdout + done.stderr
    if done.returncode and "hatchling" in said:
        pytest.skip("there is no hatchling here, and no registry that has it")
    assert done.returncode == 0, said[-3000:]


def wheel(source, out, **variables):
    pip("wheel", source, "--no-deps", "--wheel-dir", out, **variables)
    (found,) = out.glob("hogwild_gnn-*.whl")
    with zipfile.ZipFile(found) as archive:
        names = archive.namelist()
    assert "hogwild/kernels/source/library.cpp" in names
    return found, [Path(n).name for n in names if n.endswith(".so")]


def installed_answer(found, target):
    pip("install", "--no-deps", "--no-index", "--target", target, found)
    done = subprocess.run(
        [sys.executable, "-c", SOLVE, str(target)], cwd=target.parent, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(target), NODE])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    path, answer = done.stdout.splitlines()
    return path, float(answer)


NODE = str(ROOT / "node" / "src")


@pytest.mark.slow
def test_wheels_with_and_without_a_compiler(source, compiled, tmp_path):
    """With a compiler: a wheel for this platform, with a library for every instruction set. Without
    one: a wheel for every platform and without libraries. Both solve alike."""
    full, libraries = wheel(source, tmp_path / "full")
    assert sorted(libraries) == sorted(f"hogwild_{name}.so" for name in build.levels(False))
    assert full.name.split("-")[2:4] == ["py3", "none"]
    assert not full.name.endswith("any.whl")
    pure, libraries = wheel(source, tmp_path / "pure", CXX="/nonexistent")
    assert not libraries  # not those of the build before, either
    assert pure.name.endswith("-py3-none-any.whl")
    path, answer = installed_answer(full, tmp_path / "here")
    assert path in [f"compiled ({name})" for name in build.levels(False)]
    path, plain = installed_answer(pure, tmp_path / "there")
    assert path.startswith("torch: there is no compiled library (not compiled")
    assert abs(answer - plain) < 1e-9 * abs(plain)


@pytest.mark.slow
def test_source_distribution(source, tmp_path):
    """It holds what a wheel is built from, and no library."""
    code = (
        "import hatchling.build, os, sys; os.chdir(sys.argv[1])\n"
        "print(hatchling.build.build_sdist(sys.argv[2]))"
    )
    pip("install", "--target", tmp_path / "hatchling", "hatchling>=1.27")
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(tmp_path)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "hatchling")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folder = source / "src" / "hogwild" / "kernels" / "source"
    sources = [p.name for p in folder.iterdir() if p.suffix in build.SUFFIXES]
    wanted = {f"src/hogwild/kernels/source/{name}" for name in sources}
    assert wanted | {"hatch_build.py", "pyproject.toml", "src/hogwild/kernels/build.py"} <= names
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.parametrize("name", ["energy.cu", "large.cu"])
def test_a_gpu_gets_every_header(name):
    """NVRTC sees the headers that it is given, and no folder."""
    given = {"energy.cu": gpu.HEADERS, "large.cu": gpu_large.HEADERS}
    folder, seen, queue = SOURCE.parent, set(), [name]
    while queue:
        text = (folder / queue.pop()).read_text()
        for header in set(re.findall(r'#include "(\w+\.h)"', text)) - seen:
            seen.add(header)
            queue.append(header)
    assert seen <= set(given[name])
