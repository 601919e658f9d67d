"""Chromium for tests that look at pages as a person does."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By


class Browser:
    """Chromium, with what it said and asked for since a page was opened."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path | str, width: int = 1200) -> None:
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(page if isinstance(page, str) else page.resolve().as_uri())

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        lines = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [
            line["params"]["request"]["url"]
            for line in lines
            if line["method"] == "Network.requestWillBeSent"
        ]

    def text(self, selector: str) -> str:
        return "\n".join(found.text for found in self.driver.find_elements(By.CSS_SELECTOR, selector))

    def texts(self, selector: str) -> list[str]:
        return [found.text for found in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def chart(self, title: str) -> dict[str, Any]:
        """The marks of the first chart whose title has these words, in the units of its drawing."""
        charts = self.run(
            """
            return [...document.querySelectorAll('figure.plot')].map(figure => ({
                title: figure.querySelector('strong').textContent,
                about: figure.querySelector('.about').textContent,
                label: figure.querySelector('svg.chart').getAttribute('aria-label'),
                ticks: [...figure.querySelectorAll('svg.chart text[text-anchor=end]')].map(
                    text => [+text.textContent.replace(/,/g, ''), +text.getAttribute('y') - 4]),
                dots: [...figure.querySelectorAll('svg.chart circle.bold')].map(
                    dot => [dot.querySelector('title').textContent, +dot.getAttribute('cy')]),
                ends: [...figure.querySelectorAll('svg.chart text.end')].map(text => text.textContent),
                levels: [...figure.querySelectorAll('svg.chart path.level')].map(
                    path => +path.getAttribute('d').match(/ ([\\d.]+)H/)[1]),
            }))"""
        )
        return next(chart for chart in charts if title in chart["title"])


@contextmanager
def started(folder: Path) -> Iterator[Browser]:
    """A browser whose own files are in a folder."""
    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "make browser installs Chromium"
    assert driver_program, "make browser installs its driver"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
