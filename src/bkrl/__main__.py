"""Where `bkrl` and `python -m bkrl` begin; both stand as `bkrl` in the record of a run."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are being loaded ends it without a word: nothing has begun."""
    sys.argv[0] = "bkrl"
    try:
        from bkrl.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
