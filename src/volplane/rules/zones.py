"""Names and ids of availability zones and regions."""

from __future__ import annotations


def region_of(zone: str) -> str:
    return zone[:-1]


def zone_id(zone: str) -> str:
    """`use1-az1` for `us-east-1a`. AWS shuffles the ids for each account; here they follow the letters."""
    region = region_of(zone)
    short = "".join(
        part[:3] if part.isalpha() and len(part) < 3 else part[0] for part in region.split("-")[:2]
    )
    return f"{short}{region[-1]}-az{ord(zone[-1]) - ord('a') + 1}"
