"""Draw the picture of the README: the journey of a claim and a pod, as a cluster of this machine takes it.

    sudo python -m tools.journey_picture

Starts a cluster that records its steps, applies examples/01-claim-and-pod with kubectl, and writes the
diagram of `volplane journey` into docs/images/journey.svg.
"""

from __future__ import annotations

import shutil
import tempfile

import msgspec

from tools.compare import EXAMPLE, POD, ROOT, VOLPLANE, run
from volplane.explain.journey.diagram import render_svg
from volplane.explain.journey.model import Journey

PICTURE = ROOT / "docs" / "images" / "journey.svg"


def main() -> None:
    directory = tempfile.mkdtemp(prefix="journey-", dir="/var/tmp")
    cluster = ["--data-dir", directory]
    try:
        volplane("up", *cluster, "--nodes=1", "--journey-max-size=64Mi", "--detach")
        kubectl = ["kubectl", "--kubeconfig", f"{directory}/kubeconfig"]
        run(*kubectl, "apply", "-f", str(EXAMPLE))
        run(*kubectl, "wait", "--for=condition=Ready", "--timeout=60s", POD)
        data = volplane("journey", POD, *cluster, "-o", "json")
    finally:
        volplane("delete", "--yes", *cluster)
        shutil.rmtree(directory, ignore_errors=True)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(data))
    print(f"wrote {PICTURE}")


def draw(data: str) -> str:
    """The steps of the only journey, with the diagram's own style, for a light and a dark page."""
    (journey,) = msgspec.json.decode(data, type=list[Journey])
    return render_svg(journey.steps, f"Journey of {journey.subject}") + "\n"


def volplane(*words: str) -> str:
    return run(VOLPLANE, *words)


if __name__ == "__main__":
    main()
