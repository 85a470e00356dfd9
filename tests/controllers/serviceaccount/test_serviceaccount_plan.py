"""The two objects that every namespace has."""

from __future__ import annotations

from msgspec import structs

from volplane.api.core import ConfigMap, ServiceAccount
from volplane.controllers.serviceaccount.plan import (
    ACCOUNT,
    ROOT_CA,
    CreateRootCA,
    CreateServiceAccount,
    ServiceAccountView,
    UpdateRootCA,
    plan,
)

EMPTY = ServiceAccountView("apps")


def test_a_new_namespace_gets_both() -> None:
    account, config = plan(structs.replace(EMPTY, root_ca="pem"))
    assert isinstance(account, CreateServiceAccount)
    assert (account.account.name, account.account.namespace) == (ACCOUNT, "apps")
    assert isinstance(config, CreateRootCA)
    assert (config.config.name, config.config.data) == (ROOT_CA, {"ca.crt": "pem"})


def test_without_a_root_certificate_there_is_only_the_account() -> None:
    assert [type(step) for step in plan(EMPTY)] == [CreateServiceAccount]


def test_a_new_root_certificate_replaces_the_old_one() -> None:
    view = ServiceAccountView("apps", ServiceAccount(), ConfigMap(data={"ca.crt": "old"}), "new")
    assert list(plan(view)) == [UpdateRootCA("new")]
    assert list(plan(structs.replace(view, root_ca="old"))) == []
