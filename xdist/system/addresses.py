"""Addresses of IPv4 and IPv6 as text: "host:port", where an IPv6 one stands in brackets."""

import socket


def bare(host: str) -> str:
    """A name or an address as sockets take it: "::1" of "[::1]"."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def bracketed(host: str) -> str:
    """The same as it stands before a port: "[::1]" of "::1"."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def joined(host: str, port: int) -> str:
    """ "a:80", "[::1]:80"."""
    return f"{bracketed(host)}:{port}"


def split(where: str) -> tuple[str, int]:
    """The host, without brackets, and the port of "host:port".

    Raises:
        ValueError: there is no port.
    """
    host, _, port = where.rpartition(":")
    return bare(host), int(port)


def family(address: str) -> socket.AddressFamily:
    """Of an address, which is no name."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def of_name(name: str) -> list[str]:
    """Those to which a name or an address leads, IPv4 first; none where it leads nowhere (yet)."""
    try:
        found = socket.getaddrinfo(bare(name), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    told = dict.fromkeys(str(address[0]) for *_, address in found)
    return sorted(told, key=lambda address: ":" in address)


def listener(address: str, port: int, backlog: int) -> socket.socket:
    """A server's socket at an address of this machine.

    Raises:
        OSError: it is none, or the port is taken.
    """
    # Over IPv6 alone: what it says of itself is where it is found.
    return socket.create_server((address, port), family=family(address), backlog=backlog)
