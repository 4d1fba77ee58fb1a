"""Names and addresses of machines."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
