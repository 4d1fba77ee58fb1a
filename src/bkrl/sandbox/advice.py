"""What a program says of actions itself, by a second function `advice` beside its potential."""

from __future__ import annotations

import ast

import numpy as np
from numpy.typing import NDArray

from bkrl.data.windows import Windows
from bkrl.sandbox.check import ENTRY, parameters
from bkrl.sandbox.pool import Sandbox
from bkrl.sandbox.process import Limits, ProgramFailed

ADVICE = "advice"
"""The function by which a program may say something of actions, too."""


def advises(module: ast.Module) -> bool:
    """Whether a program has that function."""
    return any(isinstance(node, ast.FunctionDef) and node.name == ADVICE for node in module.body)


class CodeTable:
    """What a program's own `advice` says of each action; see `ActionTable`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @classmethod
    def of(cls, program: Sandbox, actions: int) -> CodeTable | None:
        """That of so many actions; None where the program has no such function.

        It is a program whose components are that advice, so that the sandbox runs it like any other. The potential it
        had goes by another name there, for its advice may ask it.
        """
        module = ast.parse(program.source)
        if not advises(module):
            return None
        fields = ("id", "name", "arg")  # of variables, functions, parameters and keywords
        named = [(node, field) for node in ast.walk(module) for field in fields if field in vars(node)]
        taken = {vars(node)[field] for node, field in named}
        other = f"{ENTRY}_of_states"
        while other in taken:
            other += "_"
        for node, field in named:
            if vars(node)[field] == ENTRY:
                setattr(node, field, other)
        given = ", ".join(parameters(program.words is not None, bool(program.memory)))
        columns = f"{{action: told[:, action] for action in {(*range(actions),)}}}"
        wanted = f"assert told.shape == (observations.shape[0], {actions}), '{ADVICE} must be of shape (B, {actions})'"
        called = f"    told = np.asarray({ADVICE}({given}))\n    {wanted}\n    return told[:, 0], {columns}\n"
        source = f"{ast.unparse(module)}\n\n\ndef {ENTRY}({given}):\n{called}"
        return cls(
            Sandbox(
                source,
                program.obs_shape,
                program.horizon,
                limits=Limits(components=actions),
                words=program.words,
                memory=program.memory,
            )
        )

    def __call__(self, windows: Windows) -> NDArray[np.float64]:
        try:
            columns = self.sandbox.evaluate_numbered(windows)[1]
        except ProgramFailed as error:  # its lines are not those of the text that was written
            raise ProgramFailed(error.kind, f"its {ADVICE}: {error.reason}") from None
        told = np.stack(list(columns.values()), 1)
        if not np.isfinite(told).all():
            raise ProgramFailed("returned", "its advice holds values that are not finite")
        return told

    def close(self) -> None:
        """End the worker."""
        self.sandbox.close()
