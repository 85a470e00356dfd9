"""`volplane doctor` on this machine, on others, and for clusters that are well or not."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.explain.test_explain_anywhere import run_verb
from tests.support.up import VOLPLANE, Up, environment
from volplane.explain import doctor
from volplane.explain.doctor import DoctorArea, check_machine


def ask(*words: str, home: Path, code: int) -> list[dict[str, object]]:
    done = subprocess.run(
        [VOLPLANE, "doctor", "-o", "json", *words],
        env={**environment(), "HOME": str(home), "KUBECONFIG": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_without_a_cluster_only_the_machine_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = ask(home=tmp_path, code=0)
    (cluster,) = [check for check in found if check["area"] == "cluster"]
    assert cluster["text"] == "not checked"
    assert "start a cluster with volplane up" in str(cluster["advice"])


@pytest.mark.parametrize(
    ("words", "place"), [(("--data-dir", "{home}/x"), "{home}/x"), (("--name", "x"), "{home}/.volplane-x")]
)
def test_a_cluster_that_is_asked_for_must_be_there(
    words: tuple[str, ...], place: str, tmp_path: Path
) -> None:
    asked = [word.format(home=tmp_path) for word in words]
    (cluster,) = [check for check in ask(*asked, home=tmp_path, code=3) if check["area"] == "cluster"]
    assert f"no cluster in {place.format(home=tmp_path)}:" in str(cluster["advice"])


def test_context_cluster_and_user_choose_in_the_kubeconfig(tmp_path: Path) -> None:
    """As for the other verbs: an entry that is not there is named."""
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "east", "user": "me"}}],
                "clusters": [{"name": "east", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "me", "user": {"token": "t"}}],
            }
        )
    )
    for section, known in (("context", "c"), ("cluster", "east"), ("user", "me")):
        words = ("--kubeconfig", str(config), f"--{section}", "other")
        (cluster,) = [check for check in ask(*words, home=tmp_path, code=3) if check["area"] == "cluster"]
        assert f"no {section} 'other'; there are: {known}" in str(cluster["text"])


def test_the_disk_of_the_named_cluster_is_checked(tmp_path: Path) -> None:
    (tmp_path / ".volplane-x").mkdir()
    texts = [str(check["text"]) for check in ask("--name", "x", home=tmp_path, code=3)]
    assert any(text.endswith(f"GiB free in {tmp_path}/.volplane-x") for text in texts)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with Up(nodes=1) as made:
        yield made


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_a_cluster_is_checked_while_it_runs_and_missed_when_it_does_not(up: Up, tmp_path: Path) -> None:
    words = ("--data-dir", str(up.directory))
    texts = [str(check["text"]) for check in ask(*words, home=tmp_path, code=0)]
    assert "1 of 1 nodes are ready" in texts
    assert "this user may read what explain needs" in texts
    assert "CSI drivers: ebs.csi.aws.com, efs.csi.aws.com" in texts
    assert any(text.startswith("default StorageClass: ") for text in texts)
    up.kubectl("create", "serviceaccount", "weak")
    token = up.kubectl("create", "token", "weak").strip()
    weak = tmp_path / "weak"
    shutil.copy(up.kubeconfig, weak)
    config = ("kubectl", "--kubeconfig", str(weak), "config")
    subprocess.run([*config, "set-credentials", "weak", f"--token={token}"], check=True)
    context = json.loads(subprocess.check_output([*config, "view", "-o", "json"]))["contexts"][0]["name"]
    subprocess.run([*config, "set-context", context, "--user=weak"], check=True)
    texts = [str(check["text"]) for check in ask("--kubeconfig", str(weak), home=tmp_path, code=3)]
    assert any(text.startswith("this user may not list nodes, pods") for text in texts)
    assert up.stop() == 0
    assert any("does not answer" in str(check["text"]) for check in ask(*words, home=tmp_path, code=3))


async def test_it_runs_on_any_operating_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    result = await run_verb("doctor")
    assert result.code == 0, result.shown
    assert not result.modules


def test_another_operating_system_is_told_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    (check,) = check_machine("/")
    assert "clusters run on Linux only; explain, journey and doctor work here" in check.advice
    assert list(doctor.check_rights()) == []


def test_an_old_kernel_and_a_full_disk_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "5.4.0-42-generic")
    monkeypatch.setattr(doctor, "FREE", 1 << 62)
    problems = [check for check in check_machine(str(tmp_path / "not" / "there")) if check.is_problem]
    assert {check.area for check in problems} == {DoctorArea.MACHINE}
    advice = " ".join(check.advice for check in problems)
    assert "use Linux 5.12 or newer" in advice
    assert "free some space" in advice
