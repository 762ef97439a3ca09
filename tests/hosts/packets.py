"""What the switch of hosts.py reads in a packet of IPv4, and the packet by which a host refuses a connection.

Pure: bytes in, bytes out. Other protocols than TCP over IPv4 are only told apart."""

import socket
import struct
import typing

TCP = 6
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16


class Segment(typing.NamedTuple):
    """A TCP segment. payload: how many bytes of data it carries."""

    source: bytes
    target: bytes
    source_port: int
    target_port: int
    sequence: int
    acknowledged: int
    flags: int
    payload: int

    @property
    def opens(self) -> bool:
        """Is it the first one of a connection?"""
        return self.flags & (SYN | ACK | RST) == SYN

    @property
    def connection(self) -> frozenset:
        """The same for both directions."""
        return frozenset(((self.source, self.source_port), (self.target, self.target_port)))


def addresses(packet: bytes) -> tuple[bytes, bytes] | None:
    """Source and target, four bytes each; None: not IPv4."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    return packet[12:16], packet[16:20]


def segment(packet: bytes) -> Segment | None:
    """None: not TCP, or a later fragment."""
    if packet[9] != TCP or struct.unpack_from(">H", packet, 6)[0] & 0x1FFF:
        return None
    at = (packet[0] & 15) * 4
    if len(packet) < at + 20:
        return None
    source_port, target_port, sequence, acknowledged, offset, flags = struct.unpack_from(">HHIIBB", packet, at)
    payload = struct.unpack_from(">H", packet, 2)[0] - at - (offset >> 4) * 4
    return Segment(packet[12:16], packet[16:20], source_port, target_port, sequence, acknowledged, flags, payload)


def checksum(data: bytes) -> int:
    """RFC 1071."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def refusal(of: Segment) -> bytes:
    """The packet with RST that answers this segment, as RFC 9293 (3.5.2) has it for a connection that does not exist."""
    if of.flags & ACK:
        sequence, acknowledged, flags = of.acknowledged, 0, RST
    else:
        length = of.payload + bool(of.flags & SYN) + bool(of.flags & FIN)
        sequence, acknowledged, flags = 0, (of.sequence + length) & 0xFFFFFFFF, RST | ACK

    def tcp(check: int) -> bytes:
        return struct.pack(">HHIIBBHHH", of.target_port, of.source_port, sequence, acknowledged, 5 << 4, flags, 0, check, 0)

    def ip(check: int) -> bytes:
        return struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, TCP, check, of.target, of.source)

    pseudo = of.target + of.source + struct.pack(">BBH", 0, TCP, 20)
    return ip(checksum(ip(0))) + tcp(checksum(pseudo + tcp(0)))


def text(address: bytes) -> str:
    return socket.inet_ntoa(address)
