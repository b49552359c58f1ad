"""Compiles the kernels while a wheel is built; without a compiler the wheel has none."""

from __future__ import annotations

import importlib.util
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelBuild(BuildHookInterface):
    """Adds the compiled library to the wheel, which then is a wheel for one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        place = Path(self.root) / "src" / "hogwild" / "kernels" / "build.py"
        spec = importlib.util.spec_from_file_location("hogwild_kernels_build", place)
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        try:
            # An editable installation stays on this machine; a wheel may travel.
            build.build(native=version == "editable")
        except build.NoCompiler as reason:
            self.app.display_warning(f"hogwild is installed without compiled kernels: {reason}")
            return
        # Only what was compiled now: a library of an earlier build may be for one machine alone.
        build_data["artifacts"].append("/src/hogwild/kernels/compiled/*.so")
        build_data["pure_python"] = False
        name = sysconfig.get_platform()
        if sys.platform == "darwin":  # Python itself may be for an older system and two processors
            name = f"macosx-{build.MACOS}-{platform.machine()}"
        build_data["tag"] = f"py3-none-{name.replace('-', '_').replace('.', '_')}"
