"""Draw the picture of the README: the journey of a claim and a pod, as a cluster of this machine takes it.

    sudo python -m tools.journey_picture

Starts a cluster that records its steps, applies examples/01-claim-and-pod with kubectl, and writes the
diagram of `volplane journey` into docs/images/journey.svg.
"""

from __future__ import annotations

import re
import shutil
import tempfile

from tools.compare import EXAMPLE, POD, ROOT, VOLPLANE, run

PICTURE = ROOT / "docs" / "images" / "journey.svg"
# Of the page, for a picture of its own that is seen on a light and on a dark page.
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222 } rect { fill: #fff }
.lane { stroke: #8886; stroke-dasharray: 4 3 }
.arrow { stroke: #0b57d0; stroke-width: 1.5; fill: none; marker-end: url(#head) }
"""


def main() -> None:
    directory = tempfile.mkdtemp(prefix="journey-", dir="/var/tmp")
    cluster = ["--data-dir", directory]
    try:
        volplane("up", *cluster, "--nodes=1", "--journey-max-size=64Mi", "--detach")
        kubectl = ["kubectl", "--kubeconfig", f"{directory}/kubeconfig"]
        run(*kubectl, "apply", "-f", str(EXAMPLE))
        run(*kubectl, "wait", "--for=condition=Ready", "--timeout=60s", POD)
        page = volplane("journey", POD, *cluster, "-o", "html")
    finally:
        volplane("delete", "--yes", *cluster)
        shutil.rmtree(directory, ignore_errors=True)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(page))
    print(f"wrote {PICTURE}")


def draw(page: str) -> str:
    """The first diagram of the page, with its own style."""
    found = re.search(r"<svg.*?</svg>", page, re.DOTALL)
    assert found, page
    head = f'<style>{STYLE}</style><rect width="100%" height="100%"/>'
    return found[0].replace("<defs>", f"{head}<defs>", 1) + "\n"


def volplane(*words: str) -> str:
    return run(VOLPLANE, *words)


if __name__ == "__main__":
    main()
