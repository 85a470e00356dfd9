"""A real browser: Debian's chromium, driven by Selenium.

A `Browser` has an empty profile, speaks to loopback only, and records what it requests and what scripts log.
Waiting is event-driven: `wait_for` returns as soon as the page has what is asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.support import peers

PEERS = ("chromium", "chromedriver")
PATIENCE = 60.0  # seconds, for a page that never gets there
WIDE, NARROW = (1440, 900), (390, 844)
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en-US",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)

# Resolves when `condition`, an expression, is true; looks again after every change of the page.
_WAIT = """
const done = arguments[arguments.length - 1], holds = new Function("return (" + arguments[0] + ")");
const look = () => { let found; try { found = holds(); } catch (error) { found = false; } return found; };
if (look()) { done(true); return; }
const watch = new MutationObserver(() => { if (look()) { watch.disconnect(); done(true); } });
watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
"""


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page: `return document.title`."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, condition: str, what: str = "") -> None:
        """Wait until a JavaScript expression is true."""
        try:
            self.driver.execute_async_script(_WAIT, condition)
        except TimeoutException:
            shown = self.text("main")[:3000]
            raise AssertionError(f"{what or condition}: not true; the page shows:\n{shown}") from None

    def text(self, selector: str) -> str:
        found: str = self.run("return document.querySelector(arguments[0])?.innerText || ''", selector)
        return found

    def count(self, selector: str) -> int:
        found: int = self.run("return document.querySelectorAll(arguments[0]).length", selector)
        return found

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        """The text, the label or the id of the focused element."""
        script = """const e = document.activeElement;
            return e.innerText || e.getAttribute('aria-label') || e.id || e.nodeName"""
        found: str = self.run(script)
        return found

    # --- appearance

    def resize(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def use_colors(self, scheme: str) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.command("Emulation.setEmulatedMedia", features=features)

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(path))

    # --- what it did

    def requests(self) -> list[str]:
        """The addresses requested since the last call."""
        found = []
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def hosts(self) -> set[str]:
        """The hosts of these requests; the browser's own pages have none."""
        addresses = map(urlsplit, self.requests())
        return {each.netloc for each in addresses if each.scheme in ("http", "https", "ws", "wss")}

    def problems(self) -> list[str]:
        """Errors of scripts, refused loads, breaches of the content security policy since the last call."""
        found: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in found if entry["level"] in ("SEVERE", "WARNING")]


@contextmanager
def open_browser(*, width: int = WIDE[0], height: int = WIDE[1]) -> Iterator[Browser]:
    profile = Path(tempfile.mkdtemp(prefix="vp-browser-"))
    options = webdriver.ChromeOptions()
    options.binary_location = peers.path("chromium")
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(peers.path("chromedriver"), log_output=os.devnull)
    driver = webdriver.Chrome(options, service)
    try:
        driver.set_script_timeout(PATIENCE)
        driver.set_page_load_timeout(PATIENCE)
        yield Browser(driver)
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


__all__ = ["NARROW", "PEERS", "WIDE", "Browser", "Keys", "open_browser"]
