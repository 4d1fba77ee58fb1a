"""Envs, runs and reports for other programs: OpenEnv, verifiers, TRL, MCP, and a page in the browser."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
