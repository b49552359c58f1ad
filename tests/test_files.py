"""Files: whole or not there, whatever happens while they are written."""

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hogwild.files import write_atomically


def test_written_whole_in_a_new_folder(tmp_path):
    path = write_atomically(tmp_path / "new" / "folder" / "file.txt", b"all of it")
    assert path.read_bytes() == b"all of it"
    assert [f.name for f in path.parent.iterdir()] == ["file.txt"]


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
