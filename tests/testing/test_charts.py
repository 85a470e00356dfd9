"""A Helm chart as a driver: rendered by helm, and what is said where that is not possible."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import peers, sample_driver
from volplane.cli.test_driver import command
from volplane.cluster import helm_chart
from volplane.cluster.helm_chart import BadChart

CHART = {
    "Chart.yaml": "apiVersion: v2\nname: d\nversion: 0.1.0\nkubeVersion: '>=1.31.0-0'\n",
    "values.yaml": "image: registry.example.com/d\nname: wrong\nregistrar: true\n",
    "templates/driver.yaml": """
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: {{ .Values.name }}}
spec: {attachRequired: true}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d, namespace: {{ .Release.Namespace }}}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      containers:
      - {name: d, image: {{ .Values.image }}}
      {{- if .Values.registrar }}
      - name: registrar
        image: registry.k8s.io/sig-storage/csi-node-driver-registrar:v2
        args: [--csi-address=/csi/csi.sock, --kubelet-registration-path=/var/lib/kubelet/plugins/d/csi.sock]
        volumeMounts: [{name: socket, mountPath: /csi}]
      volumes:
      - {name: socket, hostPath: {path: /var/lib/kubelet/plugins/d}}
      {{- end }}
""",
    "templates/hook.yaml": """
apiVersion: v1
kind: Pod
metadata: {name: hook, annotations: {helm.sh/hook: test}}
spec: {containers: [{name: a, image: b}]}
""",
    "crds/thing.yaml": (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: x}\n"
    ),
}


def write_chart(place: Path) -> Path:
    for name, text in CHART.items():
        file = place / "chart" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (place / "values.yaml").write_text("name: sample.example.com\n")
    return place / "chart"


def write_helm(place: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program of this name, first on PATH."""
    (place / "bin").mkdir()
    (place / "bin" / "helm").write_text(f"#!/bin/sh\n{script}\n")
    (place / "bin" / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:/usr/bin:/bin")


@pytest.fixture
def real_helm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(peers.path('helm')).parent}:{os.environ['PATH']}")


@pytest.mark.peer("helm")
@pytest.mark.usefixtures("real_helm")
def test_a_chart_is_rendered_with_its_values(tmp_path: Path) -> None:
    chart = write_chart(tmp_path)
    objects = helm_chart.render(str(chart), [str(tmp_path / "values.yaml")])
    assert [(o["kind"], o["metadata"]["name"]) for o in objects] == [
        ("CustomResourceDefinition", "x"),
        ("DaemonSet", "d"),
        ("CSIDriver", "sample.example.com"),
    ]
    assert objects[1]["metadata"]["namespace"] == "kube-system"


@pytest.mark.peer("helm")
@pytest.mark.usefixtures("real_helm")
def test_an_error_of_a_template_is_told(tmp_path: Path) -> None:
    chart = write_chart(tmp_path)
    (chart / "templates" / "driver.yaml").write_text("{{ required `name is missing` .Values.no }}")
    with pytest.raises(BadChart, match="name is missing"):
        helm_chart.render(str(chart))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("helm")
@pytest.mark.usefixtures("real_helm")
def test_a_driver_is_tested_as_its_chart_deploys_it(tmp_path: Path) -> None:
    chart = write_chart(tmp_path)
    words = [
        "--chart",
        str(chart),
        "--values",
        str(tmp_path / "values.yaml"),
        "--json",
        str(tmp_path / "r.json"),
    ]
    words += [
        "--image",
        f"registry.example.com/d={sample_driver.command_line()}",
        "--focus",
        "^publish/data$",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "volplane", "test-driver", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["passed"] == 1


def test_helm_is_told_what_we_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = write_chart(tmp_path)
    script = 'printf "kind: A\\napiVersion: v1\\nwords: \\"$*\\"\\n"'
    write_helm(tmp_path, script, monkeypatch)
    (made,) = helm_chart.render(str(chart), [str(tmp_path / "values.yaml")])
    assert made["words"] == (
        f"template driver {chart} --namespace kube-system --include-crds --no-hooks --kube-version v1.35.8"
        " --api-versions snapshot.storage.k8s.io/v1 --api-versions groupsnapshot.storage.k8s.io/v1beta2"
        f" --values {tmp_path / 'values.yaml'}"
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Error: no such template' >&2; exit 1", "chart: Error: no such template"),
        ("exit 0", "renders no"),
    ],
    ids=["fails", "empty"],
)
def test_a_chart_that_cannot_be_rendered_says_why(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = write_chart(tmp_path)
    write_helm(tmp_path, script, monkeypatch)
    with pytest.raises(BadChart, match=said):
        helm_chart.render(str(chart))


@pytest.mark.root
@pytest.mark.parametrize("manifests", [False, True], ids=["alone", "with manifests"])
def test_what_a_chart_lacks_is_told_of_the_chart(
    manifests: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = write_chart(tmp_path)
    write_helm(tmp_path, 'printf "kind: ConfigMap\\napiVersion: v1\\nmetadata: {name: a}\\n"', monkeypatch)
    (tmp_path / "more.yaml").write_text("kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n")
    more = ["--manifest", str(tmp_path / "more.yaml")] if manifests else []
    done = CliRunner().invoke(command, ["--chart", str(chart), "--image", "a=/bin/true", *more])
    assert done.exit_code == 1
    text = str(done.exception) + done.output
    assert ("--manifest: " in text) is manifests
    assert ("--chart: " in text) is not manifests


@pytest.mark.root
def test_without_helm_another_way_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = write_chart(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(command, ["--chart", str(chart), "--image", "a=/bin/true"])
    assert done.exit_code == 1
    text = str(done.exception) + done.output
    assert (
        f"--chart: helm is not on PATH, and renders the chart; where it is, `helm template driver {chart}"
        in text
    )


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("directory", "/no does not exist"),
        ("Chart.yaml", "/chart is not a chart: it has no Chart.yaml"),
        ("values", "/no.yaml does not exist"),
    ],
)
def test_what_is_missing_is_named(missing: str, said: str, tmp_path: Path) -> None:
    chart, values = write_chart(tmp_path), tmp_path / "values.yaml"
    if missing == "directory":
        chart = tmp_path / "no"
    elif missing == "values":
        values = tmp_path / "no.yaml"
    else:
        (chart / "Chart.yaml").unlink()
    with pytest.raises(BadChart, match=f"^{re.escape(f'{tmp_path}{said}')}$"):
        helm_chart.render(str(chart), [str(values)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--chart", "c"), "--chart and --image must be given together"),
        (("--driver-command", "./b", "--values", "v"), "--values needs --chart"),
        (("--driver-command", "./b", "--chart", "c"), "give a driver"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2
    assert said in done.output
