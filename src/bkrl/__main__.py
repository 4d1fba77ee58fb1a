"""Where `bkrl` and `python -m bkrl` begin; both stand as `bkrl` in the record of a run."""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are being loaded ends it without a word: nothing has begun."""
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
