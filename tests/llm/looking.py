"""What tests look for in a store of replies and in a session."""

from __future__ import annotations

from bkrl.llm.session import AskSession
from bkrl.llm.store import Store


def stored(store: Store, table: str = "reply") -> int:
    """Rows of a table of a store."""
    ((rows,),) = store.execute(f"select count(*) from {table}")
    return int(rows)


def waiting(session: AskSession) -> int:
    """How many submitted requests have brought nothing yet."""
    return len(session._submitted) - len(session._came)
