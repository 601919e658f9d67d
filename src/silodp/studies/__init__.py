"""Studies: each runs what one table or figure needs and writes it as csv, Markdown and figures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from silodp.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from silodp.studies.study import Study

_STUDIES = {
    "table1-prostate": "table1:PROSTATE",
    "table1-ich": "table1:ICH",
    "figure1b": "figure1b:STUDY",
    "figure2a": "figure2a:STUDY",
    "figure2b": "figure2b:STUDY",
    "figure2c": "figure2c:STUDY",
    "figure2d": "figure2d:STUDY",
    "appendix-attack": "appendix_attack:ATTACK",
    "appendix-frequency": "appendix_tables:FREQUENCY",
    "appendix-rounds": "appendix_tables:ROUNDS",
    "appendix-subsampling": "appendix_tables:SUBSAMPLING",
    "sample-vs-client": "sample_vs_client:SAMPLE_VS_CLIENT",
    "matched-privacy": "matched_privacy:MATCHED",
    "hospital-privacy-prostate": "hospital_privacy:PROSTATE",
    "hospital-privacy-ich": "hospital_privacy:ICH",
    "worth-it-prostate": "worth_it:PROSTATE",
    "worth-it-ich": "worth_it:ICH",
}
"""Module and constant by name; in the order of the paper, then the studies that it does not have."""


def study_names() -> list[str]:
    return list(_STUDIES)


def study_named(name: str) -> Study:
    """A study; its module is loaded only now."""
    if name not in _STUDIES:
        raise InputError(f"study {name}: choose one of {', '.join(_STUDIES)}" + did_you_mean(name, _STUDIES))
    module, _, constant = _STUDIES[name].partition(":")
    found: Study = getattr(import_module(f"silodp.studies.{module}"), constant)
    return found
