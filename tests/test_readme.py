"""The README's blocks run as they stand: ```python in a fresh interpreter, ```bash in a shell, in order, in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
def test_blocks_run(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert any(language == "python" for language, _ in BLOCKS), "the README has lost its example"
    for language, code in BLOCKS:
        command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
