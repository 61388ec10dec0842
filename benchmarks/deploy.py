"""Tries docs/deploy.md on three machines that are network namespaces, one of them behind a NAT.

    sudo python -m benchmarks.deploy        # needs root, ip and nft; a minute

alpha and beta have addresses of their own; gamma is behind a router that translates addresses and lets nothing in that
was not asked for.  A fourth namespace is the internet between them.
"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TAG = "atoll-"
ATOLL = [sys.executable, "-m", "atoll", "node"]


def sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


def join(one: str, other: str, address: str, gateway: str) -> None:
    """A cable between two machines: addresses of both ends, and the way out of the first one."""
    name = one.removeprefix(TAG)[:6]
    sh(f"ip link add {name}0 netns {one} type veth peer name to{name} netns {other}")
    sh(f"ip -n {one} addr add {address}/24 dev {name}0")
    sh(f"ip -n {other} addr add {gateway}/24 dev to{name}")
    sh(f"ip -n {one} link set {name}0 up")
    sh(f"ip -n {other} link set to{name} up")
    sh(f"ip -n {one} route add default via {gateway}")


@contextmanager
def machines() -> Iterator[dict[str, str]]:
    names = {each: TAG + each for each in ("alpha", "beta", "gamma", "router", "net")}
    try:
        for name in names.values():
            sh(f"ip netns add {name}")
            sh(f"ip -n {name} link set lo up")
        for name in ("router", "net"):
            sh(f"ip netns exec {names[name]} sysctl -qw net.ipv4.ip_forward=1")
        join(names["alpha"], names["net"], "10.90.1.2", "10.90.1.1")
        join(names["beta"], names["net"], "10.90.2.2", "10.90.2.1")
        join(names["router"], names["net"], "10.90.3.2", "10.90.3.1")
        join(names["gamma"], names["router"], "192.168.7.2", "192.168.7.1")
        nft = f"ip netns exec {names['router']} nft"
        sh(f"{nft} add table ip nat")
        subprocess.run([*nft.split(), "add chain ip nat post { type nat hook postrouting priority 100 ; }"], check=True)
        sh(f"{nft} add rule ip nat post oifname router0 masquerade")
        yield names
    finally:
        for name in names.values():
            with suppress(subprocess.CalledProcessError):
                sh(f"ip netns del {name}")


def wait_for(what: str, check: Callable[[], object], seconds: float = 60) -> float:
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > seconds:
            sys.exit(f"after {seconds:.0f} s: {what} has not happened")
        time.sleep(0.1)
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
    return time.monotonic() - began


def main() -> None:
    for tool in ("ip", "nft"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not here: install iproute2 and nftables")
    with tempfile.TemporaryDirectory() as temporary, machines() as names:
        folder = Path(temporary)
        running: dict[str, subprocess.Popen[bytes]] = {}

        def start(machine: str, *arguments: str) -> None:
            with (folder / f"{machine}.log").open("wb") as log:
                command = ["ip", "netns", "exec", names[machine], *ATOLL, *arguments, "--out", machine]
                running[machine] = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)

        def trace(machine: str) -> str:
            return "".join(path.read_text() for path in (folder / machine).glob("*.jsonl"))

        def exchanges(machine: str, members: int) -> int:
            return len(re.findall(rf'"exchanged".*"members":{members}[,}}]', trace(machine)))

        try:
            start("alpha", "--listen", "0.0.0.0:7700", "--task", "digits", "--strategy", "allreduce:every=4")
            log = folder / "alpha.log"
            wait_for("alpha prints an invitation", lambda: "--join" in log.read_text())
            (invitation,) = re.findall(r"--join (\S+)", log.read_text())
            start("beta", "--join", invitation, "--listen", "0.0.0.0:7700")
            start("gamma", "--join", invitation)
            for machine in ("alpha", "beta", "gamma"):
                wait_for(f"{machine} exchanges with both others", lambda m=machine: exchanges(m, 3) > 3)  # type: ignore[misc]
            running["alpha"].kill()
            before = {machine: exchanges(machine, 2) for machine in ("beta", "gamma")}
            for machine, count in before.items():
                wait_for(
                    f"{machine} goes on without the first machine, which was killed",
                    lambda m=machine, c=count: exchanges(m, 2) > c + 3,  # type: ignore[misc]
                )
            for machine in ("gamma", "beta"):
                running[machine].send_signal(signal.SIGINT)
                running[machine].wait(20)
                print(f"{machine}: {(folder / f'{machine}.log').read_text().strip().splitlines()[-1]}")
        finally:
            for process in running.values():
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
