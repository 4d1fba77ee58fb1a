"""Advice on actions without labels: a language model scores the names of the actions for what captions say.

The distinct captions of a dataset are asked about, the most frequent ones first, each once for ever: which action is
best now? The log-probabilities of the names, over both orders in which they are listed, are the advice; a caption on
which the orders disagree weighs nothing. A network over observations learns it from the rows that have these captions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bkrl.core.errors import RunFailed
from bkrl.data.dataset import Dataset
from bkrl.labelers.closed import action_question
from bkrl.labelers.material import env_card
from bkrl.llm.choose import Chooser, settled
from bkrl.llm.session import AskSession
from bkrl.potentials.advice import Record
from bkrl.potentials.build import ADVICE_ROWS
from bkrl.potentials.kinds import Shuffle, permuted


def told_by(
    session: AskSession, dataset: Dataset, captions: int, shuffle: Shuffle | None = None
) -> tuple[Record, NDArray[np.float64], dict[str, Any]]:
    """The R rows that have captions with an answer, (R, A) log-probabilities of the actions there, and plain facts.

    Args:
        session, dataset: who is asked, and about what.
        captions: most captions that are asked about.
        shuffle: of a control: answers are dealt out anew among the captions.

    Raises:
        RunFailed: no answer can be used.
    """
    of_row = dataset.caption_ids[:ADVICE_ROWS]
    found, counts = np.unique(of_row, return_counts=True)
    asked = found[np.lexsort((found, -counts))][:captions]
    card, chooser = env_card(dataset.env_id), Chooser(session)
    questions = [action_question(card, dataset.caption_texts[one]) for one in asked]
    answers = chooser.ask(questions, "ask which action is best")
    together, agree = settled(np.stack([one.scores for one in answers if one is not None]))
    if not agree.any():
        raise RunFailed(
            f"Not one of {len(asked)} captions has a clear answer; raise --advice-captions or ask another model."
        )
    place = np.full(len(dataset.caption_texts), -1)
    usable = np.flatnonzero(agree)
    place[asked[agree]] = usable if shuffle is None else usable[permuted(len(usable), shuffle)]
    rows = np.flatnonzero(place[of_row] >= 0)
    facts = {
        "captions": len(asked),
        "captions_of": len(found),
        "inconsistent": int((~agree).sum()),
        "rows": len(rows),
        "rows_of": len(of_row),
        **session.backend.facts(),
    }
    return Record.of(dataset, rows, False), together[place[of_row[rows]]], facts
