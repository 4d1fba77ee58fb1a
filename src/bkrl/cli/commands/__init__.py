"""The commands beside the verbs, by what they are about: each file adds its own to the application.

A command parses, calls one function of the package, and prints; it has no logic and imports nothing heavy at the top.
"""
