"""`replay:RUN_OR_FILE`: the answers of an earlier label run, or of its table of responses. A miss is an error.

With it a labelled study can be repeated by anyone, without a key, long after the model is gone.
"""

import json
from pathlib import Path

from bkrl.core.errors import InputError
from bkrl.core.files import read_table, sha256
from bkrl.data.schema import RESPONSES
from bkrl.llm.protocol import Connection, Fault, FreeBackend, Reply, Request, address
from bkrl.runs.record import Run


class ReplayBackend(FreeBackend):
    """Answers by looking up the words of the question and the sample index, whichever annotator gave them."""

    def __init__(self, spec: str, connection: Connection) -> None:
        self.name = f"replay:{spec}"
        path, run = Path(spec), None
        if not path.is_file():
            run = Run.open(path, "label")
        self._file = path if run is None else run.file("responses.parquet")
        if not self._file.exists():
            raise InputError(f"{path} is a label run without responses.parquet: it is a control.")
        rows = read_table(self._file, RESPONSES).to_pylist()
        asked = ([(turn["role"], turn["content"]) for turn in json.loads(row["prompt"])] for row in rows)
        self._rows = {address(turns, row["sample"]): row for turns, row in zip(asked, rows, strict=True)}
        models = sorted({row["model"] for row in self._rows.values() if row["model"]})
        self._facts = {"replay_of": ", ".join(models), "replay_sha256": sha256(self._file)}
        if run is not None and "model_sha256" in run.facts:
            self._facts["model_sha256"] = run.facts["model_sha256"]

    async def complete(self, request: Request) -> Reply:
        row = self._rows.get(address([(message.role, message.text) for message in request.messages], request.sample))
        if row is None:
            raise Fault(
                "stop",
                "not in the replay",
                f"{self._file} holds no answer to one of these questions; they were asked with other prompts, another "
                "dataset, seed, --ask, --num, --length, --swap or --votes",
            )
        if row["reply"] is None:
            raise Fault("item", row["reason"], f"the original request failed: {row['reason']}")
        return Reply.of_row(row)

    def facts(self) -> dict[str, str]:
        return dict(self._facts)
