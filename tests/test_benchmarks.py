"""The documents' numbers are those of the committed results."""

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
