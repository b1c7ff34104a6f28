"""By which address and interface do the hosts of a job reach each other?"""

from __future__ import annotations

import ipaddress
import socket

from kerasdist.errors import EngineError

LOOPBACK = "127.0.0.1"


def resolve(host: str) -> str:
    """The IPv4 address of a host's name.

    Raises:
        EngineError: The name has none.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise EngineError(f"The host name {host!r} has no IPv4 address here: {error}.") from error


def is_loopback(address: str) -> bool:
    """Whether an address is reached from its own host only."""
    return ipaddress.ip_address(address).is_loopback


def own_address_towards(address: str) -> str:
    """This host's address, as the host at ``address`` sees it. Nothing is sent.

    Raises:
        EngineError: There is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise EngineError(f"There is no route from this host to {address}: {error}.") from error
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The name of this host's interface that has an address.

    Raises:
        EngineError: None of them has it.
    """
    found = _addresses()
    for name, own in found:
        if own == address or (is_loopback(address) and is_loopback(own)):
            return name
    known = ", ".join(f"{name} {own}" for name, own in found)
    raise EngineError(f"No network interface of this host has the address {address}. It has: {known}.")


def address_of(interface: str) -> str:
    """The IPv4 address of an interface of this host.

    Raises:
        EngineError: There is no such interface, or it has no IPv4 address.
    """
    found = _addresses()
    for name, own in found:
        if name == interface:
            return own
    known = ", ".join(f"{name} {own}" for name, own in found)
    raise EngineError(f"This host has no network interface {interface!r} with an IPv4 address. It has: {known}.")


def check_own_name(one_host: bool) -> None:
    """Refuses a host whose own name Horovod's Gloo cannot use.

    It binds some of its connections to the address of the host's name, whatever interface was chosen, and crashes
    where the name has none.

    Args:
        one_host: whether all ranks are on this host; if not, the others must be able to reach that address.

    Raises:
        EngineError: The name has no address, or loopback where other hosts take part.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise EngineError(
            f"This host's own name {name!r} has no address here ({error}), and Gloo needs one. Give it one in "
            f"/etc/hosts: 127.0.0.1 if all workers are on this host, else that on the network."
        ) from error
    if one_host:
        return
    address = resolve(name)
    if is_loopback(address):
        raise EngineError(
            f"This host's own name {name!r} resolves to {address}, which other hosts cannot reach, and Gloo offers "
            f"them that address. Give {name!r} its address on the network in /etc/hosts."
        )


def _addresses() -> list[tuple[str, str]]:
    import psutil  # comes with Horovod

    return [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
