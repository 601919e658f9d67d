"""docs/settings.md is what `silodp settings --markdown` prints."""

from pathlib import Path

from conftest import in_a_process, succeed

PAGE = Path(__file__).parents[2] / "docs/settings.md"


def test_the_settings_page_is_up_to_date() -> None:
    """In a process of its own: other tests define rules, which would be listed, too."""
    done = succeed("settings", "--markdown", how=in_a_process)
    assert done.stdout == PAGE.read_text(encoding="utf-8"), (
        "docs/settings.md is out of date; renew it: .venv/bin/silodp settings --markdown > docs/settings.md"
    )
