"""Take out of a complete run's record what differs between two makes of it: commit, versions, machine, timed metrics.

The samples are settled stage by stage, so that each one's hash of what it was made from is the same in every make.

    settle.py RUN
"""

import sys
from pathlib import Path

from bkrl.core.files import atomic_write, to_json
from bkrl.runs.record import Run, sealed

run = Run.open(Path(sys.argv[1]))
differing = ("seal", "code", "packages", "python", "platform")
record = {key: value for key, value in run.manifest.items() if key not in differing}
record["outputs"] = {name: value for name, value in record["outputs"].items() if name != "metrics.jsonl"}
run.file("metrics.jsonl").unlink(missing_ok=True)
atomic_write(run.file("manifest.json"), to_json(sealed(record)))
