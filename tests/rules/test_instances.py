"""Facts of instances and zones that are derived from their names."""

from __future__ import annotations

import re

import pytest

from volplane.rules.instances import interface_attachment_id, interface_id, mac_address
from volplane.rules.zones import region_of, zone_id


def test_an_instance_has_an_interface_of_its_own() -> None:
    made = [(mac_address(i), interface_id(i), interface_attachment_id(i)) for i in ("i-1", "i-2")]
    assert len({text for each in made for text in each}) == 6
    for mac, interface, attachment in made:
        assert re.fullmatch("0e(:[0-9a-f]{2}){5}", mac)
        assert re.fullmatch("eni-[0-9a-f]{17}", interface)
        assert attachment == interface.replace("eni-", "eni-attach-")


@pytest.mark.parametrize(
    ("zone", "region", "id"),
    [
        ("us-east-1a", "us-east-1", "use1-az1"),
        ("us-east-1c", "us-east-1", "use1-az3"),
        ("eu-central-1b", "eu-central-1", "euc1-az2"),
    ],
)
def test_the_id_of_a_zone(zone: str, region: str, id: str) -> None:
    assert (region_of(zone), zone_id(zone)) == (region, id)
