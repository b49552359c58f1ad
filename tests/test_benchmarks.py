"""The documents' numbers are those of the committed results."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_documents_match_the_results():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "report.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_readme_counts_turns_beside_updates():
    """Resending makes fewer updates than caching and takes more turns, and the table shows both."""
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    lines = [line.split(" | ") for line in report.which("cpu").splitlines()]
    turns, updates = (lines[0].index(name) for name in ("turns to 10⁻²", "updates"))
    resending, caching = (
        next(line for line in lines if line[:2] == ["| sums", f"GCN, {rule}"])
        for rule in ("resending", "caching")
    )
    assert int(resending[updates]) < int(caching[updates])
    assert int(resending[turns]) > int(caching[turns])
    assert "Does not arrive: not within 3,000 ticks." in report.which("cpu")
