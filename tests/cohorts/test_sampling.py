"""A sample that is even over labels and strata, as far as they have images."""

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from silodp.cohorts.catalogue import Scan
from silodp.cohorts.sampling import proportional, sample_evenly

sizes = st.lists(st.integers(0, 60), min_size=1, max_size=8)


def make(counts: dict[tuple[int, str, str | None], int]) -> tuple[Scan, ...]:
    """So many scans of each (label, stratum, part), in an order that says nothing."""
    scans = [
        Scan(f"{number:04d}-{label}-{stratum}-{part}", (Path("x"),), label=label, stratum=stratum, part=part)
        for (label, stratum, part), count in counts.items()
        for number in range(count)
    ]
    return tuple(sorted(scans, key=lambda scan: scan.name[::-1]))


def strata(scans: tuple[Scan, ...]) -> Counter[str]:
    return Counter(scan.stratum for scan in scans)


SET = make(
    {
        (0, "healthy", None): 600,
        (1, "epidural", None): 5,
        (1, "subdural", None): 200,
        (1, "subarachnoid", None): 100,
        (1, "intraventricular", None): 40,
    }
)


def test_half_of_each_label_and_rare_strata_whole() -> None:
    drawn = sample_evenly(SET, 300, seed=0)
    # 150 with a bleed: 5 epidural are all there are; 145 are left for three, of which one has only 40.
    assert sorted(strata(drawn).values()) == [5, 40, 52, 53, 150]
    assert strata(drawn)["healthy"] == 150
    assert strata(drawn)["epidural"] == 5
    assert strata(drawn)["intraventricular"] == 40


def test_more_than_there_are_is_all_of_them_in_order() -> None:
    for count in (len(SET), len(SET) + 1):
        drawn = sample_evenly(SET, count, seed=0)
        assert list(drawn) == sorted(SET, key=lambda scan: scan.name)


def test_the_seed_decides_and_the_order_of_scans_does_not() -> None:
    first = sample_evenly(SET, 100, seed=0)
    assert first == sample_evenly(SET[::-1], 100, seed=0)
    assert first != sample_evenly(SET, 100, seed=1)
    assert [scan.name for scan in first] == sorted(scan.name for scan in first)


def test_a_draw_is_at_random() -> None:
    numbers = [int(scan.name[:4]) for scan in sample_evenly(SET, 300, seed=0) if scan.label == 0]
    assert 250 < sum(numbers) / len(numbers) < 350  # of 0…599, not the first 150


def test_a_larger_draw_keeps_the_smaller_one_where_it_takes_more() -> None:
    small, large = (set(sample_evenly(SET, count, seed=0)) for count in (100, 300))
    assert small <= large


def test_parts_keep_their_shares() -> None:
    parts = {"train": 600, "validation": 200, "test": 200}
    scans = make(
        {(label, str(label), part): size // 2 for part, size in parts.items() for label in (0, 1)}
        | {(1, "rare", "test"): 10}
    )
    drawn = sample_evenly(scans, 101, seed=0)
    assert Counter(scan.part for scan in drawn) == {"train": 60, "validation": 20, "test": 21}
    of_test = tuple(scan for scan in drawn if scan.part == "test")
    assert Counter(scan.label for scan in of_test) in ({0: 10, 1: 11}, {0: 11, 1: 10})
    assert strata(of_test)["rare"] >= 5


def test_scans_without_labels_are_drawn_too() -> None:
    scans = tuple(Scan(f"{number:03d}", (Path("x"),)) for number in range(50))
    assert len(sample_evenly(scans, 20, seed=3)) == 20


@given(sizes.filter(any), st.data())
def test_proportions_are_rounded_to_a_whole_next_to_them(sizes: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(sizes)))
    shares = proportional(sizes, total)
    assert sum(shares) == total
    for share, size in zip(shares, sizes, strict=True):
        assert abs(share - size * total / sum(sizes)) < 1
        assert share <= size


@given(
    st.dictionaries(
        st.tuples(
            st.integers(0, 2), st.sampled_from("abc"), st.sampled_from([None, "train", "validation", "test"])
        ),
        st.integers(1, 12),
        min_size=1,
        max_size=10,
    ),
    st.integers(1, 140),
    st.integers(0, 5),
)
def test_the_count_is_exact_and_nothing_is_drawn_twice(
    counts: dict[tuple[int, str, str | None], int], count: int, seed: int
) -> None:
    scans = make(counts)
    drawn = sample_evenly(scans, count, seed)
    assert len(drawn) == min(count, len(scans))
    assert len({scan.name for scan in drawn}) == len(drawn)
    assert set(drawn) <= set(scans)
    # Within a part, a label that has more to give got at least as much as any other, but for one.
    for part in {scan.part for scan in scans}:
        given_, had = (Counter(scan.label for scan in some if scan.part == part) for some in (drawn, scans))
        assert all(
            given_[label] >= max(given_.values(), default=0) - 1
            for label in had
            if given_[label] < had[label]
        )
        for label in had:
            taken, there = (
                Counter(scan.stratum for scan in some if (scan.part, scan.label) == (part, label))
                for some in (drawn, scans)
            )
            free = [stratum for stratum in there if taken[stratum] < there[stratum]]
            assert all(taken[stratum] >= max(taken.values(), default=0) - 1 for stratum in free)
