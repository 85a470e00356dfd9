"""A small valid object of each kind; callers set the names."""

from __future__ import annotations

from typing import Any

LABELS = {"app": "x"}
POD = {"containers": [{"name": "c", "image": "busybox", "env": [{"name": "A", "value": "b"}]}]}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": POD}
SELECTOR = {"matchLabels": LABELS}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
ROLE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
SUBJECT = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
RBAC = "rbac.authorization.k8s.io"
PROPERTIES = {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}
DEFINITION = {
    "group": "shop.example.com",
    "scope": "Namespaced",
    "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
    "versions": [
        {
            "name": "v1",
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": PROPERTIES}},
        }
    ],
}

SAMPLES: dict[str, dict[str, Any]] = {
    "ConfigMap": {"data": {"a": "1"}},
    "Secret": {"data": {"a": "MQ=="}, "type": "Opaque"},
    "Namespace": {"spec": {}},
    "ServiceAccount": {},
    "Pod": {"metadata": {"labels": LABELS}, "spec": POD},
    "PodTemplate": {"template": TEMPLATE},
    "Service": {"spec": {"selector": LABELS, "ports": [{"port": 80, "protocol": "TCP"}]}},
    "Endpoints": {"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]},
    "Event": {
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"},
        "reason": "Why",
        "message": "because",
        "type": "Normal",
        "source": {"component": "x"},
    },
    "Node": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    "PersistentVolumeClaim": {"spec": CLAIM},
    "PersistentVolume": {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d.example.com", "volumeHandle": "v"},
        }
    },
    "StorageClass": {"provisioner": "d.example.com", "parameters": {"a": "b"}},
    "VolumeAttachment": {
        "spec": {"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "a"}}
    },
    "CSIDriver": {"spec": {"attachRequired": True}},
    "CSINode": {"spec": {"drivers": [{"name": "d.example.com", "nodeID": "n", "topologyKeys": []}]}},
    "CSIStorageCapacity": {"storageClassName": "standard", "capacity": "1Gi"},
    "VolumeAttributesClass": {"driverName": "d.example.com", "parameters": {"a": "b"}},
    "Deployment": {"spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE}},
    "ReplicaSet": {"spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE}},
    "DaemonSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "StatefulSet": {"spec": {"serviceName": "x", "selector": SELECTOR, "template": TEMPLATE}},
    "ReplicationController": {"spec": {"replicas": 1, "selector": LABELS, "template": TEMPLATE}},
    "ControllerRevision": {"revision": 1, "data": {"a": 1}},
    "Job": {"spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}}},
    "CronJob": {
        "spec": {
            "schedule": "*/5 * * * *",
            "jobTemplate": {"spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}}},
        }
    },
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": SELECTOR}},
    "PriorityClass": {"value": 100},
    "RuntimeClass": {"handler": "runc"},
    "Lease": {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}},
    "Role": {"rules": [ROLE]},
    "ClusterRole": {"rules": [ROLE]},
    "RoleBinding": {"subjects": [SUBJECT], "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "a"}},
    "ClusterRoleBinding": {
        "subjects": [SUBJECT],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "a"},
    },
    "CustomResourceDefinition": {"metadata": {"name": "widgets.shop.example.com"}, "spec": DEFINITION},
    "Gadget": {"spec": {"size": 1, "parts": [{"name": "a"}]}},
    "Eviction": {"metadata": {}},
    "Binding": {"target": {"kind": "Node", "name": "worker-1"}},
    "Scale": {"spec": {"replicas": 2}},
    "TokenRequest": {"spec": {"expirationSeconds": 600, "audiences": []}},
    "SubjectAccessReview": {
        "spec": {"user": "jane", "resourceAttributes": {"verb": "get", "resource": "pods"}}
    },
    "TokenReview": {"spec": {"token": "x"}},
}
