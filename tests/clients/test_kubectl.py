"""kubectl on objects: the output of each command, for correct and for wrong input."""

from __future__ import annotations

import itertools
import json
import re
from functools import partial
from pathlib import Path

import pytest

from tests.support.kubectl import Kubectl
from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]


def config_map(name: str, **data: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, shortNames: [wd], listKind: WidgetList}
  versions:
    - name: v1
      served: true
      storage: true
      additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
      schema:
        openAPIV3Schema:
          type: object
          description: A thing that the shop sells.
          properties:
            spec:
              type: object
              required: [size]
              properties: {size: {type: integer, minimum: 1, description: How big it is.}}
"""


# --- apply, create, replace


def test_apply_creates_leaves_and_configures(kubectl: Kubectl) -> None:
    assert kubectl.apply(config_map("applied", a="1")) == "configmap/applied created\n"
    assert kubectl.apply(config_map("applied", a="1")) == "configmap/applied unchanged\n"
    assert kubectl.apply(config_map("applied", b="2")) == "configmap/applied configured\n"
    assert json.loads(kubectl.value(".data", "cm", "applied")) == {
        "b": "2"
    }  # what is not applied any more goes


def test_apply_takes_a_folder_and_prunes_what_is_no_longer_in_it(kubectl: Kubectl, tmp_path: Path) -> None:
    for name in ("one", "two"):
        labelled = json.loads(config_map(f"folder-{name}", a="1"))
        labelled["metadata"]["labels"] = {"from": "folder"}
        (tmp_path / f"{name}.json").write_text(json.dumps(labelled))
    prune: tuple[str, ...] = ("--prune", "-l", "from=folder")
    if kubectl.minor > 26:
        prune += ("--prune-allowlist=core/v1/ConfigMap",)
    else:
        prune += ("--prune-whitelist=core/v1/ConfigMap",)
    output = kubectl("apply", "-f", str(tmp_path), *prune)
    assert output == "configmap/folder-one created\nconfigmap/folder-two created\n"
    (tmp_path / "two.json").unlink()
    output = kubectl("apply", "-f", str(tmp_path), *prune)
    assert output == "configmap/folder-one unchanged\nconfigmap/folder-two pruned\n"


def test_apply_refuses_a_field_that_does_not_exist(kubectl: Kubectl) -> None:
    wrong = config_map("wrong").replace('"data"', '"dat"')
    output = kubectl.fails("apply", "-f", "-", stdin=wrong)
    assert 'unknown field "dat"' in output
    assert 'configmaps "wrong" not found' in kubectl.fails("get", "configmap", "wrong")
    assert kubectl.apply(wrong, "--validate=false") == "configmap/wrong created\n"


def test_apply_refuses_what_cannot_be_read(kubectl: Kubectl) -> None:
    assert "error converting YAML to JSON" in kubectl.fails("apply", "-f", "-", stdin="a: [")
    unknown = "apiVersion: nowhere.example.com/v1\nkind: Nothing\nmetadata: {name: x}\n"
    output = kubectl.fails("apply", "-f", "-", stdin=unknown)
    assert 'no matches for kind "Nothing" in version "nowhere.example.com/v1"' in output
    assert 'the path "no-such-file" does not exist' in kubectl.fails("apply", "-f", "no-such-file")


def test_apply_on_the_server_tells_conflicts_and_may_be_forced(kubectl: Kubectl) -> None:
    def apply_value(manager: str, value: str, *words: str, fails: bool = False) -> str:
        options = ("--server-side", "--field-manager", manager, "-f", "-", *words)
        ask = kubectl.fails if fails else kubectl
        return ask("apply", *options, stdin=config_map("shared", a=value))

    assert apply_value("first", "1") == "configmap/shared serverside-applied\n"
    assert apply_value("first", "2") == "configmap/shared serverside-applied\n"
    conflict = apply_value("second", "3", fails=True)
    assert 'Apply failed with 1 conflict: conflict with "first": .data.a' in conflict
    assert kubectl.value(".data.a", "cm", "shared") == "2"
    assert apply_value("second", "3", "--force-conflicts") == "configmap/shared serverside-applied\n"
    assert kubectl.value(".data.a", "cm", "shared") == "3"
    managers = kubectl.value(".metadata.managedFields[*].manager", "cm", "shared", *kubectl_managed(kubectl))
    assert managers.split() == ["second"]


def kubectl_managed(kubectl: Kubectl) -> tuple[str, ...]:
    return ("--show-managed-fields",) if kubectl.minor >= 21 else ()


def test_create_of_every_sort_a_user_types(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("content")
    created = {
        f"configmap made --from-literal=a=1 --from-file={tmp_path}/file.txt": "configmap/made",
        "secret generic hidden --from-literal=word=open": "secret/hidden",
        "serviceaccount robot": "serviceaccount/robot",
        "role reader --verb=get --resource=pods": "role.rbac.authorization.k8s.io/reader",
        "rolebinding reads --role=reader --serviceaccount=default:robot": (
            "rolebinding.rbac.authorization.k8s.io/reads"
        ),
        "deployment empty --image=busybox --replicas=0": "deployment.apps/empty",
        "poddisruptionbudget two --selector=app=x --min-available=2": "poddisruptionbudget.policy/two",
    }
    for words, name in created.items():
        if kubectl.minor < 21 and words.startswith("poddisruptionbudget"):
            continue  # it speaks policy/v1beta1 only
        assert kubectl("create", *words.split()) == f"{name} created\n"
    assert json.loads(kubectl.value(".data", "cm", "made")) == {"a": "1", "file.txt": "content"}
    assert kubectl.value(".data.word", "secret", "hidden") == "b3Blbg=="
    output = kubectl.fails("create", "configmap", "made")
    assert 'configmaps "made" already exists' in output
    assert "(server dry run)" in kubectl("create", "configmap", "dry", "--dry-run=server")
    assert 'configmaps "dry" not found' in kubectl.fails("get", "configmap", "dry")
    assert 'metadata.name: Invalid value: "Bad_Name"' in kubectl.fails("create", "configmap", "Bad_Name")


def test_create_in_a_namespace_that_does_not_exist(kubectl: Kubectl) -> None:
    output = kubectl.fails("create", "configmap", "x", "-n", "nowhere")
    assert 'namespaces "nowhere" not found' in output


def test_replace_wants_the_newest_version_or_none(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("replaced", a="1"))
    old = kubectl("get", "cm", "replaced", "-o", "json")
    assert (
        kubectl("replace", "-f", "-", stdin=config_map("replaced", b="2")) == "configmap/replaced replaced\n"
    )
    assert json.loads(kubectl.value(".data", "cm", "replaced")) == {"b": "2"}
    output = kubectl.fails("replace", "-f", "-", stdin=old)
    assert "the object has been modified; please apply your changes to the latest version" in output
    assert "not found" in kubectl.fails("replace", "-f", "-", stdin=config_map("never-there"))
    before = kubectl.value(".metadata.uid", "cm", "replaced")
    output = kubectl("replace", "--force", "-f", "-", stdin=config_map("replaced", c="3"))
    assert output == f'configmap "replaced" deleted{_from(kubectl)}\nconfigmap/replaced replaced\n'
    assert kubectl.value(".metadata.uid", "cm", "replaced") != before


# --- get, describe, explain


def test_get_in_every_form(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("shown", a="1", b="2"))
    kubectl("label", "cm", "shown", "colour=red")
    table = kubectl("get", "cm", "shown")
    assert re.fullmatch(r"NAME +DATA +AGE\nshown +2 +\d+s\n", table)
    assert "colour=red" in kubectl("get", "cm", "shown", "--show-labels")
    assert kubectl("get", "cm", "-l", "colour=red", "--no-headers").split()[:2] == ["shown", "2"]
    assert kubectl("get", "cm", "--field-selector=metadata.name=shown", "-o", "name") == "configmap/shown\n"
    assert '\n  a: "1"\n' in kubectl("get", "cm", "shown", "-o", "yaml")
    assert kubectl("get", "cm", "shown", "-o", "jsonpath={.data.a}-{.data.b}") == "1-2"
    columns = "custom-columns=WHO:.metadata.name,WHAT:.data.b,LOST:.data.none"
    assert kubectl("get", "cm", "shown", "-o", columns).split() == [
        "WHO",
        "WHAT",
        "LOST",
        "shown",
        "2",
        "<none>",
    ]
    template = "go-template={{range $k, $v := .data}}{{$k}}={{$v}};{{end}}"
    assert kubectl("get", "cm", "shown", "-o", template) == "a=1;b=2;"
    sort = ("--sort-by=.metadata.name", "-o", "name")
    names = kubectl("get", "cm", *sort).split()
    assert names == sorted(names)
    assert "configmap/shown" in names
    wide = kubectl("get", "nodes", "-o", "wide").splitlines()
    assert wide[0].split()[:5] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert "CONTAINER-RUNTIME" in wide[0]
    assert "Debian" in wide[1]
    everywhere = kubectl("get", "cm", "-A")
    assert everywhere.startswith("NAMESPACE ")
    assert "kube-root-ca.crt" in everywhere
    both = kubectl("get", "cm/shown", "serviceaccount/default", "-o", "name")
    assert both == "configmap/shown\nserviceaccount/default\n"


def test_get_of_what_is_not_there(kubectl: Kubectl) -> None:
    output = kubectl.fails("get", "configmap", "missing")
    assert output == 'Error from server (NotFound): configmaps "missing" not found\n'
    assert 'the server doesn\'t have a resource type "nonsense"' in kubectl.fails("get", "nonsense")
    assert kubectl.run("get", "pvc").stderr == f"No resources found in {kubectl.namespace} namespace.\n"
    output = kubectl.fails("get", "cm", "-l", "a=(")
    assert "unable to parse requirement" in output
    output = kubectl.fails("get", "cm", "--field-selector=data.a=1")
    assert '"data.a" is not a known field selector: only "metadata.name", "metadata.namespace"' in output
    assert "field label not supported: spec.x" in kubectl.fails("get", "pods", "--field-selector=spec.x=1")


def test_get_follows_changes(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("followed", a="1"))
    with kubectl.start("get", "cm", "followed", "-w", "-o", "jsonpath={.data.a}{'\\n'}") as seen:
        assert seen.line() == "1"
        for value in ("2", "3"):
            kubectl("patch", "cm", "followed", "-p", json.dumps({"data": {"a": value}}))
            assert seen.line() == value
    with kubectl.start("get", "cm", "--watch-only", "--output-watch-events") as seen:
        # It says nothing until something happens: write until it has seen a write.
        pokes = itertools.count()
        wait_until("the watch is there", lambda: seen.has_more() or _poke(kubectl, next(pokes)))
        assert seen.line().split() == ["EVENT", "NAME", "DATA", "AGE"]
        assert seen.line().split()[:2] in (["ADDED", "followed"], ["MODIFIED", "followed"])
        kubectl("delete", "cm", "followed")
        seen.until("DELETED")


def _poke(kubectl: Kubectl, number: int) -> bool:
    kubectl("annotate", "cm", "followed", "--overwrite", f"poke={number}")
    return False


def test_describe_tells_the_whole_story(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("told", greeting="hello"))
    described = kubectl("describe", "configmap", "told")
    assert re.search(r"Name: +told\nNamespace: +" + kubectl.namespace, described)
    assert "greeting:\n----\nhello\n" in described
    node = kubectl("describe", "node", "worker-1")
    for words in ("Taints:", "Ready ", "KubeletReady", "Capacity:", "Allocatable:", "Non-terminated Pods:"):
        assert words in node, node
    assert "ebs-csi-node-" in node
    klass = kubectl("describe", "storageclass", "standard")
    assert re.search(r"Provisioner: +ebs\.csi\.aws\.com", klass)
    assert re.search(r"VolumeBindingMode: +Immediate", klass)
    assert re.search(r"Status: +Active", kubectl("describe", "namespace", kubectl.namespace))
    assert "Replicas:" in kubectl("describe", "deployment", "-n", "kube-system", "ebs-csi-controller")
    output = kubectl.fails("describe", "configmap", "missing")
    assert output == 'Error from server (NotFound): configmaps "missing" not found\n'


def test_explain_knows_fields_of_built_in_and_custom_kinds(kubectl: Kubectl) -> None:
    claims = kubectl("explain", "pvc.spec")
    assert re.search(r"KIND: +PersistentVolumeClaim\nVERSION: +v1", claims)
    assert re.search(r"storageClassName\s+<string>", claims)
    assert re.search(r"accessModes\s+<\[\]string>", claims)
    deep = kubectl("explain", "pod.spec.containers.volumeMounts", "--recursive")
    assert re.search(r"mountPath\s+<string>", deep)
    kubectl.apply(WIDGETS)
    kubectl("wait", "--for=condition=Established", "crd/widgets.shop.example.com", "--timeout=60s")
    wait_until("its schema is published", lambda: kubectl.run("explain", "widget.spec.size").returncode == 0)
    assert "How big it is." in kubectl("explain", "widget.spec.size")
    output = kubectl.fails("explain", "pod.spec.nothing")
    assert 'field "nothing" does not exist' in output


# --- patch, edit, label, annotate


def test_patch_in_three_ways(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("patched", a="1", b="2"))
    said = "configmap/patched patched\n"
    assert kubectl("patch", "cm", "patched", "-p", '{"data": {"a": "10"}}') == said
    assert kubectl("patch", "cm", "patched", "--type=merge", "-p", '{"data": {"b": null}}') == said
    ops = '[{"op": "test", "path": "/data/a", "value": "10"}, {"op": "add", "path": "/data/c", "value": "3"}]'
    assert kubectl("patch", "cm", "patched", "--type=json", "-p", ops) == said
    assert json.loads(kubectl.value(".data", "cm", "patched")) == {"a": "10", "c": "3"}
    again = kubectl("patch", "cm", "patched", "--type=merge", "-p", '{"data": {"c": "3"}}')
    assert again == "configmap/patched patched (no change)\n"


def test_patches_that_cannot_be(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("unpatched", a="1"))
    failed = '[{"op": "test", "path": "/data/a", "value": "2"}]'
    output = kubectl.fails("patch", "cm", "unpatched", "--type=json", "-p", failed)
    assert output.startswith("The request is invalid")  # the server says no more, and neither does upstream's
    assert "error decoding patch: unexpected end of JSON input" in kubectl.fails(
        "patch", "cm", "unpatched", "-p", '{"data": '
    )
    assert "not found" in kubectl.fails("patch", "cm", "missing", "-p", "{}")
    output = kubectl.fails("patch", "cm", "unpatched", "-p", '{"data": {"a": 1}}')
    assert "cannot unmarshal number" in output
    output = kubectl.fails("patch", "storageclass", "standard", "-p", '{"provisioner": "other"}')
    assert "is invalid" in output
    assert "provisioner: Forbidden: updates to provisioner are forbidden" in output


def test_strategic_patch_merges_lists_by_their_keys(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "parts", "--image=first", "--replicas=0")
    add = '{"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "second"}]}}}}'
    kubectl("patch", "deployment", "parts", "-p", add)
    assert kubectl.value(".spec.template.spec.containers[*].image", "deploy", "parts") == "second first"
    kubectl("set", "image", "deployment/parts", "first=third")
    assert kubectl.value(".spec.template.spec.containers[*].image", "deploy", "parts") == "second third"


def test_edit_saves_what_the_editor_changed(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.apply(config_map("edited", a="before"))
    editor = "sed -i s/before/after/"
    assert kubectl("edit", "cm", "edited", EDITOR=editor) == "configmap/edited edited\n"
    assert kubectl.value(".data.a", "cm", "edited") == "after"
    assert kubectl.run("edit", "cm", "edited", EDITOR="true").stderr == "Edit cancelled, no changes made.\n"
    # An object that the server refuses comes back into the editor with the reason on top.
    count = tmp_path / "count"
    refused = tmp_path / "refused.sh"
    refused.write_text(
        f"#!/bin/sh\necho x >> {count}\n"
        f'if [ $(wc -l < {count}) = 1 ]; then sed -i "s/^  a: after/  a: after\\n  \\"b d\\": x/" "$1"\n'
        f'else cp "$1" {tmp_path}/shown; fi\n'
    )
    refused.chmod(0o755)
    done = kubectl.run("edit", "cm", "edited", EDITOR=str(refused))
    assert "a valid config key must consist of" in (tmp_path / "shown").read_text()
    assert done.returncode == 1
    assert kubectl.value(".data.a", "cm", "edited") == "after"


def test_label_and_annotate(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("marked"))
    assert kubectl("label", "cm", "marked", "app=one", "tier=back") == "configmap/marked labeled\n"
    output = kubectl.fails("label", "cm", "marked", "app=two")
    assert "'app' already has a value (one), and --overwrite is false" in output
    kubectl("label", "cm", "marked", "--overwrite", "app=two")
    kubectl("label", "cm", "marked", "tier-")
    assert json.loads(kubectl.value(".metadata.labels", "cm", "marked")) == {"app": "two"}
    assert "cm" not in kubectl("get", "cm", "-l", "app=one", "-o", "name")
    output = kubectl.fails("label", "cm", "marked", "app=not/valid", "--overwrite")
    assert "a valid label must be" in output or "invalid label value" in output
    assert kubectl("annotate", "cm", "marked", "why=because of that") == "configmap/marked annotated\n"
    assert kubectl.value(".metadata.annotations.why", "cm", "marked") == "because of that"
    kubectl("annotate", "cm", "marked", "why-")
    assert kubectl.value(".metadata.annotations.why", "cm", "marked") == ""


# --- delete, wait, diff


def test_delete_waits_for_finalizers(kubectl: Kubectl) -> None:
    held = json.loads(config_map("held"))
    held["metadata"]["finalizers"] = ["example.com/hold"]
    kubectl.apply(json.dumps(held))
    assert kubectl("delete", "cm", "held", "--wait=false") == f'configmap "held" deleted{_from(kubectl)}\n'
    assert kubectl.value(".metadata.deletionTimestamp", "cm", "held")
    output = kubectl.fails("wait", "--for=delete", "cm/held", "--timeout=1s")
    assert "timed out waiting for the condition on configmaps/held" in output
    with kubectl.start("delete", "cm", "held", "--wait=true") as deleting:
        deleting.until("deleted")
        kubectl("patch", "cm", "held", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        assert deleting.wait() == 0
    assert kubectl.fails("get", "cm", "held") == 'Error from server (NotFound): configmaps "held" not found\n'


def _from(kubectl: Kubectl) -> str:
    """Newer ones say from where."""
    return f" from {kubectl.namespace} namespace" if kubectl.minor >= 34 else ""


def test_delete_by_label_by_file_and_of_nothing(kubectl: Kubectl) -> None:
    for name in ("heap-1", "heap-2"):
        kubectl.apply(config_map(name))
        kubectl("label", "cm", name, "heap=yes")
    output = kubectl("delete", "cm", "-l", "heap=yes")
    assert [line.split()[1] for line in output.splitlines()] == ['"heap-1"', '"heap-2"']
    assert kubectl.fails("delete", "cm", "heap-1") == (
        'Error from server (NotFound): configmaps "heap-1" not found\n'
    )
    assert kubectl("delete", "cm", "heap-1", "--ignore-not-found") == ""
    kubectl.apply(config_map("by-file"))
    assert kubectl("delete", "-f", "-", stdin=config_map("by-file")).startswith('configmap "by-file" deleted')


def test_cascades(kubectl: Kubectl) -> None:
    def list_owned(owner: str) -> list[str]:
        return kubectl("get", "rs", "-l", f"app={owner}", "-o", "name").split()

    def is_empty(owner: str) -> bool:
        return not list_owned(owner)

    for owner in ("orphan", "foreground", "background"):
        kubectl("create", "deployment", owner, "--image=busybox", "--replicas=0")
        wait_until("its replica set", partial(list_owned, owner))
        kubectl("delete", "deployment", owner, f"--cascade={owner}")
        assert "not found" in kubectl.fails("get", "deployment", owner)
        if owner == "foreground":
            assert list_owned(owner) == []
        elif owner == "background":
            wait_until("the replica set goes", partial(is_empty, owner))
    (left,) = list_owned("orphan")
    assert kubectl.value(".metadata.ownerReferences", left) == ""
    kubectl("delete", left)


def test_cascades_of_custom_objects(kubectl: Kubectl) -> None:
    group = f"cascades-{kubectl.minor}.example.com"
    widgets = f"widgets.{group}"
    kubectl.apply(WIDGETS.replace("shop.example.com", group).replace("shortNames: [wd], ", ""))
    kubectl("wait", "--for=condition=Established", f"crd/{widgets}", "--timeout=60s")
    widget, config = (
        {"apiVersion": f"{group}/v1", "kind": "Widget"},
        {"apiVersion": "v1", "kind": "ConfigMap"},
    )

    def make(level: str, what: dict[str, str], above: str = "", owner: dict[str, str] | None = None) -> None:
        """One object per deletion mode; each is owned by the one above it."""
        items = []
        for way in ("orphan", "foreground", "background"):
            metadata: dict[str, object] = {"name": f"{level}-{way}"}
            if owner is not None:
                named = {**owner, "name": f"{above}-{way}", "uid": uids[f"{above}-{way}"]}
                metadata["ownerReferences"] = [{**named, "blockOwnerDeletion": True}]
            items.append({**what, "metadata": metadata, **({"spec": {"size": 1}} if what is widget else {})})
        kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        for item in json.loads(kubectl("get", f"{widgets},configmaps", "-o", "json"))["items"]:
            uids[item["metadata"]["name"]] = item["metadata"]["uid"]

    def list_left(way: str) -> set[str]:
        names = kubectl("get", f"{widgets},configmaps", "-o", "name").split()
        return {name.rpartition("/")[2].partition("-")[0] for name in names if name.endswith(f"-{way}")}

    uids: dict[str, str] = {}
    make("top", widget)
    make("middle", config, "top", widget)
    make("bottom", widget, "middle", config)
    kubectl("delete", widgets, "top-foreground", "--cascade=foreground")
    assert list_left("foreground") == set()
    kubectl("delete", widgets, "top-background", "--cascade=background")
    wait_until("what it owned goes", lambda: list_left("background") == set())
    kubectl("delete", widgets, "top-orphan", "--cascade=orphan")
    assert list_left("orphan") == {"middle", "bottom"}
    assert kubectl.value(".metadata.ownerReferences", "configmap", "middle-orphan") == ""
    kubectl("delete", "crd", widgets)


def test_wait_for_conditions_and_fields(kubectl: Kubectl) -> None:
    assert kubectl("wait", "--for=condition=Ready", "node/worker-1", "--timeout=60s") == (
        "node/worker-1 condition met\n"
    )
    output = kubectl.fails("wait", "--for=condition=Nonsense", "node/worker-1", "--timeout=1s")
    assert "timed out waiting for the condition on nodes/worker-1" in output
    assert 'nodes "none" not found' in kubectl.fails("wait", "--for=condition=Ready", "node/none")
    if kubectl.minor >= 23:
        path = "--for=jsonpath={.status.phase}=Active"
        output = kubectl("wait", path, f"namespace/{kubectl.namespace}", "--timeout=60s")
        assert output == f"namespace/{kubectl.namespace} condition met\n"


def test_diff_tells_by_its_exit_code(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("differs", a="1"))
    assert kubectl("diff", "-f", "-", stdin=config_map("differs", a="1")) == ""
    output = kubectl("diff", "-f", "-", stdin=config_map("differs", a="2"), code=1)
    assert '-  a: "1"\n+  a: "2"\n' in output
    assert kubectl.value(".data.a", "cm", "differs") == "1"
    new = kubectl("diff", "-f", "-", stdin=config_map("differs-new", a="2"), code=1)
    assert "+kind: ConfigMap" in new
    assert "not found" in kubectl.fails("get", "cm", "differs-new")
    sided = kubectl("diff", "--server-side", "-f", "-", stdin=config_map("differs-new", a="2"), code=1)
    assert "+kind: ConfigMap" in sided


# --- who may what, what is there


def test_auth_can_i(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert kubectl("auth", "can-i", "create", "pods", "--as", "nobody", code=1) == "no\n"
    node = ("--as=system:node:worker-1", "--as-group=system:nodes")
    assert kubectl("auth", "can-i", "patch", "nodes/worker-1", "--subresource=status", *node) == "yes\n"
    kubectl("create", "role", "lists", "--verb=list", "--resource=configmaps")
    kubectl("create", "rolebinding", "lists", "--role=lists", "--user=jane")
    wait_until("it counts", lambda: kubectl.run("auth", "can-i", "list", "cm", "--as=jane").returncode == 0)
    assert kubectl("auth", "can-i", "get", "cm", "--as=jane", code=1) == "no\n"
    assert re.search(r"configmaps +\[\] +\[\] +\[list\]", kubectl("auth", "can-i", "--list", "--as=jane"))
    output = kubectl.fails("get", "secrets", "--as=jane")
    assert output == (
        'Error from server (Forbidden): secrets is forbidden: User "jane" cannot list resource "secrets" '
        f'in API group "" in the namespace "{kubectl.namespace}"\n'
    )
    if kubectl.minor >= 28:
        assert "kubernetes-admin" in kubectl("auth", "whoami")


def test_what_the_server_has(kubectl: Kubectl, up: Up) -> None:
    kinds = kubectl("api-resources").splitlines()
    assert kinds[0].split() == ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]
    rows = [line.split() for line in kinds[1:]]
    assert ["persistentvolumeclaims", "pvc", "v1", "true", "PersistentVolumeClaim"] in rows
    assert ["volumeattachments", "storage.k8s.io/v1", "false", "VolumeAttachment"] in rows
    storage = kubectl("api-resources", "--api-group=storage.k8s.io", "--namespaced=false", "-o", "name")
    assert "storageclasses.storage.k8s.io" in storage.split()
    assert "configmaps" not in storage
    assert "apps/v1" in kubectl("api-versions").split()
    version = json.loads(kubectl("version", "-o", "json"))["serverVersion"]
    assert version["major"] == "1"
    assert (
        f"running at {kubectl('config', 'view', '-o', 'jsonpath={.clusters[0].cluster.server}')}"
        in re.sub("\x1b\\[[0-9;]*m", "", kubectl("cluster-info"))
    )
    assert kubectl("get", "--raw", "/readyz") == "ok"
    output = kubectl.fails("top", "nodes")
    assert "Metrics API not available" in output


def test_custom_resources(kubectl: Kubectl) -> None:
    kubectl.apply(WIDGETS)
    kubectl("wait", "--for=condition=Established", "crd/widgets.shop.example.com", "--timeout=60s")
    widget = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {{name: w}}\nspec: {{size: {}}}\n"
    assert kubectl.apply(widget.format(3)) == "widget.shop.example.com/w created\n"
    assert re.search(r"NAME +SIZE\nw +3\n", kubectl("get", "wd"))
    output = kubectl.fails("apply", "-f", "-", stdin=widget.format(0))
    assert "spec.size in body should be greater than or equal to 1" in output
    kubectl("patch", "widget", "w", "--type=merge", "-p", '{"spec": {"size": 4}}')
    assert kubectl.value(".spec.size", "widget", "w") == "4"
    output = kubectl.fails("patch", "widget", "w", "-p", '{"spec": {"size": 5}}')
    assert "the body of the request was in an unknown format" in output
    assert kubectl.apply(widget.format(5), "--server-side", "--force-conflicts").endswith(
        "serverside-applied\n"
    )
    kubectl("delete", "wd", "w")


def test_limits_of_old_ones_are_those_that_are_written_down(kubectl: Kubectl) -> None:
    if kubectl.minor > 20:
        pytest.skip("of Debian's 1.20")
    budget = ("create", "pdb", "old", "--selector=a=b", "--min-available=1")
    assert 'no matches for kind "PodDisruptionBudget" in version "policy/v1beta1"' in kubectl.fails(*budget)
    cron = ("create", "cronjob", "old", "--image=busybox", "--schedule=@daily", "--", "true")
    assert "the server could not find the requested resource" in kubectl.fails(*cron)
    assert 'unknown command "events"' in kubectl.fails("events")
