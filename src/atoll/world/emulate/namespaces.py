"""Network namespaces, each with a device whose packets this process reads and writes.  Uses system calls only; needs no
root where user namespaces are allowed.

The device is a tunnel (`tun`), or where tunnels cannot be opened one end of a virtual cable whose other end is in this
process's namespace (`veth`).

Only a process without threads that has not loaded torch may use it: the system refuses others.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEVICE", "Tap", "address_of", "become_root_inside", "enter", "make_tap", "set_up_loopback"]

DEVICE = "wan0"
MTU = 1500
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8913, 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP_RUNNING, _IFF_NOARP = 0x41, 0x80
_SIOCETHTOOL, _ETHTOOL_STXCSUM, _ETHTOOL_STSO, _ETHTOOL_SGSO = 0x8946, 0x17, 0x1F, 0x24
_RTM_NEWLINK, _NLM_F_REQUEST_ACK, _NLM_F_CREATE_EXCL = 16, 0x5, 0x600
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_TXQLEN, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 13, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_SOL_PACKET, _PACKET_VNET_HDR, _ETH_P_IP = 263, 15, 0x0800
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_VNET_BYTES, _ETHERNET_BYTES = 10, 14
_HARDWARE_ADDRESS = bytes([2, 0, 0, 0, 0, 1])
_TUNNELS = "/dev/net/tun"
QUEUE_PACKETS = 10_000
CABLE_BUFFER_BYTES = 64 << 20
_SYSCTLS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv4/tcp_wmem": "4096 65536 67108864",
    "net/ipv4/tcp_rmem": "4096 131072 67108864",
}
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_root_inside() -> None:
    """Moves this process into a network namespace of its own.  If that is not permitted, it becomes root of a user
    namespace of its own, where it is.

    Raises:
        OSError: the system does not allow that either.
    """
    try:
        _call("unshare", _CLONE_NEWNET)
    except PermissionError:
        pass
    else:
        return
    user, group = os.getuid(), os.getgid()
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


@dataclass(frozen=True, slots=True)
class Tap:
    """One node's end: its namespace, and the file that reads and writes its packets."""

    namespace: int
    device: int
    header_bytes: int
    """The length of the header before every packet."""
    segments: bool
    """Whether that header starts with a virtio header, which has the segment size."""


def address_of(place: int) -> str:
    """The address of a node, by its index among all nodes."""
    return f"10.77.{place // 250}.{place % 250 + 1}"


def make_tap(place: int, *, segments: bool, tunnel: bool = True) -> Tap:
    """Makes a namespace with a device in it, and returns to the previous namespace.

    Args:
        place: the index of the node.
        segments: whether the system hands over many segments at once, which is faster; a lossy link would lose them
            all at once.
        tunnel: whether the device is a tunnel; otherwise it is a virtual cable.
    """
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    other_end = f"{DEVICE}-{place}"
    _call("unshare", _CLONE_NEWNET)
    try:
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        device = -1
        if tunnel:
            device = _open_tunnel(segments=segments)
        else:
            _add_cable(DEVICE, other_end, home)
            if not segments:
                _switch_off_offload(DEVICE)
        set_up_loopback()
        for name, value in _SYSCTLS.items():
            try:
                Path("/proc/sys", name).write_text(value)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
        _set_up(DEVICE, address_of(place))
        if tunnel:
            _set_queue(DEVICE, QUEUE_PACKETS)
    finally:
        _call("setns", home, _CLONE_NEWNET)
        os.close(home)
    if not tunnel:
        device = _open_cable(other_end, segments=segments)
    header_bytes = (_VNET_BYTES if segments else 0) + (0 if tunnel else _ETHERNET_BYTES)
    return Tap(namespace, device, header_bytes, segments)


def _open_tunnel(*, segments: bool) -> int:
    device = os.open(_TUNNELS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | (_IFF_VNET_HDR if segments else 0)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    if segments:
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


def _open_cable(name: str, *, segments: bool) -> int:
    """Opens this end of a virtual cable for reading and writing."""
    _set_up(name)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    if segments:
        sock.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, CABLE_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, CABLE_BUFFER_BYTES)
    sock.bind((name, _ETH_P_IP))
    return sock.detach()


def _add_cable(name: str, other_name: str, other_namespace: int) -> None:
    """A virtual cable from here to another namespace.

    All ends here have the same hardware address and use no ARP, so packets are forwarded without rewriting addresses.
    """
    other = struct.pack("BxHiII", 0, 0, 0, 0, 0) + _attribute(_IFLA_IFNAME, other_name.encode() + b"\0")
    other += _attribute(_IFLA_NET_NS_FD, struct.pack("I", other_namespace))
    data = _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, other))
    info = _attribute(_IFLA_LINKINFO, _attribute(_IFLA_INFO_KIND, b"veth") + data)
    body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + _attribute(_IFLA_IFNAME, name.encode() + b"\0")
    _netlink(_NLM_F_REQUEST_ACK | _NLM_F_CREATE_EXCL, body + _attribute(_IFLA_ADDRESS, _HARDWARE_ADDRESS) + info)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _switch_off_offload(name: str) -> None:
    """Makes the system cut segments and compute checksums itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in (_ETHTOOL_STSO, _ETHTOOL_SGSO, _ETHTOOL_STXCSUM):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(sock, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), ctypes.addressof(value)))


def _set_up(name: str, address: str | None = None) -> None:
    def request(sock: socket.socket, number: int, payload: bytes) -> bytes:
        return fcntl.ioctl(sock, number, struct.pack("16s24s", name.encode(), payload))

    def packed(text: str) -> bytes:
        return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if address:
            request(sock, _SIOCSIFADDR, packed(address))
            request(sock, _SIOCSIFNETMASK, packed("255.255.0.0"))
            request(sock, _SIOCSIFMTU, struct.pack("i", MTU))
        (flags,) = struct.unpack_from("H", request(sock, _SIOCGIFFLAGS, b""), 16)
        request(sock, _SIOCSIFFLAGS, struct.pack("H", flags | _IFF_UP_RUNNING | _IFF_NOARP))


def set_up_loopback() -> None:
    """Brings up the loopback of a new namespace, which starts down."""
    _set_up("lo")


def _set_queue(name: str, packets: int) -> None:
    """Uses netlink, since the older call needs the real root."""
    about = struct.pack("BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0)
    _netlink(_NLM_F_REQUEST_ACK, about + struct.pack("HHI", 8, _IFLA_TXQLEN, packets))


def _netlink(flags: int, body: bytes) -> None:
    """Makes or changes a device."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(struct.pack("IHHII", 16 + len(body), _RTM_NEWLINK, flags, 1, 0) + body)
        (error,) = struct.unpack_from("i", sock.recv(4096), 16)
        if error:
            raise OSError(-error, os.strerror(-error))


def enter(namespace: int) -> None:
    """Moves this process into a namespace."""
    _call("setns", namespace, _CLONE_NEWNET)


def sharpen_timers() -> None:
    """Lets this process wake with microsecond precision."""
    _libc.prctl(29, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Makes the system end this process when its parent ends."""
    _libc.prctl(1, 9, 0, 0, 0)
