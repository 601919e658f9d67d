"""Placement: every image once, nobody in two places, and the sizes that were asked for."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from silodp.cohorts.catalogue import PARTS, Row
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.partition import Placement, place
from silodp.errors import InputError

SHARES = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class Data:
    rows: list[Row]
    labels: NDArray[np.int64] | None
    digests: list[str]

    def placed(self, default: tuple[float, float, float] = SHARES, **wanted: Any) -> Placement:
        return place(self.rows, self.labels, self.digests, CohortSettings.of(kind="npz", **wanted), default)

    def placed_unless_too_few(self, **wanted: Any) -> Placement | None:
        """None where large patients leave too few others for a hospital, which single images cannot."""
        try:
            return self.placed(**wanted)
        except InputError as error:
            message = str(error)
        assert "has too few" in message
        return None

    def refused(self, **wanted: Any) -> str:
        with pytest.raises(InputError) as caught:
            self.placed(**wanted)
        return str(caught.value)

    def groups(self, within: Sequence[Any] | None = None) -> list[list[int]]:
        """What must stay together, found by walking; `within` keeps identical images of unlike keys apart."""
        keys: defaultdict[Any, set[int]] = defaultdict(set)
        for index, (row, digest) in enumerate(zip(self.rows, self.digests, strict=True)):
            keys["pixels", digest, within[index] if within else None].add(index)
            if row.patient is not None:
                keys["patient", row.patient].add(index)
        neighbours: list[set[int]] = [set() for _ in self.rows]
        for members in keys.values():
            for index in members:
                neighbours[index] |= members
        found, seen = [], set()
        for start in range(len(self.rows)):
            group, todo = set(), {start} - seen
            while todo:
                index = todo.pop()
                group.add(index)
                todo |= neighbours[index] - group
            seen |= group
            if group:
                found.append(sorted(group))
        return found


def images(count: int, labels: Sequence[int] | None = None, **fields: Sequence[Any]) -> Data:
    """Images without a twin; each field is one value an image."""
    rows = [
        Row(f"{index:05d}.png", **{name: values[index] for name, values in fields.items()})
        for index in range(count)
    ]
    classes = None if labels is None else np.array(labels, dtype=np.int64)
    return Data(rows, classes, [f"pixels {index}" for index in range(count)])


def with_twins(data: Data, *twins: tuple[int, int]) -> Data:
    digests = list(data.digests)
    for first, second in twins:
        digests[second] = digests[first]
    return replace(data, digests=digests)


def patients_of(*sizes: int) -> list[str]:
    return [f"p{number}" for number, size in enumerate(sizes) for _ in range(size)]


def sizes_of(placement: Placement) -> list[int]:
    return np.bincount(placement.hospital, minlength=len(placement.hospitals)).tolist()


def table(placement: Placement, of: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.int64]:
    """Hospitals × parts."""
    count = len(placement.hospitals)
    return np.bincount(placement.hospital[of] * 3 + placement.part[of], minlength=count * 3).reshape(count, 3)


def same(one: Placement, other: Placement) -> bool:
    return np.array_equal(one.hospital, other.hospital) and np.array_equal(one.part, other.part)


@st.composite
def anything(draw: st.DrawFn, parts: bool = False) -> Data:
    """Patients of unlike sizes, images without a patient, identical images here and there."""
    count = draw(st.integers(3, 60))
    people = st.none() | st.integers(0, draw(st.integers(0, 25))).map("p{}".format)
    patients = draw(st.lists(people, min_size=count, max_size=count))
    labels = draw(st.none() | st.lists(st.integers(0, 2), min_size=count, max_size=count))
    data = images(count, labels, patient=patients)
    index = st.integers(0, count - 1)
    data = with_twins(data, *draw(st.lists(st.tuples(index, index), max_size=4)))
    if parts:
        part = {patient: draw(st.sampled_from(PARTS)) for patient in dict.fromkeys(patients)}
        data.rows[:] = [
            replace(row, part=part[row.patient] if row.patient else draw(st.sampled_from(PARTS)))
            for row in data.rows
        ]
    return data


@st.composite
def dealt(draw: st.DrawFn) -> tuple[Data, dict[str, Any]]:
    """Data with settings that they can satisfy."""
    data = draw(anything().filter(lambda data: len(data.groups()) >= 3))
    hospitals = draw(st.integers(1, len(data.groups()) // 3))
    rule = draw(st.sampled_from(["patients", "equal"]))
    return data, {"partition": rule, "hospitals": hospitals, "seed": draw(st.integers(0, 2**40))}


def check_everything(data: Data, placement: Placement, groups: list[list[int]]) -> None:
    count = len(data.rows)
    assert placement.hospital.shape == placement.part.shape == (count,)
    assert placement.hospital.dtype == placement.part.dtype == np.int64
    assert (table(placement) > 0).all()
    assert set(placement.part.tolist()) == {0, 1, 2}
    for group in groups:
        assert len({(placement.hospital[index], placement.part[index]) for index in group}) == 1


@settings(max_examples=60, deadline=None)
@given(case=dealt())
def test_everyone_is_in_one_place_and_every_hospital_has_all_parts(case: tuple[Data, dict[str, Any]]) -> None:
    data, wanted = case
    placement = data.placed_unless_too_few(**wanted)
    if placement is None:
        assert wanted["partition"] == "equal"
        assert max(map(len, data.groups())) > 1
        return
    check_everything(data, placement, data.groups())
    assert placement.hospitals == tuple(f"hospital-{n + 1:02d}" for n in range(wanted["hospitals"]))
    assert placement.simulated
    assert same(placement, data.placed(**wanted))


@settings(max_examples=50, deadline=None)
@given(case=dealt())
def test_patients_are_dealt_out_in_turn(case: tuple[Data, dict[str, Any]]) -> None:
    data, wanted = case
    placement = data.placed(**wanted | {"partition": "patients"})
    heads = Counter(int(placement.hospital[group[0]]) for group in data.groups())
    assert max(heads.values()) - min(heads.values()) <= 1


@settings(max_examples=50, deadline=None)
@given(case=dealt(), sizes=st.lists(st.floats(0.5, 4), min_size=20, max_size=20))
def test_sizes_are_off_by_the_largest_group_at_most(
    case: tuple[Data, dict[str, Any]], sizes: list[float]
) -> None:
    data, wanted = case
    largest = max(map(len, data.groups()))
    for rule, weights in (("equal", [1.0] * wanted["hospitals"]), ("sizes", sizes[: wanted["hospitals"]])):
        own = {"sizes": weights} if rule == "sizes" else {}
        placement = data.placed_unless_too_few(**wanted | {"partition": rule} | own)
        if placement is None:
            continue
        found = sizes_of(placement)
        targets = np.array(weights) / sum(weights) * len(data.rows)
        assert np.abs(found - targets).max() <= largest + 1e-9
        if rule == "equal":
            assert max(found) - min(found) <= largest


@settings(max_examples=60, deadline=None)
@given(
    data=anything().filter(lambda data: len(data.groups()) >= 3),
    shares=st.tuples(*[st.floats(0.1, 1)] * 3),
    seed=st.integers(0, 2**40),
)
def test_parts_are_off_by_the_largest_group_at_most(
    data: Data, shares: tuple[float, float, float], seed: int
) -> None:
    placement = data.placed(hospitals=1, shares=shares, seed=seed)
    groups = data.groups()
    check_everything(data, placement, groups)
    found = table(placement)[0]
    largest = max(map(len, groups))
    targets = np.array(shares) / sum(shares) * len(data.rows)
    if targets.min() > largest and found[0] > 2:  # otherwise a part may get more than its share, to have any
        assert np.abs(found - targets).max() <= largest + 1e-9
    if len(groups) > 3 or largest > 1:
        assert found[0] >= 2


@settings(max_examples=50, deadline=None)
@given(data=anything(parts=True), seed=st.integers(0, 9), rule=st.sampled_from(["patients", "equal"]))
def test_parts_that_the_files_name_are_kept(data: Data, seed: int, rule: str) -> None:
    parts = [row.part for row in data.rows]
    groups = data.groups(within=parts)
    heads = Counter(parts[group[0]] for group in groups)
    most = min(heads[part] for part in PARTS)
    if most == 0:
        return
    wanted = {"partition": rule, "hospitals": min(4, most), "seed": seed}
    placement = data.placed(**wanted)
    assert [PARTS[part] for part in placement.part] == parts
    check_everything(data, placement, groups)
    assert placement.rule.endswith("train, validation, test as the files say")
    everywhere: Counter[int] = Counter()
    for part in range(3):
        mine = [group for group in groups if placement.part[group[0]] == part]
        members = Counter(int(placement.hospital[group[0]]) for group in mine)
        everywhere += members
        if rule == "patients":
            assert max(members.values()) - min(members.values()) <= 1
        else:
            column = table(placement)[:, part]
            assert column.max() - column.min() <= max(map(len, mine))
    if rule == "patients":
        assert max(everywhere.values()) - min(everywhere.values()) <= 1


def test_other_seeds_give_other_placements() -> None:
    data = images(60, [0, 1] * 30)
    own: dict[str, Any]
    for rule, own in {
        "patients": {}, "equal": {}, "sizes": {"sizes": [1, 2, 3]}, "dirichlet": {"alpha": 5.0},
    }.items():  # fmt: skip
        wanted = {"partition": rule, "hospitals": 3, **own}
        found = [data.placed(**wanted, seed=seed) for seed in range(4)]
        assert not any(np.array_equal(found[0].hospital, other.hospital) for other in found[1:])
    named = images(60, hospital=["a", "b"] * 30)
    assert not np.array_equal(named.placed(seed=1).part == 0, named.placed(seed=2).part == 0)


def test_single_images_are_dealt_out_exactly() -> None:
    data = images(100, [0] * 75 + [1] * 25)
    assert sizes_of(data.placed(hospitals=7)) == [15, 15, 14, 14, 14, 14, 14]
    assert sizes_of(data.placed(partition="sizes", sizes=[5, 3, 2])) == [50, 30, 20]
    one = data.placed(hospitals=1)
    ill = data.labels == 1
    assert table(one).tolist() == [[60, 20, 20]]
    assert table(one, ill).tolist() == [[15, 5, 5]]
    other = data.placed(hospitals=1, shares=(1, 1, 2))
    assert table(other).tolist() == [[25, 25, 50]]
    assert other.rule.endswith("split by whole images, 0.25 : 0.25 : 0.5")
    assert table(data.placed(hospitals=1, shares=(50, 25, 25)), ill).sum(0).max() in (12, 13)
    assert table(data.placed((0.5, 0.25, 0.25), hospitals=1)).tolist() == [[50, 25, 25]]


def test_remainders_of_given_parts_go_to_different_hospitals() -> None:
    data = images(21, part=["train"] * 7 + ["validation"] * 7 + ["test"] * 7)
    for rule in ("equal", "patients"):
        placement = data.placed(partition=rule, hospitals=3)
        assert sizes_of(placement) == [7, 7, 7]
        assert table(placement).max() == 3


@pytest.mark.parametrize("classes", [2, 5])
def test_every_class_keeps_the_shares(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.choice(classes, 400, p=rng.dirichlet(np.ones(classes))).tolist()
    placement = images(400, labels).placed(hospitals=4)
    for kind in range(classes):
        counts = table(placement, np.array(labels) == kind)
        wanted = counts.sum(1, keepdims=True) * np.array(SHARES)
        assert np.abs(counts - wanted).max() <= 2


def test_patients_of_one_class_each_are_spread_over_the_parts() -> None:
    data = images(100, [0] * 50 + [1] * 50, patient=patients_of(*[5] * 20))
    for seed in range(5):
        placement = data.placed(hospitals=1, seed=seed)
        for kind in (0, 1):
            assert table(placement, data.labels == kind).tolist() == [[30, 10, 10]]


def test_classes_of_one_patient_each_do_not_all_go_to_training() -> None:
    """Nine patients of five images: training lacks two images after five, less than half a patient."""
    for seed in range(5):
        assert table(images(20, range(20)).placed(hospitals=1, seed=seed)).tolist() == [[12, 4, 4]]
        labels = [index // 5 for index in range(45)]
        data = images(45, labels, patient=patients_of(*[5] * 9))
        assert table(data.placed(hospitals=1, seed=seed)).tolist() == [[25, 10, 10]]


def test_a_rare_class_is_spread_though_a_common_one_outweighs_it() -> None:
    labels = ([0] * 10 + [1]) * 5 + [0] * 150
    data = images(205, labels, patient=patients_of(*[11] * 5, *[10] * 15))
    for seed in range(5):
        placement = data.placed(hospitals=1, seed=seed)
        assert table(placement, data.labels == 1).tolist() == [[3, 1, 1]]
        assert table(placement, data.labels == 0).tolist() == [[120, 40, 40]]


def test_the_only_patient_of_a_class_is_for_training() -> None:
    data = images(22, [1, 1] + [0] * 20, patient=patients_of(2, *[1] * 20))
    assert all(data.placed(hospitals=1, seed=seed).part[0] == 0 for seed in range(5))


def test_large_patients_are_placed_first() -> None:
    data = images(20, patient=patients_of(12, 4, 4))
    assert all(table(data.placed(hospitals=1, seed=seed)).tolist() == [[12, 4, 4]] for seed in range(5))


def test_validation_and_test_take_turns_at_the_remainder() -> None:
    counts = table(images(7 * 40).placed(hospitals=40))
    assert {tuple(row) for row in counts.tolist()} == {(4, 1, 2), (4, 2, 1)}


@pytest.mark.parametrize("sizes", [[2, 1, 1], [1, 1, 1, 1], [1, 1, 5], [1, 1, 1, 6]])
def test_training_gets_two_images_where_it_can(sizes: list[int]) -> None:
    data = images(sum(sizes), patient=patients_of(*sizes))
    for shares in (SHARES, (0.1, 0.8, 0.1), (0.01, 0.01, 0.98)):
        counts = table(data.placed(hospitals=1, shares=shares))[0]
        assert counts[0] >= 2
        assert counts.min() >= 1


def test_training_gets_its_second_image_from_the_part_with_most() -> None:
    assert table(images(10).placed(hospitals=1, shares=(1, 3, 6))).tolist() == [[2, 3, 5]]
    assert table(images(10).placed(hospitals=1, shares=(1, 6, 3))).tolist() == [[2, 5, 3]]


def test_a_large_patient_does_not_leave_a_hospital_without_others() -> None:
    data = images(80, patient=patients_of(40, *[1] * 40))
    placement = data.placed(hospitals=2, seed=3)
    assert sorted(sizes_of(placement)) == [37, 43]
    assert table(placement).min() >= 1
    # The first would have two patients, of 60 and 1; the last has no room for three images ahead of others.
    data = images(247, patient=patients_of(60, *[1] * 187))
    found = sizes_of(data.placed(partition="sizes", sizes=[61.3, *[182.75 / 9] * 9, 2.95]))
    assert found == [63, 21, *[20] * 8, 3]


def test_a_patient_without_id_is_its_image_and_a_note_says_so() -> None:
    placement = images(9, patient=[None] * 4 + ["x"] * 5).placed(hospitals=1)
    (note,) = placement.notes
    assert note.startswith("images that name no patient: 4 of 9;")
    assert "split by whole patients" in placement.rule
    assert "split by whole images, 0.6 : 0.2 : 0.2" in images(9).placed(hospitals=1).rule
    assert not images(9, patient=patients_of(*[1] * 9)).placed(hospitals=1).notes


def test_chains_of_patients_and_twins_hold_together() -> None:
    patients = ["a", "a", "b", "b", None, "c", "d", "e", "f", "g"]
    data = with_twins(images(10, patient=patients), (1, 2), (3, 4))
    for seed in range(10):
        placement = data.placed(partition="patients", hospitals=2, seed=seed)
        assert len(set(zip(placement.hospital[:5], placement.part[:5], strict=True))) == 1
    assert "patients kept together because they share identical images: 2" in placement.notes


# Hospitals that the files name.


def named(**fields: Sequence[Any]) -> Data:
    hospitals = ["Bern"] * 10 + ["Aarhus"] * 20
    return images(30, [0, 1] * 15, hospital=hospitals, **fields)


def test_hospitals_stay_as_named() -> None:
    data = named(patient=patients_of(*[2] * 15))
    for wanted in ({}, {"hospitals": 2}, {"partition": "given"}):
        placement = data.placed(**wanted)
        assert placement.hospitals == ("Aarhus", "Bern")
        assert placement.hospital.tolist() == [1] * 10 + [0] * 20
        assert not placement.simulated
        assert not placement.notes
        assert placement.rule.startswith("hospitals as the files name them; train, validation, test split by")
        assert table(placement).tolist() == [[12, 4, 4], [6, 2, 2]]
        check_everything(data, placement, data.groups())


def test_named_hospitals_and_parts_are_all_kept() -> None:
    parts = [PARTS[index % 3] for index in range(30)]
    placement = named(part=parts).placed()
    assert [PARTS[part] for part in placement.part] == parts
    assert placement.hospital.tolist() == [1] * 10 + [0] * 20
    assert not placement.notes  # nothing was dealt out, so patients do not matter


def test_a_patient_in_two_named_hospitals_is_refused() -> None:
    data = named(patient=[f"p{index % 15}" for index in range(30)])
    message = data.refused()
    # Images 0…9 are in Bern, 10…29 in Aarhus: of the patients 0…14 the first ten are in both.
    assert message.startswith(
        "cohort.patient_ids = global: patients in more than one hospital: 10 (p0 in Bern"
    )
    assert "p0 in Bern and Aarhus, p1 in Bern and Aarhus, p2 in Bern and Aarhus, …)" in message
    assert "cohort.patient_ids=local" in message
    local = data.placed(patient_ids="local")
    assert local.hospital.tolist() == [1] * 10 + [0] * 20
    assert data.placed(partition="equal", hospitals=2)


def test_ids_that_are_local_keep_two_people_apart() -> None:
    data = images(24, hospital=["a", "b"] * 12, patient=patients_of(*[8] * 3))
    halves = data.placed(patient_ids="local", partition="patients", hospitals=2)
    assert sizes_of(halves) == [12, 12]
    assert data.refused(partition="patients", hospitals=2).startswith("cohort.hospitals = 2: ")
    named = data.placed(patient_ids="local")
    places = zip(data.rows, named.hospital.tolist(), named.part.tolist(), strict=True)
    assert len({(row.patient, hospital, part) for row, hospital, part in places}) == 6


def test_identical_images_in_two_named_hospitals_stay_and_are_told() -> None:
    data = with_twins(named(), (1, 2), (3, 12), (4, 14))
    placement = data.placed(seed=1)
    assert placement.hospital.tolist() == [1] * 10 + [0] * 20
    assert placement.part[1] == placement.part[2]
    (note,) = [note for note in placement.notes if "hospital" in note]
    assert note == "pictures that occur in more than one hospital: 2"  # a count: names are for the owner


def test_capitals_and_spaces_do_not_make_another_person() -> None:
    ids = ["P0", "p0 ", " P0", *(f"q{index}" for index in range(12))]
    for seed in range(5):
        placement = images(15, patient=ids).placed(hospitals=2, seed=seed)
        assert len({*zip(placement.hospital[:3].tolist(), placement.part[:3].tolist(), strict=True)}) == 1


def test_people_are_known_by_links_too() -> None:
    """A study whose files name their patient only now and then, and one person with two ids."""
    data = images(18, patient=["a", None, None, "b", "B2", *(f"q{index}" for index in range(13))])
    links = {0: ("study 1",), 1: ("study 1", "id x"), 2: ("id x",), 3: ("id b",), 4: ("study 9", "id b")}
    rows = [replace(row, links=links.get(index, ())) for index, row in enumerate(data.rows)]
    for seed in range(5):
        placement = replace(data, rows=rows).placed(hospitals=2, seed=seed)
        places = list(zip(placement.hospital.tolist(), placement.part.tolist(), strict=True))
        assert len(set(places[:3])) == len(set(places[3:5])) == 1
    anonymous = [replace(row, links=("id ANON",)) for row in data.rows]
    assert len(set(replace(data, rows=anonymous).placed(hospitals=2).hospital.tolist())) == 2
    named = [replace(row, hospital="A" if index < 2 else "B") for index, row in enumerate(rows)]
    assert "more than one hospital" in replace(data, rows=named).refused()


def test_named_hospitals_may_be_dealt_out_anew() -> None:
    placement = named().placed(partition="equal", hospitals=3)
    assert placement.hospitals == ("hospital-01", "hospital-02", "hospital-03")
    assert placement.simulated
    assert placement.notes[0] == (
        "hospitals that the files name, which were not used (cohort.partition = equal): 2"
    )
    assert len(named().placed(partition="patients").hospitals) == 2


# Parts that the files name.


def test_shares_split_anew_whatever_the_files_say() -> None:
    parts = [PARTS[index % 3] for index in range(30)]
    data = images(30, patient=patients_of(*[2] * 15), part=parts)
    placement = data.placed(hospitals=1, shares=[3, 1, 1])
    assert table(placement).tolist() == [[18, 6, 6]]
    check_everything(data, placement, data.groups())
    assert placement.notes == ("images whose part in the files was not used, for all were split anew: 30",)


def test_parts_of_some_images_are_not_used() -> None:
    placement = images(10, part=["test"] * 4 + [None] * 6).placed(hospitals=1)
    assert table(placement).tolist() == [[6, 2, 2]]
    assert any(note.endswith("split anew: 4") for note in placement.notes)


def test_identical_images_in_two_named_parts_are_told() -> None:
    data = with_twins(
        images(30, part=["train"] * 18 + ["validation"] * 6 + ["test"] * 6), (0, 1), (2, 20), (2, 29)
    )
    for seed in range(3):
        placement = data.placed(hospitals=2, seed=seed)
        assert [PARTS[part] for part in placement.part] == [row.part for row in data.rows]
        assert placement.hospital[0] == placement.hospital[1]
        assert "pictures that occur in more than one part: 1" in placement.notes


def test_sizes_within_given_parts() -> None:
    data = images(100, part=["train"] * 60 + ["validation"] * 20 + ["test"] * 20)
    counts = table(data.placed(partition="sizes", sizes=[3, 1, 1]))
    assert counts.tolist() == [[36, 12, 12], [12, 4, 4], [12, 4, 4]]


# Dirichlet.


def test_hospitals_have_unlike_classes_where_alpha_is_small() -> None:
    """The mean of Σ p² over Dirichlet draws is (α + 1) / (hα + 1); classes are drawn apart: Σ p q is 1/h."""
    count, hospitals = 600, 4
    data = images(2 * count, [0] * count + [1] * count)
    for alpha in (1.0, 4.0, 1e9, 1e308):
        squares, products = [], []
        for seed in range(60 if alpha < 1e6 else 2):
            placement = data.placed(partition="dirichlet", hospitals=hospitals, alpha=alpha, seed=seed)
            first, second = (
                np.bincount(placement.hospital[data.labels == kind], minlength=hospitals) / count
                for kind in (0, 1)
            )
            squares += [(first**2).sum(), (second**2).sum()]
            products.append((first * second).sum())
        expected = (1 + 1 / alpha) / (hospitals + 1 / alpha)
        for values, mean in ((squares, expected), (products, 1 / hospitals)):
            within = 5 * np.std(values) / np.sqrt(len(values)) + 0.005  # no hospital is left with nothing
            assert np.mean(values) == pytest.approx(mean, abs=within)


def test_a_patient_of_two_classes_is_drawn_from_their_mixture() -> None:
    singles, mixed = 2000, 2000
    labels = [0] * singles + [1] * singles + [0, 0, 0, 1] * mixed
    patients = [None] * (2 * singles) + patients_of(*[4] * mixed)
    data = images(len(labels), labels, patient=patients)
    groups = (slice(singles), slice(singles, 2 * singles), slice(2 * singles, None, 4))
    unlike = 0.0
    for seed in range(5):
        placement = data.placed(partition="dirichlet", hospitals=3, alpha=0.8, seed=seed)
        first, second, both = (
            np.bincount(placement.hospital[group], minlength=3) / len(placement.hospital[group])
            for group in groups
        )
        unlike = max(unlike, float(np.abs(first - second).max()))
        assert both == pytest.approx(0.75 * first + 0.25 * second, abs=5 * np.sqrt(0.25 / 2000))
    assert unlike > 0.1  # else the mixture could be either


def test_skew_is_the_same_in_all_given_parts() -> None:
    parts = [PARTS[index // 1000 % 3] for index in range(6000)]
    data = images(6000, [0] * 3000 + [1] * 3000, part=parts)
    counts = table(data.placed(partition="dirichlet", hospitals=4, seed=3), data.labels == 1) / 1000
    assert np.ptp(counts, axis=0).min() > 0.1
    assert np.ptp(counts, axis=1).max() < 6 * np.sqrt(0.25 / 1000)


@settings(max_examples=50, deadline=None)
@given(data=anything(), seed=st.integers(0, 99))
def test_dirichlet_keeps_patients_together_and_fills_every_hospital(data: Data, seed: int) -> None:
    if data.labels is None or len(data.groups()) < 12:
        return
    placement = data.placed(partition="dirichlet", hospitals=2, alpha=2.0, seed=seed)
    check_everything(data, placement, data.groups())


# A hospital for each value of a feature.


def with_feature(values: Sequence[Any], **fields: Sequence[Any]) -> Data:
    return images(len(values), features=[{"scanner": value, "other": 1} for value in values], **fields)


def test_a_hospital_for_each_value() -> None:
    placement = with_feature([3.0, 1.5] * 10).placed(partition="feature", feature="scanner", hospitals=7)
    assert placement.hospitals == ("scanner 1.5", "scanner 3")
    assert placement.hospital.tolist() == [1, 0] * 10
    assert placement.simulated
    assert placement.rule.startswith("simulated: a hospital for each scanner;")
    assert table(placement).tolist() == [[6, 2, 2], [6, 2, 2]]
    words = with_feature(["Acme X", "Bright Y"] * 5).placed(partition="feature", feature="scanner")
    assert words.hospitals == ("scanner Acme X", "scanner Bright Y")


def test_values_of_all_kinds_become_names() -> None:
    mixed = with_feature([np.float32(10), 9, "b", True] * 3).placed(partition="feature", feature="scanner")
    assert mixed.hospitals == ("scanner 9", "scanner 10", "scanner True", "scanner b")
    dates = with_feature([20240101, 20240102.0] * 3).placed(partition="feature", feature="scanner")
    assert dates.hospitals == ("scanner 20240101.0", "scanner 20240102.0")


def test_a_patient_with_several_values_goes_where_most_images_are() -> None:
    data = with_feature(list("aabbbab") + list("abc") * 5, patient=patients_of(*[1] * 2, 5, *[1] * 15))
    placement = data.placed(partition="feature", feature="scanner")
    assert placement.hospital.tolist() == [0, 0] + [1] * 5 + [0, 1, 2] * 5
    assert placement.notes == (
        "patients with more than one scanner, each put where most of its images are: 1",
    )


# Refusals: what is said first, and the way out.

FEATURE = {"partition": "feature", "feature": "scanner"}
THIRDS = [PARTS[index % 3] for index in range(30)]
TWENTY = images(60, patient=patients_of(*[3] * 20))
UNEVEN = images(30, part=["train"] * 20 + ["validation"] * 6 + ["test"] * 4)
HALF_NAMED = images(10, hospital=["a"] * 7 + [None] * 3)
GAPS = with_feature([1.0] * 8 + [None, float("nan")])
ASK = "cohort.hospitals: the files name no hospital; say how many to simulate, such as 6"
ANEW = "cohort.shares=[0.6, 0.2, 0.2] splits all anew by patient"
REFUSED: list[tuple[Data, dict[str, Any], str, str]] = [
    (images(0), {"hospitals": 2}, "cohort.path = here: no image", "give a path that holds some"),
    *((images(30, [0, 1] * 15), {"partition": rule}, ASK, "such as 6")
      for rule in (None, "equal", "patients", "dirichlet")),
    (TWENTY, {"hospitals": 7},
     "cohort.hospitals = 7: each of 7 hospitals needs 3 of 20 patients;", "give at most 6 hospitals"),
    (UNEVEN, {"hospitals": 5}, "cohort.hospitals = 5: each of 5 hospitals needs images of every part;",
     "give at most 4 hospitals"),
    (named(), {"hospitals": 3},
     "cohort.hospitals = 3: the files name 2 (Aarhus, Bern);", "cohort.partition=equal"),
    (HALF_NAMED, {}, "cohort.partition = given: 3 of 10 images name no hospital, such as 00007.png;",
     "cohort.partition=equal"),
    (images(10), {"partition": "given"}, "cohort.partition = given: 10 of 10", "cohort.partition=equal"),
    (images(12, hospital=["a"] * 6 + ["b"] * 6, patient=patients_of(3, 3, 2, 2, 2)), {},
     "cohort.path = here: a has too few patients: 2, where 3 parts need one each;", "cohort.partition=equal"),
    (images(30, patient=patients_of(2, *[1] * 28), part=THIRDS), {"hospitals": 2},
     "cohort.path = here: patients in more than one part: 1 (p0 in train and validation);", ANEW),
    (named(part=["train"] * 10 + THIRDS[:20]), {},
     "cohort.path = here: Bern has no validation and no test images;", "cohort.shares=[0.6, 0.2, 0.2]"),
    (images(60), {"partition": "sizes"}, "cohort.sizes: missing;", "give a relative size"),
    (images(60), {"partition": "sizes", "sizes": [1, 2], "hospitals": 3},
     "cohort.hospitals = 3: cohort.sizes is for 2;", "give"),
    (images(60), {"partition": "sizes", "sizes": [1] * 21}, "cohort.sizes = (1.0, 1.0, ", "at most 20"),
    (images(60), {"partition": "sizes", "sizes": [1, 1000]},
     "cohort.sizes = (1.0, 1000.0): hospital-01 has too few images: 0, where 3 parts need one each",
     "less unequal sizes"),
    (images(60), {"partition": "sizes", "sizes": [1, 1, 1000]}, "cohort.sizes", "(and so for 1 more)"),
    (images(100, part=["train"] * 60 + ["validation"] * 20 + ["test"] * 20),
     {"partition": "sizes", "sizes": [50, 1, 1]},
     "cohort.sizes = (50.0, 1.0, 1.0): hospital-02 has no ", "less unequal sizes"),
    (images(40), {"partition": "dirichlet", "hospitals": 2},
     "cohort.partition = dirichlet: it skews classes, but the targets are masks;", ";"),
    (images(90, [0, 1] * 45), {"partition": "dirichlet", "hospitals": 20, "alpha": 0.01},
     "cohort.alpha = 0.01: 100 draws left some of 20 hospitals with too few images",
     "give a larger alpha or fewer hospitals"),
    (GAPS, FEATURE | {"feature": "coil"}, "cohort.feature = coil: 10 of 10 images do not have it, such as "
     "00000.png;", "choose one of those in the files: other, scanner"),
    (GAPS, {"partition": "feature"}, "cohort.feature = None: 10 of 10", "other, scanner"),
    (GAPS, FEATURE, "cohort.feature = scanner: 2 of 10 images do not have it, such as 00008.png", ";"),
    (images(9), FEATURE, "cohort.feature = scanner: ", "there is none"),
    (with_feature(list(range(101)) * 3), FEATURE, "cohort.feature = scanner: 101 different values", ";"),
    (with_feature(list("aaaaabb")), FEATURE,
     "cohort.feature = scanner: scanner b has too few images: 2,", "another feature"),
    (with_feature(list("aaaaaabbb"), part=[*PARTS, *PARTS, "train", "train", "test"]), FEATURE,
     "cohort.feature = scanner: scanner b has no validation images", ";"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "wanted", "said", "way_out"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_cannot_be_dealt_out_is_refused_with_the_way_out(
    data: Data, wanted: dict[str, Any], said: str, way_out: str
) -> None:
    message = data.refused(path="here", **wanted)
    assert message.startswith(said)
    assert way_out in message


def test_what_a_refusal_proposes_can_be_dealt_out() -> None:
    assert HALF_NAMED.placed(partition="equal", hospitals=2).simulated
    assert len(TWENTY.placed(hospitals=6, partition="patients").hospitals) == 6
    assert len(UNEVEN.placed(hospitals=4).hospitals) == 4
    assert len(with_feature(list(range(100)) * 3).placed(**FEATURE).hospitals) == 100


def test_torn_patients_are_kept_only_where_that_is_asked_for() -> None:
    parts = [*PARTS, *PARTS, *PARTS] * 2
    data = images(18, patient=["a"] * 3 + [f"p{index}" for index in range(15)], part=parts,
                  hospital=["A"] * 9 + ["B"] * 9)  # fmt: skip
    assert "cohort.torn_patients=keep" in data.refused()
    placement = data.placed(torn_patients="keep")
    assert [PARTS[part] for part in placement.part] == parts
    assert placement.hospital.tolist() == [0] * 9 + [1] * 9
    (note,) = [note for note in placement.notes if "too good" in note]
    assert note.startswith("patients in more than one part, as the files say: 1; ")
    # Dealt out anew, one person's parts could fall into two hospitals.
    assert "cohort.torn_patients" not in data.refused(torn_patients="keep", partition="equal", hospitals=2)
    three = images(9, patient=list("aaabbbccc"), part=[*PARTS] * 3, hospital=list("AAABBBAAA"))
    assert three.placed(torn_patients="keep").hospital.tolist() == [0] * 3 + [1] * 3 + [0] * 3
    both = images(18, patient=["a"] * 18, part=parts, hospital=["A"] * 9 + ["B"] * 9)
    assert "more than one hospital" in both.refused(torn_patients="keep")
