"""Compile the kernels: ``python -m hogwild.kernels.build`` (the installation does the same).

The file needs the standard library only, because a build hook runs it before anything is installed.
The library is one C++ file without dependencies, called through a C interface: it is coupled to no
version of Python or torch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "source" / "library.cpp"
COMPILED = HERE / "compiled"
LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("-march=x86-64-v2", "-mtune=generic"),
    "avx2": ("-march=x86-64-v3", "-mtune=generic"),
    "avx512": ("-march=x86-64-v4", "-mtune=generic"),
}
"""Instruction sets of an x86-64 wheel, the most common one first. Other processors have one."""
NATIVE = "native"
"""The name of a library for the processor that compiled it."""
INSTRUCTIONS = (
    "sse", "ssse", "avx", "fma", "bmi", "f16c", "abm", "movbe", "popcnt", "adx", "sha", "aes",
    "vaes", "pclmul", "vpclmul", "gfni", "amx", "xsave", "asimd", "sve", "sme", "i8mm", "bf16",
)  # fmt: skip
"""How the names of instruction sets begin that a compiler may use."""
SUFFIXES = (".h", ".cpp")
MACOS = "11.0"
"""The oldest macOS that a library runs on, also part of a wheel's name (``hatch_build.py``)."""
FLAGS = (
    "-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-pthread",
    "-fvisibility=hidden",
)  # fmt: skip


def digest() -> str:
    """A hash of the sources of a library, which it carries: an older library is recognised. What
    is for GPUs only is no part of it."""
    found = hashlib.sha256()
    sources = (p for p in SOURCE.parent.iterdir() if p.suffix in SUFFIXES)
    for path in sorted(p for p in sources if not p.stem.endswith("_gpu")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def processor() -> str:
    """A hash of this processor's instructions. A library for this machine alone carries it: in a
    folder that several machines share, another processor might not know an instruction."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = [line.split() for line in lines if line.startswith(("flags", "Features"))]
    # Other flags are about the system, and may change with it.
    names = sorted(flag for flag in (known or [[]])[0] if flag.startswith(INSTRUCTIONS))
    return hashlib.sha256(" ".join([platform.machine(), *names]).encode()).hexdigest()[:8]


def mark(name: str) -> str:
    """What a library of this name must carry."""
    return f"{digest()}-{processor()}" if name == NATIVE else digest()


class NoCompiler(Exception):
    """There is no C++ compiler, or it cannot compile the kernels; the text says which."""


def compiler() -> str:
    """The command of a C++ compiler: ``CXX``, or the first of c++, g++ and clang++."""
    asked = os.environ.get("CXX")
    for name in (asked,) if asked else ("c++", "g++", "clang++"):
        if shutil.which(name.split()[0]):
            return name
    raise NoCompiler(
        f"CXX={asked!r} was not found" if asked else "no C++ compiler (c++, g++ or clang++)"
    )


def levels(native: bool) -> dict[str, tuple[str, ...]]:
    """What to compile: names and flags; ``native``: for this machine only."""
    if native:
        return {NATIVE: ("-march=native",)}
    if platform.machine().lower() in ("x86_64", "amd64"):
        return LEVELS
    return {"generic": ()}


def build(folder: Path = COMPILED, *, native: bool = True) -> list[Path]:
    """Compile the kernels into ``folder``; the libraries that were there are replaced.

    Args:
        folder: Where the libraries go.
        native: Compile for this machine's processor only. Otherwise for every instruction set
            that :func:`hogwild.kernels.native.library` chooses from.

    Raises:
        NoCompiler: Nothing was compiled, and ``folder`` is as it was.
    """
    if sys.platform == "win32":
        raise NoCompiler("the kernels are compiled on Linux and macOS only")
    command = [*compiler().split(), *FLAGS]
    if sys.platform == "darwin":
        command.append(f"-mmacosx-version-min={MACOS}")
    with tempfile.TemporaryDirectory() as scratch:
        running = []
        for name, flags in levels(native).items():
            out = Path(scratch) / f"hogwild_{name}.so"
            carried = f'-DHOG_DIGEST="{mark(name)}"'
            call = [*command, *flags, carried, str(SOURCE), "-o", str(out)]
            running.append((out, subprocess.Popen(call, stderr=subprocess.PIPE, text=True)))
        for _, process in running:
            _, said = process.communicate()
            if process.returncode:
                for _, other in running:
                    other.kill()
                    other.wait()
                raise NoCompiler(f"{command[0]} failed: {said.strip()[-2000:]}")
        folder.mkdir(parents=True, exist_ok=True)
        found = [folder / out.name for out, _ in running]
        for (out, _), place in zip(running, found, strict=True):
            # Whole at once: another process may load the library at any time.
            partial = place.with_suffix(f".{os.getpid()}")
            shutil.copyfile(out, partial)
            partial.replace(place)
        for old in set(folder.glob("hogwild_*.so")) - set(found):
            old.unlink(missing_ok=True)
    return found


if __name__ == "__main__":
    try:
        for path in build(native="--all" not in sys.argv):
            print(path)
    except NoCompiler as error:
        raise SystemExit(f"nothing was compiled: {error}") from None
