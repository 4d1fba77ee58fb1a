"""`python -m bkrl` is `bkrl`, in the record of its runs too."""

import sys

from bkrl.cli import main

if __name__ == "__main__":
    sys.argv[0] = "bkrl"
    main()
