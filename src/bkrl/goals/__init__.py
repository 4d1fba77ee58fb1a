"""Goals while acting: who suggests them, which deeds reach them, and what reaching them pays.

    suggester ──► book: situation → deeds that reach a suggested goal ──► tracker: goals of N envs, what is paid

`suggesters` and `asked` (language models) suggest, `match` says which deeds reach a goal, `book` remembers both for
each situation, `tracker` follows N envs through their episodes.
"""
