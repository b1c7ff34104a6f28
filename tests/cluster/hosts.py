"""Two hosts on one machine: network namespaces with a link between them, and an ssh server in each."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.daemon import daemon
from tests.cluster.parts import program

HOSTS = {"kerasdist-test-a": "10.78.0.1", "kerasdist-test-b": "10.78.0.2"}
LINK = "eth0"  # one name on both, as Horovod's own launcher wants it
SSH_PORT = 2222


def inside(host: str, *command: str) -> list[str]:
    """The command that runs another one on a host."""
    return [program("ip"), "netns", "exec", host, *command]


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[None]:
    """Makes the hosts, each with an ssh server that the other one's root may log in to; removes them afterwards."""
    try:
        _make_hosts(folder)
        keygen = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f"]
        for name in ("server", "user"):
            _call(*keygen, str(folder / name))
        Path("/run/sshd").mkdir(exist_ok=True)
        with contextlib.ExitStack() as servers:
            for host in HOSTS:
                servers.enter_context(daemon(inside(host, *_sshd(folder)), folder / f"sshd.{host}.log"))
            for host, address in HOSTS.items():
                _until_open(host, address)
            yield
    finally:
        for host in HOSTS:
            subprocess.run([program("ip"), "netns", "delete", host], stderr=subprocess.DEVNULL)
            shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)


def _make_hosts(folder: Path) -> None:
    first, second = HOSTS
    for host in HOSTS:
        subprocess.run([program("ip"), "netns", "delete", host], stderr=subprocess.DEVNULL)
        _call(program("ip"), "netns", "add", host)
    _call(*f"{program('ip')} link add {LINK} netns {first} type veth peer name {LINK} netns {second}".split())
    for host, address in HOSTS.items():
        _call(*inside(host, "ip", "address", "add", f"{address}/24", "dev", LINK))
        for device in ("lo", LINK):
            _call(*inside(host, "ip", "link", "set", device, "up"))
        # These files are seen inside of the namespace in place of those in /etc.
        own = Path("/etc/netns") / host
        (own / "ssh").mkdir(parents=True, exist_ok=True)
        (own / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        (own / "ssh" / "ssh_config").write_text(
            f"UserKnownHostsFile {folder}/known_hosts\nStrictHostKeyChecking accept-new\nIdentityFile {folder}/user\n"
        )


def _sshd(folder: Path) -> list[str]:
    options = {
        "Port": SSH_PORT, "HostKey": folder / "server", "AuthorizedKeysFile": folder / "user.pub", "StrictModes": "no",
        "PermitRootLogin": "yes", "UsePAM": "no", "PasswordAuthentication": "no", "PidFile": "none",
    }  # fmt: skip
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return [program("sshd"), "-D", "-e", "-f", "/dev/null", *given]


def _until_open(host: str, address: str) -> None:
    probe = f"import socket; socket.create_connection(({address!r}, {SSH_PORT}), 5)"
    end = time.monotonic() + 20
    while subprocess.run(inside(host, program("python3"), "-c", probe), stderr=subprocess.DEVNULL).returncode:
        assert time.monotonic() < end, f"the ssh server of {host} does not answer"
        time.sleep(0.2)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, f"{command}: {done.stderr}"
