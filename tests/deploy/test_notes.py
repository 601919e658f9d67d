"""What is noted down for the live pages does not grow for ever."""

from pathlib import Path

from silodp.deploy.notes import LARGEST_LIST, record_refusal
from silodp.deploy.status import read_refusals


def test_a_list_of_refusals_that_is_too_long_is_put_aside_and_begins_anew(tmp_path: Path) -> None:
    """Anybody who can send a hospital bytes makes it write a line."""
    place, old = tmp_path / "refusals.jsonl", tmp_path / "refusals.old.jsonl"
    for _ in range(2):
        place.write_text("x" * LARGEST_LIST)
        record_refusal(place, "still fits")
        assert place.stat().st_size > LARGEST_LIST
        record_refusal(place, "the first of a new list")
        assert [one["reason"] for one in read_refusals(place)] == ["the first of a new list"]
        assert old.read_text().startswith("xxx")
    assert sorted(tmp_path.iterdir()) == [place, old]
    assert old.stat().st_size < 2 * LARGEST_LIST
