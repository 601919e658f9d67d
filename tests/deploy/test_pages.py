"""The live pages as people meet them: served on loopback, read in Chromium, and asked by strangers."""

import http.client
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import Browser
from conftest import Killed, kill_after
from network import Federation, priced
from selenium.webdriver.support.ui import WebDriverWait

from silodp import Experiment
from silodp.deploy.limits import Limits
from silodp.deploy.pages import HOSTS, serve_coordinator_page, serve_site_page
from silodp.runs.wording import show_epsilon

pytestmark = pytest.mark.waits

NAME = "hospital-0"
ODD = '<script>document.title="owned"</script><img src=x onerror=alert(1)>"\'&amp;'
OWN = Limits(epsilon=8.0, validation_metrics=True)


@dataclass
class Stage:
    """A kit whose run can be taken a round further, and the addresses of its pages."""

    hospitals: Federation
    kit: Path
    experiment: Experiment
    coordinator: str = ""
    site: str = ""

    @property
    def run(self) -> Path:
        return self.kit / "coordinator" / "runs" / "tiny-1"

    def train(self, until: int) -> None:
        """So far that this round is done, and then killed."""
        with suppress(Killed):
            if self.run.exists():
                self.hospitals.resume(out=self.run, on_round=kill_after(until))
            else:
                self.run.parent.mkdir()
                self.hospitals.run(self.experiment, out=self.run, on_round=kill_after(until))


@pytest.fixture
def stage(experiment: Experiment, tmp_path: Path) -> Iterator[Stage]:
    hospitals = Federation(tmp_path, OWN)
    kit = hospitals.kit(tmp_path / "kit")
    for path in kit.glob("hospitals/*/site.toml"):
        path.write_text(path.read_text().replace("validation_metrics = false", "validation_metrics = true"))
    found = Stage(hospitals, kit, priced(experiment).change(privacy__noise="shared"))
    with ExitStack() as stack:
        found.coordinator = stack.enter_context(serve_coordinator_page(kit, 0)) or ""
        found.site = stack.enter_context(serve_site_page(kit / "hospitals" / NAME, 0)) or ""
        yield found


def ask(
    address: str, path: str = "/", method: str = "GET", host: str | None = None, *more: str
) -> tuple[int, str, http.client.HTTPMessage]:
    """One request; `host` in place of the address's own, and `more` of them beside it."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name in (place.netloc if host is None else host, *more):
            connection.putheader("Host", name)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def figures(address: str) -> Any:
    return json.loads(ask(address, "/status.json")[1])


def texts(browser: Browser, selector: str) -> list[str]:
    """What a person sees, at one moment: the page may be about to change."""
    script = (
        "return [...document.querySelectorAll({})].map(one => one.checkVisibility() ? one.innerText : '')"
    )
    found: list[str] = browser.run(script.format(json.dumps(selector)))
    return found


def text(browser: Browser, selector: str) -> str:
    return "\n".join(texts(browser, selector))


def tiles(browser: Browser) -> dict[str, str]:
    found = texts(browser, ".tiles dt, .tiles dd:not(.about)")
    return dict(zip(found[::2], found[1::2], strict=True))


def test_the_coordinators_page_says_what_status_says_and_follows_a_run_without_being_loaded_again(
    stage: Stage, browser: Browser
) -> None:
    browser.open(stage.coordinator)
    assert "No run has begun yet." in text(browser, "main")
    assert "Its SuperLink does not answer" in text(browser, "#needs")
    browser.run("window.mark = document.querySelector('#refused'); window.kept = true")
    stage.train(until=1)
    WebDriverWait(browser.driver, 60).until(lambda _: tiles(browser).get("Rounds") == "1")
    first = figures(stage.coordinator)["run"]["by_round"][-1]
    assert tiles(browser)["ε for a hospital"] == show_epsilon(first["hospital"])
    browser.run("window.mark = document.querySelector('#refused')")
    stage.train(until=2)
    WebDriverWait(browser.driver, 60).until(lambda _: tiles(browser).get("Rounds") == "2")
    assert browser.run("return window.kept === true"), "the page was not loaded again"
    assert browser.run("return document.contains(window.mark)"), "what is the same stays as it is"
    status = figures(stage.coordinator)
    last = status["run"]["by_round"][-1]
    assert tiles(browser) == {
        "Rounds": "2",
        "ε for a hospital": show_epsilon(last["hospital"]),
        "ε for an intermediary": show_epsilon(last["intermediary"]),
        "Dice on validation images": f"{last['mean']:.3f}",
        "Hospitals connected": "–",
    }
    assert browser.chart("Dice on validation images")["ends"] == [f"{last['mean']:.3g}"]
    spent = browser.chart("ε after each round")
    assert (spent["ends"], len(spent["dots"]), len(spent["levels"])) == (
        [show_epsilon(last["hospital"])],
        2,
        1,
    )
    assert f"{show_epsilon(status['run']['budget']['spent'])} of it is spent" in text(browser, "#rounds")
    assert f"{show_epsilon(status['run']['against']['coordinator'])} against the coordinator" in text(
        browser, "#rounds"
    )
    assert "stopped after round 2 of 3" in text(browser, "#needs")
    assert texts(browser, "#hospitals tbody th") == [one["name"] for one in status["hospitals"]]
    assert "This page itself shows what no ε covers: Dice on validation images, by hospital" in text(
        browser, "#uncovered"
    )
    assert all(url.startswith((stage.coordinator, "data:,")) for url in browser.requests())
    assert browser.console() == []


def test_a_sites_page_says_what_status_says_and_follows_along(stage: Stage, browser: Browser) -> None:
    browser.open(stage.site)
    assert tiles(browser)["ε spent by this hospital"] == "0.0"
    assert "no agreement has been signed" in text(browser, "#runs")
    browser.run("window.kept = true")
    stage.train(until=1)
    stage.hospitals.sites[NAME].handle(b"nonsense")
    WebDriverWait(browser.driver, 60).until(
        lambda _: tiles(browser).get("Rounds answered") == "1"
        and "bytes that are none of silodp's" in text(browser, "#refused")
    )  # fmt: skip
    assert browser.run("return window.kept === true")
    status = figures(stage.site)
    (run,) = status["runs"]
    row = texts(browser, "#runs tbody td")
    seen = [show_epsilon(run["epsilon"][who]) for who in ("outside", "coordinator", "another_hospital")]
    assert row[:5] == ["1 of 3", *seen, "0.01"]
    assert tiles(browser)["ε spent by this hospital"] == show_epsilon(status["epsilon"])
    width = float(browser.run("return document.querySelector('#limit .full').getAttribute('width')"))
    assert width == pytest.approx(100 * status["epsilon"] / status["limits"]["epsilon"], abs=0.01)
    assert "asked for figures of a model" in text(browser, "#now")
    assert "Its last reply was a refusal" in text(browser, "#needs")
    assert "Validation and test figures" in text(browser, "#leaves")
    assert "validation and test figures" not in text(browser, "#leaves p"), "they are let out"
    assert browser.console() == []


def test_a_phone_needs_no_scrolling_sideways(stage: Stage, browser: Browser) -> None:
    stage.train(until=1)
    for address in (stage.coordinator, stage.site):
        browser.open(address, width=360)
        assert browser.run("return document.documentElement.scrollWidth") <= 360


def test_what_strangers_wrote_is_text(stage: Stage, browser: Browser) -> None:
    """Names, reasons and statements with markup in them, in every file that a stranger's words reach."""
    stage.train(until=1)
    line = json.dumps({"time": 1, "reason": ODD, "hospital": ODD, "asked": ODD})
    state = stage.kit / "hospitals" / NAME / "state"
    for path in (stage.kit / "coordinator" / "log" / "refusals.jsonl", state / "refusals.jsonl"):
        path.write_text(line + "\n")
    (state / "heard.json").write_text(json.dumps({"time": 1e99, "asked": ODD, "run": ODD}))
    metrics = stage.run / "metrics.jsonl"
    record = json.loads(metrics.read_text())
    record["absent"], record["validation"]["hospitals"][ODD] = {ODD: ODD}, {"dice": 0.5}
    metrics.write_text(json.dumps(record) + "\n")
    for address, selectors in (
        (stage.coordinator, ("#refused", "#absent")),
        (stage.site, ("#refused", "#now")),
    ):
        browser.open(address)
        assert all(ODD in text(browser, selector) for selector in selectors)
        assert browser.run("return document.title") != "owned"
        assert browser.run("return document.querySelectorAll('img, main script').length") == 0
        assert browser.console() == []
        policy = ask(address)[2]["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy


def test_scripts_that_are_not_the_pages_own_do_not_run(stage: Stage, browser: Browser) -> None:
    browser.open(stage.site)
    browser.run(
        "const one = document.createElement('script'); one.textContent = 'window.owned = true';"
        "document.body.append(one)"
    )
    assert browser.run("return window.owned === undefined")
    assert any("Content Security Policy" in line for line in browser.console())


def test_it_says_so_when_nobody_serves_it_any_more(stage: Stage, browser: Browser, tmp_path: Path) -> None:
    with serve_site_page(stage.kit / "hospitals" / NAME, 0) as address:
        assert address is not None
        browser.open(address)
        assert not text(browser, "#gone")
    WebDriverWait(browser.driver, 60).until(lambda _: "hears nothing any more" in text(browser, "#gone"))


def test_it_reads_without_scripts(stage: Stage) -> None:
    text = ask(stage.coordinator)[1]
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text
    assert "No run has begun yet." in text


def test_only_this_machine_is_answered_and_only_to_read(stage: Stage) -> None:
    port = urlsplit(stage.site).port
    for address in (stage.site, stage.coordinator):
        own = urlsplit(address).port
        for name in HOSTS:
            assert ask(address, host=f"{name}:{own}")[0] == 200
        for host in (
            "evil.example",
            f"evil.example:{own}",
            "127.0.0.1",
            f"127.0.0.1:{own}.evil.example",
            "",
            "*",
        ):
            for path in ("/", "/status.json"):
                code, text, _ = ask(address, path, host=host)
                assert (code, NAME in text) == (421, False), host
        assert ask(address, "/", "GET", f"localhost:{own}", "evil.example")[0] == 421
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
            assert ask(address, method=method)[0] == 405
        assert ask(address, method="BREW")[0] == 501
        for path in ("/../site.toml", "/site.toml", "/status.json/", "/?x", "http://127.0.0.1/"):
            assert ask(address, path)[0] == 404
        code, _, headers = ask(address, "/status.json")
        assert (code, headers["X-Content-Type-Options"], headers["Cache-Control"]) == (
            200,
            "nosniff",
            "no-store",
        )
        assert headers["Access-Control-Allow-Origin"] is None
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", port))  # another address of this machine: it is not listening there


def test_a_port_that_is_taken_costs_the_page_and_nothing_else(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    port = urlsplit(stage.site).port or 0
    with caplog.at_level(logging.WARNING, "silodp"), serve_coordinator_page(stage.kit, port) as address:
        assert address is None
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith(f"no page: port {port} of 127.0.0.1 is not available")
    assert ask(stage.site)[0] == 200


def test_a_damaged_file_is_told_on_the_page_and_ends_nothing(stage: Stage) -> None:
    ledger = stage.kit / "hospitals" / NAME / "state" / "ledger.jsonl"
    ledger.write_text("<b>nonsense</b>\n")
    with serve_site_page(stage.kit / "hospitals" / NAME, 0) as address:
        assert address is not None
        code, text, _ = ask(address)
        assert (code, "line 1: not a ledger entry; restore the file" in text) == (200, True)
        assert "not a ledger entry" in figures(address)["problem"]
        (stage.kit / "hospitals" / NAME / "site.toml").unlink()
    with pytest.raises(ValueError, match="there is no such file"), serve_site_page(ledger.parent, 0):
        pass
