"""Network namespaces with a tunnel device in each, by the system's own calls; no root needed where user namespaces are
allowed.

To be used by a process without threads that has not loaded torch: the system refuses others.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import EmulationError

__all__ = ["DEVICE", "Tap", "address_of", "become_root_inside", "enter", "make_tap"]

DEVICE = "wan0"
MTU = 1500
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8913, 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP_RUNNING = 0x41
_RTM_NEWLINK, _NLM_F_REQUEST_ACK, _IFLA_TXQLEN = 16, 5, 13
QUEUE_PACKETS = 10_000
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
    """Makes this process the root of a user namespace of its own, unless it is root already."""
    if os.geteuid() == 0:
        return
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
    except OSError as error:
        raise EmulationError(
            f"this system does not let you make a user namespace ({error.strerror}): allow it "
            "(sysctl kernel.unprivileged_userns_clone=1, or user.max_user_namespaces above 0), or run as root"
        ) from None
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


@dataclass(frozen=True, slots=True)
class Tap:
    """One node's end: its namespace, and what reads and writes its packets."""

    namespace: int
    device: int
    header_bytes: int
    """What precedes every packet: how it is to be cut into segments."""


def address_of(place: int) -> str:
    """The address of the node at a place among all."""
    return f"10.77.{place // 250}.{place % 250 + 1}"


def make_tap(place: int, *, segments: bool) -> Tap:
    """Makes a namespace with a device in it, and comes back to where this process was.

    Args:
        place: which node it is for.
        segments: whether the system hands over many segments at once, which is quicker; on links that lose packets it
            would lose them all at once.
    """
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
    except OSError as error:
        os.close(home)
        raise EmulationError(f"this system does not let you make a network namespace ({error.strerror})") from None
    try:
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        device = _open_device(segments=segments)
        _set_up("lo")
        for name, value in _SYSCTLS.items():
            try:
                Path("/proc/sys", name).write_text(value)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
        _set_up(DEVICE, address_of(place))
        _set_queue(DEVICE, QUEUE_PACKETS)
    finally:
        _call("setns", home, _CLONE_NEWNET)
        os.close(home)
    return Tap(namespace, device, 10 if segments else 0)


def _open_device(*, segments: bool) -> int:
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EmulationError(
            f"/dev/net/tun cannot be opened ({error.strerror}): emulation needs it; "
            "load the module tun, or let your container have the device"
        ) from None
    flags = _IFF_TUN | _IFF_NO_PI | (_IFF_VNET_HDR if segments else 0)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    if segments:
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


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
        request(sock, _SIOCSIFFLAGS, struct.pack("H", flags | _IFF_UP_RUNNING))


def _set_queue(name: str, packets: int) -> None:
    """By netlink, since the call that is older wants the real root."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        body = struct.pack("BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0)
        body += struct.pack("HHI", 8, _IFLA_TXQLEN, packets)
        sock.send(struct.pack("IHHII", 16 + len(body), _RTM_NEWLINK, _NLM_F_REQUEST_ACK, 1, 0) + body)
        (error,) = struct.unpack_from("i", sock.recv(4096), 16)
        if error:
            raise OSError(-error, os.strerror(-error))


def enter(namespace: int) -> None:
    """Moves this process into a namespace."""
    _call("setns", namespace, _CLONE_NEWNET)


def sharpen_timers() -> None:
    """Lets this process be woken to the microsecond."""
    _libc.prctl(29, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Has the system end this process when the one that started it ends."""
    _libc.prctl(1, 9, 0, 0, 0)
