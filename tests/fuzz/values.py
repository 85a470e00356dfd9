"""The values in generated requests: some valid, many that have caused bugs elsewhere."""

from __future__ import annotations

from hypothesis import strategies as st

APPLY = "application/apply-patch+yaml"
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    APPLY,
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")

NAMES = st.sampled_from(["a", "b", "c"] * 6 + ["default", "kube-system", "worker-1"])
ODD_NAMES = st.sampled_from(
    [
        "",
        "..",
        ".",
        "A_b",
        "a/b",
        "%2e%2e",
        "ü",
        "a\x00b",
        "-",
        "null",
        "a?b",
        "a b",
        "😀",
        "a.b.c",
        "*",
        "a" * 300,
    ]
)
NAMESPACES = st.sampled_from(["default"] * 10 + ["other", "missing", "kube-system"])
TEXTS = st.one_of(
    st.sampled_from(
        ["", "a", "1", "1Gi", "-1", "100m", "1e400", "true", "null", "a=b", "50%", "$(X)", "a" * 2000]
    ),
    st.sampled_from(["Retain", "ReadWriteOnce", "Always", "standard", "example.com/x", "kubernetes.io/x"]),
    st.sampled_from(["2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z", "99999-99-99", "*/5 * * * *"]),
    st.sampled_from(["\x00", "\ud7ff\uffff", "👩‍👩‍👧", "/tmp/../x", "../../etc"]),
    st.text(max_size=8),
)
NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 3, 80, 65536, 2**31, 2**31 - 1, -(2**31), 2**63 - 1, 2**63, -(2**63), 2**64, 10**30]
)
FLOATS = st.sampled_from([0.5, -0.0, 1e308, 1.0, 3.0, 1e-300])
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, FLOATS, TEXTS)
KEYS = st.sampled_from(["a", "name", "spec", "$patch", "kind", "metadata", ""])
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
SELECTORS = st.one_of(
    st.sampled_from(["a=b", "a", "!a", "a in (b,c)", "a notin (", "a==b,c!=d", "", ",", "a>1", "=", "ü=1"]),
    st.sampled_from(["metadata.name=a", "metadata.namespace!=default", "spec.nodeName=", "x" * 500]),
    st.sampled_from(["status.phase=Pending", "metadata.name=a,metadata.name=b"]),
)
LONG = "9" * 5000  # more digits than int() accepts
QUERY = {
    "limit": st.sampled_from(["0", "1", "2", "500", "-1", "x", "", "99999999999999999999", "1.5", LONG]),
    "continue": st.sampled_from(["", "x", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ", "AAAA", "%", "=" * 40]),
    # No future revision: the server would wait for it.
    "resourceVersion": st.sampled_from(["", "0", "1", "5", "-1", "x", "99999999999999999999999", LONG]),
    "resourceVersionMatch": st.sampled_from(["", "Exact", "NotOlderThan", "Nonsense"]),
    "labelSelector": SELECTORS,
    "fieldSelector": SELECTORS,
    "timeoutSeconds": st.sampled_from(["0", "1", "-5", "x", "99999999999"]),
    "dryRun": st.sampled_from(["All", "All", "", "None", "all"]),
    "fieldManager": st.sampled_from(["me", "you", "", "x" * 200, "a\nb", "ü"]),
    "fieldValidation": st.sampled_from(["Strict", "Warn", "Ignore", "", "Loud"]),
    "propagationPolicy": st.sampled_from(["Orphan", "Foreground", "Background", "", "Upwards"]),
    "gracePeriodSeconds": st.sampled_from(["0", "1", "-1", "30", "x", "99999999999999999999", LONG]),
    "pretty": st.sampled_from(["true", "1", "x"]),
}
BOOLEANS = st.sampled_from(["true", "false", "1", "0", "", "maybe"])
ACCEPTS = st.one_of(
    st.just("application/json"),
    st.sampled_from(
        ["application/yaml", "*/*", "text/html", "application/vnd.kubernetes.protobuf", "", ";;;"]
    ),
    st.sampled_from(["Table", "PartialObjectMetadata", "PartialObjectMetadataList", "Nonsense"]).map(
        "application/json;as={};v=v1;g=meta.k8s.io".format
    ),
    st.sampled_from(["a/b/c,,", "application/vnd.kubernetes.protobuf,application/json"]),
)
TYPES = st.one_of(
    st.sampled_from(
        ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", *PATCHES]
    ),
    st.sampled_from(["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;;;=", "x", ""]),
    st.sampled_from(["text/plain", "application/apply-patch+cbor"]),
)
DEEP = 3000
HUGE = b'{"metadata":{"name":"a","generation":%s},"spec":{"replicas":%s}}' % ((LONG.encode(),) * 2)
BOMB = b"a: &a [x, x]\n" + b"".join(  # YAML that grows eightfold with every line
    b"%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n" % (n + 1, n + 1, n, n, n, n, n, n, n, n)
    for n in range(97, 110)
)
RUBBISH = st.one_of(
    st.sampled_from([b"", b"{", b"[]", b"null", b"1", b'"a"', b"\xff\xfe", b'{"a":1,"a":2}', b"{}" * 2]),
    st.sampled_from([b"k8s\x00", b"k8s\x00\x0a\xff", b"[" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP]),
    st.sampled_from([b'{"metadata":{"name":"\\ud800"}}', b"- a\n- b", b"a: b: c", BOMB, HUGE, b"---\n---\n"]),
    st.sampled_from([b"!!python/object:os.system {}", b"{'a': 1}", b'{"metadata": []}', b'{"spec": 1e999}']),
    st.sampled_from([b'{"kind":"Status"}', b'{"apiVersion":1,"kind":2}', b"\xef\xbb\xbf{}"]),
    st.just(b'{"metadata":{"name":null,"labels":{"a":null}}}'),
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda tail: b"k8s\x00" + tail),
)
