"""Errors a person can act on: one sentence each, and the exit code that goes with it.

0 success, 1 the work failed, 2 usage (a bad flag or name), 3 bad or incomplete input, 130 interrupted.
"""


class BkrlError(Exception):
    """An error whose message is one clear sentence that says what to do next."""

    exit_code = 1


class RunFailed(BkrlError):
    """The work itself failed: training diverged, a program was killed, an endpoint refused."""


class UsageError(BkrlError):
    """A flag, name or combination of them that cannot mean anything."""

    exit_code = 2


class InputError(BkrlError):
    """An input that is missing, damaged, incomplete or made for something else."""

    exit_code = 3
