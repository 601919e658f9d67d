"""What strangers meet first: the workflow, the templates, and the pages for those who join or report."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import silodp

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fields(form: str) -> dict[str, Any]:
    """The fields of an issue form by their ids; "" for texts that ask nothing."""
    body = yaml.safe_load(text(f".github/ISSUE_TEMPLATE/{form}"))["body"]
    return {field.get("id", ""): field for field in body}


def test_the_workflow_makes_test_on_the_oldest_and_the_newest_python() -> None:
    workflow = yaml.safe_load(text(".github/workflows/test.yml"))
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert "make test" in [step.get("run") for step in job["steps"]]
    assert job["timeout-minutes"] > 0
    versions = job["strategy"]["matrix"]["python"]
    listed = re.findall(r"Python :: (3\.\d+)", text("pyproject.toml"))
    assert versions == [listed[0], listed[-1]]
    (cached,) = (step["with"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert cached["cache-dependency-path"].split() == ["constraints.txt", "pyproject.toml"]


def test_every_issue_form_has_what_the_code_host_asks_of_one() -> None:
    assert [form.name for form in FORMS] == ["bug.yml", "config.yml", "question.yml"]
    assert yaml.safe_load(text(".github/ISSUE_TEMPLATE/config.yml")) == {"blank_issues_enabled": False}
    for name in ("bug.yml", "question.yml"):
        form = yaml.safe_load(text(f".github/ISSUE_TEMPLATE/{name}"))
        assert {"name", "description", "body"} <= form.keys()
        assert all(
            "value" in field["attributes"] if field["type"] == "markdown" else "label" in field["attributes"]
            for field in form["body"]
        )
        assert "Never paste patients' data" in fields(name)[""]["attributes"]["value"]


def test_a_report_of_a_defect_asks_for_the_doctor_and_sends_privacy_elsewhere() -> None:
    asked = fields("bug.yml")
    assert "silodp doctor" in asked["doctor"]["attributes"]["label"]
    assert asked["doctor"]["validations"] == {"required": True}
    assert "SECURITY.md" in asked[""]["attributes"]["value"]


def test_the_newest_version_is_the_packages() -> None:
    found = re.findall(r"^## \[(.+?)\]", text("CHANGELOG.md"), flags=re.MULTILINE)
    assert found[0] == silodp.__version__
    for place in ("pyproject.toml", "CITATION.cff"):
        stated = re.search(r"^version\s*[=:]\s*\"?([\d.]+)", text(place), flags=re.MULTILINE)
        assert stated is not None
        assert stated[1] == silodp.__version__


@pytest.mark.parametrize("page", [*PAGES, ".github/pull_request_template.md", "README.md"])
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text(page))
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_readme_links_each_page(page: str) -> None:
    assert f"]({page})" in text("README.md")
