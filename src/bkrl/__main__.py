"""The entry point of `bkrl` and `python -m bkrl`; the record of a run has `bkrl` for both."""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are being loaded ends it without a message: nothing has begun."""
    sys.argv[0] = "bkrl"
    if not os.environ.get("TERMINAL_WIDTH", "").isdecimal():  # Typer would end in a traceback
        os.environ.pop("TERMINAL_WIDTH", None)
    try:
        from bkrl.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
