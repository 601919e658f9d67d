"""What a federation knows of a hospital: counts and shapes, and of labels only what nobody agreed on."""

import json

import pytest
import torch
from conftest import blob_cohort
from hypothesis import given
from hypothesis import strategies as st

from silodp import Cohort, Experiment
from silodp.errors import InputError
from silodp.facts import HospitalFacts, describe_facts, facts_of
from silodp.runs.schema import CohortFile, checked

counts = st.integers(1, 10**6)
facts = st.builds(
    HospitalFacts, st.text(max_size=20), counts, counts, counts, st.tuples(counts, counts, counts),
    st.sampled_from(["uint8", "float32"]), st.sampled_from(["mask", "class"]),
    st.integers(1, 10**4), st.booleans(),
    counts,
)  # fmt: skip


@given(facts)
def test_facts_come_back_over_json(one: HospitalFacts) -> None:
    assert HospitalFacts.from_dict(json.loads(json.dumps(one.to_dict()))) == one


@given(facts, st.sampled_from([*facts.example().to_dict()]), st.sampled_from([None, -1, "x", [1], 0.5, {}]))
def test_facts_of_other_types_are_refused(one: HospitalFacts, field: str, value: object) -> None:
    if field in ("name", "storage") and value == "x":
        return
    with pytest.raises(InputError, match="are not a hospital's"):
        HospitalFacts.from_dict({**one.to_dict(), field: value})


def test_facts_are_those_of_the_data() -> None:
    (hospital,) = blob_cohort(1, images=20, size=16).hospitals
    found = facts_of(hospital, Experiment(intermediaries={"min_samples": 4}))
    assert (found.train, found.validation, found.test) == (12, 4, 4)
    assert (found.shape, found.storage, found.target, found.outputs) == ((1, 16, 16), "float32", "mask", 1)
    assert (found.whole_patients, found.most_intermediaries) == (False, 3)
    described = describe_facts("deployed", [found], None)
    checked(CohortFile, json.loads(json.dumps(described)), "cohort.json", "mend it")


@pytest.mark.parametrize("classes", [None, 5])
def test_labels_are_looked_at_only_where_nobody_said_how_many_classes_there_are(classes: int | None) -> None:
    labels = torch.tensor([0, 1, 2] * 10)
    (hospital,) = Cohort.from_tensors({"a": (torch.rand(30, 1, 8, 8), labels)}).hospitals
    told = {"classes": classes} if classes else {}
    found = facts_of(hospital, Experiment(task="classification", cohort={"kind": "custom", **told}))
    assert found.outputs == (classes or 3)
