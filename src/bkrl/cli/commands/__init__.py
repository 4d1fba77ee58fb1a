"""The commands beside the verbs, by what they are about; `cli.main` names them.

A command parses, calls one function of the package, and prints; it has no logic and imports nothing heavy at the top.
"""
