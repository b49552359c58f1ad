"""``hogwild serve``."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from tiny_runs import TASK
from websockets.sync.client import connect

from hogwild.cli import main
from hogwild.cli import serve as verb
from hogwild.cli.options import parse


def test_it_serves_until_ctrl_c_and_ends_cleanly(trained):
    words = [sys.executable, "-m", "hogwild", "serve", trained, "--task", TASK, "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        where = None
        while where is None and (line := server.stderr.readline()):  # before it, warnings
            where = re.search(r"http://localhost:(\d+)/", line)
        assert where
        with urllib.request.urlopen(where.group(), timeout=30) as page:
            assert page.status == 200
        with connect(f"ws://localhost:{where.group(1)}/live", max_size=None) as viewer:
            assert "given" in json.loads(viewer.recv(timeout=30))["tasks"]
            scene = json.loads(viewer.recv(timeout=30))
            assert scene["task"]["name"] == "given"
            server.send_signal(signal.SIGINT)
            out, errors = server.communicate(timeout=30)
    finally:
        server.kill()
        server.communicate()
    assert server.returncode == 0
    assert out == "The page has ended.\n"
    assert errors == ""


def test_bad_usage_is_one_clear_error(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        assert main(["serve", "--port", port]) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert f"--port {port} of --host '127.0.0.1' cannot be used" in text
        assert "already in use" in text
    for words, why in [
        (["--port", "70000"], "expected 0 to 65535"),
        (["--replay", "x.npz"], "expected the run"),
        (["--attach", str(tmp_path)], "expected the folder of a running"),
        (["--attach", str(tmp_path), "--replay", "x.npz"], "expected one of them"),
        ([str(tmp_path)], str(tmp_path)),
    ]:
        assert main(["serve", *words]) == 2
        assert why in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(verb, "find_spec", lambda name: None)
    assert main(["serve"]) == 2
    assert 'pip install "hogwild-gnn[web]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "fine"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
)
def test_loopback_is_the_default_and_others_are_warned_of(host, fine):
    assert parse(verb.Options, [], "hogwild serve").host == "127.0.0.1"
    assert verb._is_loopback(host) is fine
