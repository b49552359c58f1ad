"""Where data sets lie: ``$HOGWILD_DATA`` is only read, ``$HOGWILD_CACHE`` (default
``~/.cache/hogwild``) holds downloaded and processed files."""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hogwild.errors import DataError

T = TypeVar("T")


def data_home() -> Path | None:
    """The folder of data sets that the user keeps, if there is one."""
    place = os.environ.get("HOGWILD_DATA")
    return Path(place) if place else None


def cache_home() -> Path:
    """The folder of downloaded and processed files; deleting it is safe."""
    return Path(os.environ.get("HOGWILD_CACHE") or Path.home() / ".cache" / "hogwild")


def absent(what: str, place: str, why: str) -> DataError:
    """The error for missing files: where they were looked for, and how to supply them."""
    home = data_home()
    given = "is not set" if home is None else f"is {home}"
    return DataError(
        f"{what} was not found: HOGWILD_DATA {given}, and {why}. Expected the files as "
        f"$HOGWILD_DATA/{place}; set HOGWILD_DATA to a folder that holds them, or allow the "
        "download (option download=True of the task) where there is a network"
    )


def prepared(
    what: str,
    source: str,
    files: Sequence[str],
    raw: str,
    load: Callable[[Path], T],
    *,
    download: bool,
) -> T:
    """A PyG data set, processed in the cache because its loaders write beside the raw files.

    Args:
        what: Its name, in errors and in the cache.
        source: Where its raw files lie below ``$HOGWILD_DATA``.
        files: Names of the raw files; all of them must be there.
        raw: Where the loader expects the raw files below its root.
        load: The loader, given its root; it downloads missing raw files.
        download: Whether it may download.

    The data set is built in a temporary folder and moved into place at once, so that processes that
    start together never read half-written files. It is built again when the raw files change.
    """
    home, root = data_home(), cache_home() / what
    given = home / source if home is not None and (home / source).is_dir() else None
    if given is not None:
        for name in files:
            if not (given / name).is_file():
                raise absent(what, f"{source}/{name}", "the folder is there without this file")
    if given is None and not root.is_dir() and not download:
        raise absent(what, source, "nothing was downloaded before")
    if not root.is_dir() or (given is not None and not _same(given, root / raw)):
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:
            built = Path(folder) / what
            if given is not None:
                (built / raw).mkdir(parents=True)
                for file in given.iterdir():
                    shutil.copy2(file, built / raw)
            try:
                load(built)
            except OSError as error:
                raise absent(what, source, f"loading or downloading it failed ({error})") from error
            shutil.rmtree(root, ignore_errors=True)
            shutil.move(built, root)
    return load(root)


def _same(given: Path, place: Path) -> bool:
    """Whether a cached copy has the files it was made from, by size and time of change."""
    if not place.is_dir():
        return False
    compared = filecmp.dircmp(given, place, ignore=[])
    return not compared.left_only and not compared.diff_files
