"""Somebody who looks at a cluster in the browser, and the objects that they look at."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.browser import NARROW, WIDE, Browser
from tests.support.up import VOLPLANE, Up

LIVE = "document.getElementById('connection').dataset.state === 'live'"


class Viewer:
    def __init__(self, up: Up, browser: Browser, screenshots: Path | None) -> None:
        self.up, self.browser, self._screenshots = up, browser, screenshots
        self.origin = self.prefix = ""

    def log_in(self) -> None:
        """Open the page with a new address; its other end asks `volplane ui` for it, as a user."""
        self.browser.open(issue_link(self.up))
        address = urlsplit(str(self.browser.run("return location.href")))
        self.origin = f"{address.scheme}://{address.netloc}"
        self.prefix = "/" + address.path.split("/")[1]

    def open(self, path: str) -> None:
        """Show a view, and wait until it gets updates."""
        if not self.origin:
            self.log_in()
        self.browser.open(f"{self.origin}{self.prefix}{path}")
        self.browser.wait_for(LIVE)

    def take_screenshots(self, name: str, *, selector: str = "") -> None:
        """Light, dark and narrow, if a directory for them is given."""
        if self._screenshots is None:
            return
        for scheme, (width, height) in (("light", WIDE), ("dark", WIDE), ("narrow", NARROW)):
            self.browser.resize(width, height)
            self.browser.use_colors("dark" if scheme == "dark" else "light")
            self.browser.screenshot(self._screenshots / f"{name}-{scheme}.png")
        self.browser.resize(*WIDE)

    def check_clean(self) -> None:
        """No script has failed, nothing was refused, and nothing was asked of another host."""
        assert self.browser.problems() == []
        assert self.browser.hosts() <= {urlsplit(self.origin).netloc}


def issue_link(up: Up) -> str:
    return run_verb(up, "ui").strip()


def run_verb(up: Up, *words: str) -> str:
    """A verb of the command line, for the cluster."""
    command = [VOLPLANE, *words, "--data-dir", str(up.directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def claim_and_pod(name: str, *, node: str = "", cls: str = "gp3", size: str = "1Gi") -> str:
    where = f"nodeSelector: {{kubernetes.io/hostname: {node}}}" if node else ""
    return f"""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: {cls}, resources: {{requests: {{storage: {size}}}}}}}
---
{pod(f"{name}-pod", [name], where)}"""


def pod(name: str, claims: Iterable[str], more: str = "") -> str:
    each = list(enumerate(claims))
    mounts = ", ".join(f"{{name: v{i}, mountPath: /data{i}}}" for i, _ in each)
    volumes = ", ".join(f"{{name: v{i}, persistentVolumeClaim: {{claimName: {claim}}}}}" for i, claim in each)
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  {more}
  containers: [{{name: c, image: busybox, command: [sleep, "1000000"], volumeMounts: [{mounts}]}}]
  volumes: [{volumes}]
---
"""
