"""The documentation site builds strictly and without a network; its pages load nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = re.findall(r"[\w-]+(?=\.md$)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_of_the_navigation_is_there(site: Path) -> None:
    assert len(PAGES) > 15
    assert [name for name in ["index", *PAGES] if not (site / f"{name}.html").is_file()] == []


def test_the_api_is_taken_from_docstrings(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in ("silodp.federation.Federation", "silodp.mechanism.Mechanism", "silodp.runs.training.train"):
        assert f'id="{name}"' in page


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?([^\"' >]+)", text)
        loaded += re.findall(r"<link\b[^>]*\bhref=[\"']?([^\"' >]+)", text)
        assert [one for one in loaded if re.match(r"(?:https?:)?//", one)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", sheet.read_text(encoding="utf-8")), (
            sheet.name
        )
