"""docs/settings.md is what `silodp settings --markdown` prints."""

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/settings.md"


def test_the_settings_page_is_up_to_date() -> None:
    """In a process of its own: other tests define rules, which would be listed, too."""
    done = subprocess.run(
        [sys.executable, "-c", "from silodp.cli import main; main()", "settings", "--markdown"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == PAGE.read_text(encoding="utf-8"), (
        "docs/settings.md is out of date; renew it: .venv/bin/silodp settings --markdown > docs/settings.md"
    )
