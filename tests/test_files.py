"""Files: whole or not there, whatever happens while they are written."""

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hogwild.errors import ConfigError
from hogwild.files import require_writable, write_atomically


def test_what_was_there_stays_when_writing_fails(tmp_path, monkeypatch):
    path = write_atomically(tmp_path / "file", b"before")

    def full(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_readers_see_one_of_the_writers(tmp_path):
    """Threads of one process write the same file; every read is one content as a whole."""
    path = write_atomically(tmp_path / "file", b"0" * 100_000)
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write_atomically, path, b"%d" % i * 100_000) for i in range(10)]
        while not all(w.done() for w in writers):
            assert len(set(path.read_bytes())) == 1
            assert path.stat().st_size == 100_000
    assert [w.result() for w in writers] == [path] * 10


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
def test_mode_is_that_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    found = write_atomically(tmp_path / "file", b"")
    assert stat.S_IMODE(found.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_imports_no_torch():
    code = "import sys, hogwild.files; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_place_that_cannot_be_written_is_known_before(tmp_path):
    path = write_atomically(tmp_path / "file", b"before")
    require_writable(path, "--plot")
    require_writable(tmp_path / "new" / "file", "--plot")
    assert sorted(f.name for f in tmp_path.rglob("*")) == ["file", "new"]
    assert path.read_bytes() == b"before"
    with pytest.raises(ConfigError, match=r"--plot cannot be written .*; expected a file in a"):
        require_writable(path / "below", "--plot")
    with pytest.raises(ConfigError, match="--plot is a folder"):
        require_writable(tmp_path, "--plot")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no folder without files")
def test_errors_name_the_file_that_was_given():
    with pytest.raises(OSError, match="No such file") as error:
        write_atomically("/proc/file", b"")
    assert error.value.filename == "/proc/file"
