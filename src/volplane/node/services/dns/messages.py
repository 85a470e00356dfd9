"""DNS packets, by dnslib: parse a question, render an answer. Imported with the first question."""

from __future__ import annotations

from ipaddress import IPv4Address

from dnslib import (
    CLASS,
    CNAME,
    EDNS0,
    OPCODE,
    PTR,
    QTYPE,
    RCODE,
    RR,
    SOA,
    SRV,
    TXT,
    A,
    DNSHeader,
    DNSRecord,
)
from msgspec import Struct

from volplane.node.services.dns.records import DnsAnswer
from volplane.node.services.dns.records import DnsRecord as Record

TTL = 5  # seconds: an address changes when a pod moves
SMALLEST, LARGEST = 512, 1232  # bytes of a reply in one datagram, without and with EDNS
HEADER = 12  # bytes


class DnsQuestion(Struct, frozen=True):
    name: str  # in lower case, without the dot at its end
    type: str
    limit: int  # bytes of a reply in one datagram
    query: DNSRecord


class Malformed(Exception):
    """Not a question that can be answered; `reply` says so, if there is one."""

    def __init__(self, reply: bytes = b"") -> None:
        super().__init__()
        self.reply = reply


def parse(data: bytes) -> DnsQuestion:
    """Raises Malformed."""
    try:
        query = DNSRecord.parse(data)
    except Exception:  # whatever a hostile packet makes of the parser
        raise Malformed(_refuse(data, RCODE.FORMERR)) from None
    header = query.header
    if header.qr:
        raise Malformed
    if header.opcode != OPCODE.QUERY:
        raise Malformed(_refuse(data, RCODE.NOTIMP))
    if len(query.questions) != 1:
        raise Malformed(_refuse(data, RCODE.FORMERR))
    asked = query.questions[0]
    if asked.qclass != CLASS.IN:
        raise Malformed(_refuse(data, RCODE.REFUSED))
    sizes = [record.edns_len for record in query.ar if record.rtype == QTYPE.OPT]
    limit = min(max(sizes[0], SMALLEST), LARGEST) if sizes else SMALLEST
    return DnsQuestion(str(asked.qname).lower().rstrip("."), _type_name(asked.qtype), limit, query)


def _type_name(number: int) -> str:
    return str(QTYPE.get(number))


def render(question: DnsQuestion, answer: DnsAnswer, domain: str, limit: int = 0) -> bytes:
    """`limit`: bytes of the reply; more are left out, and the client asks again over TCP. 0: no limit."""
    reply = _reply(question)
    reply.header.rcode = getattr(RCODE, answer.result.value)
    reply.add_answer(*(_resource(record, question) for record in answer.records))
    reply.add_ar(*(_resource(record, question) for record in answer.additional))
    if not answer.records:  # how long the client may remember that there is none
        times = (1, 7200, 1800, 86400, TTL)
        reply.add_auth(
            RR(domain, QTYPE.SOA, ttl=TTL, rdata=SOA(f"ns.dns.{domain}", f"hostmaster.{domain}", times))
        )
    return _pack(reply, limit)


def refuse(question: DnsQuestion, rcode: str) -> bytes:
    reply = _reply(question)
    reply.header.aa = 0
    reply.header.rcode = getattr(RCODE, rcode)
    return bytes(reply.pack())


def _reply(question: DnsQuestion) -> DNSRecord:
    reply = question.query.reply()
    reply.header.ad = 0  # nothing here is signed
    if any(record.rtype == QTYPE.OPT for record in question.query.ar):
        reply.add_ar(EDNS0(udp_len=LARGEST))
    return reply


def _pack(reply: DNSRecord, limit: int) -> bytes:
    packed = bytes(reply.pack())
    if not limit or len(packed) <= limit:
        return packed
    reply.ar = [record for record in reply.ar if record.rtype == QTYPE.OPT]
    packed = bytes(reply.pack())
    if len(packed) > limit:
        reply.rr, reply.auth, reply.header.tc = [], [], 1
        packed = bytes(reply.pack())
    return packed


def _resource(record: Record, question: DnsQuestion) -> RR:
    # In the letters of the question: some clients compare them.
    name = question.query.questions[0].qname if record.name == question.name else record.name
    match record.type:
        case "A":
            data = A(tuple(IPv4Address(record.value).packed))
        case "SRV":
            data = SRV(0, 100, record.port, record.value)
        case "PTR":
            data = PTR(record.value)
        case "CNAME":
            data = CNAME(record.value)
        case _:
            data = TXT(record.value)
    return RR(name, getattr(QTYPE, record.type), ttl=TTL, rdata=data)


def _refuse(data: bytes, rcode: int) -> bytes:
    if len(data) < HEADER or data[2] & 0x80:  # too short, or itself a reply
        return b""
    header = DNSHeader(id=int.from_bytes(data[:2]), qr=1, rcode=rcode)
    return bytes(DNSRecord(header).pack())
