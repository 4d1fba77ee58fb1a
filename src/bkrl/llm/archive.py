"""What the store of replies holds, in figures: `bkrl cache info`."""

import time
from pathlib import Path
from typing import Any

from bkrl.core.errors import InputError
from bkrl.llm.prices import find_price
from bkrl.llm.store import FILE, Store


def existing(folder: Path) -> Store:
    """The store of a cache folder; InputError when there is none (a new one would only hide a wrong path)."""
    if not (folder / FILE).exists():
        raise InputError(f"There is no reply store in {folder}; name the folder with --cache.")
    return Store(folder)


def summary(store: Store, prices: Path | None = None) -> dict[str, Any]:
    """What a store holds: totals, and `groups` of replies by endpoint, model, status and tier.

    `usd` of a group is None when its price or the tokens of one of its replies are not known.
    """
    groups = []
    for table in ("reply", "rejected"):
        rows = store.execute(
            "select coalesce(q.kind, ''), coalesce(q.host, ''), coalesce(q.model, r.model), r.status, r.tier, "
            "count(*), sum(length(cast(r.text as blob))), sum(r.prompt_tokens), sum(r.completion_tokens), "
            "sum(min(coalesce(r.cached_tokens, 0), r.prompt_tokens)), "
            "sum(r.prompt_tokens is null or r.completion_tokens is null), min(r.created), max(r.created) "
            f"from {table} r left join question q using(key) group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5"
        )
        for kind, host, model, status, tier, count, size, prompt, completion, cached, unknown, first, last in rows:
            price = find_price({"kind": kind, "host": host, "model": model}, prices) if kind else None
            known = price is not None and not unknown
            usd = price.of_tokens(prompt, completion, cached or 0, tier) if known and price is not None else None
            groups.append(
                {
                    **{"endpoint": f"{kind}:{host}".strip(":") or "not recorded", "model": model, "status": status},
                    **{"tier": tier, "replies": count, "bytes": size, "prompt_tokens": prompt},
                    **{"completion_tokens": completion, "usd": usd, "first": _date(first), "last": _date(last)},
                }
            )
    sends = store.execute("select outcome, count(*) from attempt group by outcome order by outcome")
    files = [Path(f"{store.path}{end}") for end in ("", "-wal")]
    return {
        "path": store.path.as_posix(),
        "bytes": sum(file.stat().st_size for file in files if file.exists()),
        "replies": sum(group["replies"] for group in groups),
        "sends": dict(sends),
        "groups": sorted(groups, key=lambda group: (group["endpoint"], group["model"], group["status"])),
    }


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
