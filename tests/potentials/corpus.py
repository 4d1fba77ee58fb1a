# ruff: noqa: E501 - programs read best on one line each
"""Hostile, broken and merely careless programs, and what must become of each.

Outcomes: S rejected by the static check; T killed at the time limit; E ended by an exception that is reported with its
line; R a return value that cannot be used; P caught by probation; OK accepted.  Several letters: any of them will do.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Program(NamedTuple):
    name: str
    source: str
    outcome: str


def body(text: str) -> str:
    return (
        "def potential(observations, actions, valid):\n" + textwrap.indent(textwrap.dedent(text).strip(), "    ") + "\n"
    )


FINE = body("return observations[:, -1].reshape(len(observations), -1).sum(axis=1) * 1.0")


def _program(name: str, outcome: str, text: str) -> Program:
    return Program(name, body(text), outcome)


def _file(name: str, outcome: str, text: str) -> Program:
    return Program(name, textwrap.dedent(text), outcome)


TIME = [
    _program("loop while", "T", "while True:\n    pass"),
    _program("loop for huge", "T", "x = 0\nfor i in range(10 ** 12):\n    x = x + i\nreturn valid[:, 0] * x"),
    _program("generator sum", "T", "return sum(i for i in range(10 ** 15))"),
    _program("growing power", "TE", "a = 9\nfor i in range(12):\n    a = a ** 9\nreturn a"),
    _program(
        "quadratic", "T", "x = 0\nfor i in range(10 ** 6):\n    for j in range(10 ** 6):\n        x = x + 1\nreturn x"
    ),
    _program(
        "matmul in C",
        "TE",
        "x = np.ones((4000, 4000))\nfor i in range(1000):\n    x = x @ x\nreturn x[0, : len(valid)]",
    ),
    _program(
        "sort for ever", "T", "x = np.arange(4000000) % 7919\nfor i in range(10 ** 6):\n    y = np.sort(x)\nreturn y"
    ),
    _program("swallow timeout", "S", "while True:\n    try:\n        x = 1\n    except BaseException:\n        pass"),
    _program("string multiplication loop", "TE", "s = 'a'\nwhile True:\n    s = s + s"),
]

MEMORY = [
    _program("zeros 1e12", "E", "return np.zeros(10 ** 12)"),
    _program("ones 1e5 x 1e5", "E", "return np.ones((10 ** 5, 10 ** 5)).sum(axis=1)"),
    _program("list 1e11", "E", "return [0] * 10 ** 11"),
    _program("doubling list", "TE", "x = [1]\nwhile True:\n    x = x + x"),
    _program("append arrays", "TE", "x = []\nwhile True:\n    x.append(np.ones(10 ** 6))"),
    _program("string 1e11", "E", "return len('a' * 10 ** 11) * np.ones(len(valid))"),
    _program("outer 1e6", "E", "return np.outer(np.ones(10 ** 6), np.ones(10 ** 6))"),
    _program("tile", "E", "return np.tile(observations, (10 ** 6, 1, 1))"),
    _program("growing dict", "TE", "d = {}\nn = 0\nwhile True:\n    d[n] = np.ones(10 ** 5)\n    n = n + 1"),
    _program("format width", "E", "return '%1000000000000d' % 1"),
]

PROCESS = [
    _program("fork bomb", "S", "import os\nwhile True:\n    os.fork()"),
    _program("subprocess", "S", "import subprocess\nsubprocess.run(['id'])"),
    _program("multiprocessing", "S", "import multiprocessing\nmultiprocessing.Process().start()"),
    _program("threading", "S", "import threading\nthreading.Thread().start()"),
    _program("signal", "S", "import signal\nsignal.signal(15, signal.SIG_IGN)"),
    _program("kill parent", "S", "import os\nos.kill(os.getppid(), 9)"),
    _program("sys exit", "S", "import sys\nsys.exit(0)"),
    _program("exit", "S", "exit()"),
    _program("raise SystemExit", "S", "raise SystemExit"),
    _program("os _exit", "S", "import os\nos._exit(0)"),
]

FILES = [
    _program("open read", "S", "return open('/etc/passwd').read()"),
    _program("open write", "S", "open('scratch', 'w').write('x')"),
    _program("pathlib", "S", "from pathlib import Path\nreturn Path('/').stat()"),
    _program("rmtree", "S", "import shutil\nshutil.rmtree('/')"),
    _program("environment", "S", "import os\nreturn os.environ['OPENAI_API_KEY']"),
    _program("proc environ", "S", "return np.fromfile('/proc/self/environ', np.uint8)"),
]

NUMPY = [
    _program("load pickle", "S", "return np.load('x.npy', allow_pickle=True)"),
    _program("memmap", "S", "return np.memmap('/etc/passwd', mode='r')"),
    _program("genfromtxt", "S", "return np.genfromtxt('/etc/passwd')"),
    _program("loadtxt", "S", "return np.loadtxt('/etc/passwd')"),
    _program("save", "S", "np.save('x', observations)"),
    _program("savetxt", "S", "np.savetxt('x', actions)"),
    _program("savez", "S", "np.savez('x', actions)"),
    _program("tofile", "S", "actions.tofile('x')"),
    _program("dump", "S", "actions.dump('x')"),
    _program("npyio os", "S", "np.lib._npyio_impl.os.system('id')"),
    _program("ctypeslib", "S", "return np.ctypeslib.ctypes.CDLL(None)"),
    _program("f2py os", "S", "return np.f2py.os.getcwd()"),
    _program("array ctypes", "S", "return actions.ctypes.data"),
    _program("as_strided", "S", "return np.lib.stride_tricks.as_strided(actions, (10 ** 6,), (4,))"),
    _program("ndarray buffer", "S", "return np.ndarray((10,), buffer=actions.data)"),
    _program("frombuffer", "S", "return np.frombuffer(actions)"),
    _program("DataSource", "S", "return np.lib.npyio.DataSource('http://example.org')"),
    _program("numpy random", "S", "return np.random.rand(len(actions))"),
    _program("view object", "S", "return actions.view('O')"),
    _program("astype object", "S", "return actions.astype('O')"),
    _program("dtype object", "S", "return np.zeros(len(actions), dtype='object')"),
    _program("setflags", "S", "actions.setflags(write=True)"),
    _program("vectorize eval", "S", "return np.vectorize(eval)('1')"),
    _program("list of load", "S", "return [np.load][0]('/etc/passwd')"),
    _program("np as value", "S", "m = np\nreturn m.zeros(3)"),
    _program("from numpy import load", "S", "from numpy import load\nreturn load('x')"),
    _program("import numpy.lib", "S", "import numpy.lib\nreturn actions"),
    _program("take out of range", "E", "return np.take(actions[:, 0], [10 ** 9])"),
    _program("empty_like", "S", "return np.empty_like(actions[:, 0])"),
    _program("where without out", "S", "a, b = actions[:, 0], actions[:, 1]\nreturn np.divide(a, b, where=b > 0)"),
    _program("where with out=None", "S", "a = actions[:, 0]\nreturn np.sqrt(a, out=None, where=a > 0)"),
    _program("where of a method", "S", "a = actions[:, 0]\nreturn a.clip(0, 1, where=a > 0)"),
    _program("where by another name", "S", "f, a = np.sqrt, actions[:, 0]\nreturn f(a, where=a > 0)"),
    _program("where with out", "OK", "a = actions[:, 0]\nreturn np.sqrt(a, where=a > 0, out=np.zeros(len(a)))"),
    _program(
        "where of a sum",
        "OK",
        "return np.sum(actions, axis=1, where=actions > 2) + actions.sum(axis=1, where=valid[:, 1:])",
    ),
    _file(
        "where of a helper",
        "OK",
        "def some(x, where):\n    return np.where(where, x, 0)\n\n"
        + body("return some(actions[:, 0], where=actions[:, 0] > 2)"),
    ),
    _program("ufunc attribute", "S", "return np.add.reduce(actions)"),
]

INTROSPECTION = [
    _program("class chain", "S", "return ().__class__.__bases__[0].__subclasses__()"),
    _program("globals of function", "S", "return potential.__globals__"),
    _program("code of function", "S", "return potential.__code__"),
    _program("getattr", "S", "return getattr(actions, '__cl' + 'ass__')"),
    _program("type", "S", "return type(actions)"),
    _program("eval", "S", "return eval('1')"),
    _program("exec", "S", "exec('x = 1')"),
    _program("compile", "S", "return compile('1', 'x', 'eval')"),
    _program("dunder import", "S", "return __import__('os')"),
    _program("builtins", "S", "return __builtins__"),
    _program("globals", "S", "return globals()"),
    _program("vars", "S", "return vars()"),
    _program("locals", "S", "return locals()"),
    _program("breakpoint", "S", "breakpoint()"),
    _program("input", "S", "return input()"),
    _program("help", "S", "help()"),
    _program("memoryview", "S", "return memoryview(actions)"),
    _program("object", "S", "return object()"),
    _program("str format", "S", "return '{0.__class__.__mro__}'.format(actions)"),
    _program("format map", "S", "return '{a}'.format_map({'a': 1})"),
    _program("f-string", "S", "return f'{actions.__class__}'"),
    _program("f-string width bomb", "S", "return f'{1:>1000000000}'"),
    _program("generator frame", "S", "return (x for x in [1]).gi_frame.f_back"),
    _program("lambda", "S", "f = lambda x: x\nreturn f(actions[:, 0])"),
    _program("walrus", "S", "return (x := actions)[:, 0]"),
    _program("non-ASCII identifier", "S", "é = actions[:, 0]\nreturn é"),
    _program("full-width attribute", "S", "return ().__\uff43lass__"),
    _program("array interface", "S", "return actions.__array_interface__"),
    _program("wrapped", "S", "return np.sum.__wrapped__"),
    _program("self of builtin", "S", "return len.__self__"),
    _program("traceback frame", "S", "try:\n    1 / 0\nexcept Exception as e:\n    return e.__traceback__.tb_frame"),
    _program("class with array", "S", "class A:\n    __array__ = 1\nreturn A()"),
    _program("match class", "S", "match actions:\n    case object(__class__=c):\n        return c"),
    _program("with", "S", "with actions as a:\n    return a"),
    _program("async", "S", "async def f():\n    return 1\nreturn f()"),
    _program("del", "S", "del actions"),
    _program("rebinding np", "S", "np = actions\nreturn np.load"),
    _program("comprehension shadows np", "S", "return [np for np in actions]"),
    _program("star arguments", "S", "return np.add(*[actions, actions])"),
    _program("yield", "S", "yield 1"),
    _file("decorator", "S", "@eval\ndef potential(observations, actions, valid):\n    return actions[:, 0]\n"),
    _file(
        "default runs code", "S", "def potential(observations, actions, valid=open('x')):\n    return actions[:, 0]\n"
    ),
    _file(
        "annotation runs code",
        "S",
        "def potential(observations: eval('1'), actions, valid):\n    return actions[:, 0]\n",
    ),
]

IMPORTS = [
    _file(f"import {module}", "S", f"import {module}\n" + FINE)
    for module in [
        "ctypes",
        "socket",
        "urllib",
        "requests",
        "pickle",
        "sys",
        "importlib",
        "re",
        "torch",
        "time",
        "random",
    ]
] + [
    _file("import star", "S", "from math import *\n" + FINE),
    _file("relative import", "S", "from . import x\n" + FINE),
    _file("module-level open", "S", "X = open('scratch', 'w')\n" + FINE),
    _file("module-level loop", "S", "while True:\n    pass\n" + FINE),
    _file("module-level call", "S", "X = np.zeros(3)\n" + FINE),
    _program("sys modules", "S", "return sys.modules"),
    _program("regex bomb", "S", "return re.match('(a+)+$', 'a' * 40 + 'b')"),
    _program("print", "S", "print(actions)\nreturn actions[:, 0]"),
]

VALUES = [
    _program("NaN", "R", "return np.full(len(actions), np.nan)"),
    _program("division by zero", "R", "return np.ones(len(actions)) / 0"),
    _program("one infinity", "R", "x = np.zeros(len(actions))\nx[3] = np.inf\nreturn x"),
    _program("log of negative", "R", "return np.log(-1.0 - actions[:, 0])"),
    _program("nothing", "R", "x = 1"),
    _program("scalar", "R", "return 1.0"),
    _program("text", "R", "return 'high'"),
    _program("dict", "R", "return {'total': 1.0}"),
    _program("tuple of three", "R", "return actions[:, 0], {}, 1"),
    _program("components of a wrong shape", "R", "return actions[:, 0], {'a': 1}"),
    _program("one too few", "R", "return np.zeros(len(actions) - 1)"),
    _program("a column", "R", "return np.zeros((len(actions), 1))"),
    _program("zero dimensions", "R", "return np.array(1.0)"),
    _program("complex literal", "S", "return actions[:, 0] * 1j"),
    _program("ragged", "R", "return [[1], [1, 2]]"),
    _program("too large an integer", "R", "return [10 ** 400] * len(actions)"),
    _program("booleans", "OK", "return actions[:, 0] > 2"),
    _program("integers", "OK", "return actions[:, 0]"),
    _program("a list", "OK", "return [float(a) for a in actions[:, 0]]"),
    _program("1e300", "OK", "return np.where(actions[:, 0] > 2, 1e300, 0.0)"),
]

EXCEPTIONS = [
    _program("zero division", "E", "return 1 / 0"),
    _program("index", "E", "return actions[:, 99]"),
    _program("key", "E", "return {'a': 1}['b']"),
    _program("attribute of a value", "E", "return 'abc'.sum()"),
    _program("recursion", "E", "def f(x):\n    return f(x)\nreturn f(actions)"),
    _program("assertion", "E", "assert 1 == 2\nreturn actions[:, 0]"),
    _program("reshape", "E", "return actions.reshape(-1, 10 ** 7 + 19)"),
    _program("adding a number to text", "E", "return 'a' + 1"),
    _program("numpy type", "E", "return actions + 'a'"),
    _program("wrong arity", "E", "def f(x):\n    return x\nreturn f(actions, 1)"),
    _program("unpack", "E", "a, b, c = (1, 2)\nreturn actions[:, 0]"),
    _program("unbound local", "E", "if len(actions) < 0:\n    x = 1\nreturn x"),
]

PURITY = [
    _program("write to input", "E", "observations[:] = 0\nreturn actions[:, 0]"),
    _program("out is input", "E", "np.add(actions, 1, out=actions)\nreturn actions[:, 0]"),
    _program("sort the input", "S", "actions.sort()\nreturn actions[:, 0]"),
    _file(
        "global",
        "S",
        "K = 0\ndef potential(observations, actions, valid):\n    global K\n    K = K + 1\n    return actions[:, 0] + K\n",
    ),
    _file(
        "module list",
        "S",
        "K = [0]\ndef potential(observations, actions, valid):\n    K[0] += 1\n    return actions[:, 0] + K[0]\n",
    ),
    _file(
        "module list through a name",
        "E",
        "K = [0]\ndef potential(observations, actions, valid):\n    k = K\n    k[0] = k[0] + 1\n    return actions[:, 0] + k[0]\n",
    ),
    _file(
        "module dict grows",
        "E",
        "K = {}\ndef potential(observations, actions, valid):\n    K.update\n    k = K\n    k[len(k)] = 1\n    return actions[:, 0]\n".replace(
            "    K.update\n", ""
        ),
    ),
    _file(
        "mutable default",
        "S",
        "def f(m=[]):\n    m.append(1)\n    return len(m)\ndef potential(observations, actions, valid):\n    return actions[:, 0] + f()\n",
    ),
    _program("batch mean", "P", "s = observations[:, -1].reshape(len(actions), -1).sum(axis=1)\nreturn s - s.mean()"),
    _program(
        "batch rank", "P", "return np.argsort(np.argsort(observations[:, -1].reshape(len(actions), -1).sum(axis=1)))"
    ),
    _program("arange", "P", "return np.arange(len(actions))"),
    _program("batch size", "OK", "return np.full(len(actions), float(len(actions)))"),
    _program(
        "set of strings", "OK", "o = 0\nfor k in {'a', 'b', 'c'}:\n    o = o * 3 + len(k)\nreturn actions[:, 0] + o"
    ),
    _file("list in a constant", "E", "C = [[0]]\n" + body("C[0].append(1)\nreturn actions[:, 0] + len(C[0])")),
    _file("method of a type", "OK", "C = [[0]]\n" + body("list.append(C[0], 1)\nreturn actions[:, 0] + len(C[0])")),
    _file("list in a tuple", "E", "C = ([0],)\n" + body("C[0].append(1)\nreturn actions[:, 0] + len(C[0])")),
    _file("list in a table", "E", "C = {'a': [0]}\n" + body("C['a'].append(1)\nreturn actions[:, 0] + len(C['a'])")),
    _file(
        "table in a table", "E", "C = {'a': {}}\n" + body("x = C['a']\nx[len(x)] = 1\nreturn actions[:, 0] + len(x)")
    ),
]

PARSING = [
    _file("empty", "S", ""),
    _file("blank", "S", "   \n\n"),
    _file("prose", "S", "Here is the program you asked for."),
    _file("markdown fence", "S", "```python\n" + FINE + "```\n"),
    _file("no entry", "S", "def reward(observations, actions, valid):\n    return actions[:, 0]\n"),
    _file("wrong parameters", "S", "def potential(w):\n    return w\n"),
    _file("Python 2", "S", "def potential(observations, actions, valid):\n    print 'x'\n"),
    _file("mixed tabs", "S", "def potential(observations, actions, valid):\n\tx = 1\n        return x\n"),
    _file("NUL", "S", FINE + "\0"),
    _file("parentheses", "S", "x = " + "(" * 3000 + ")" * 3000),
    _file("unary minus", "S", body("return " + "-" * 12000 + "1")),
    _file("attributes", "S", body("return actions" + ".T" * 6000)),
    _file("2 MB", "S", "#" + "x" * 2_000_000 + "\n" + FINE),
    _file("5000 digits", "S", body("return " + "9" * 5000)),
    _file("two definitions", "S", FINE + FINE),
    _file("lone surrogate", "S", "# \ud800\n" + FINE),
    _file("bidi comment", "OK", "# \u202e\u2066\n" + FINE),
    _file("encoding cookie", "OK", "# -*- coding: utf-7 -*-\n" + FINE),
    _file("typed and imported", "OK", "import numpy as np\nimport math\nfrom typing import Tuple\n" + FINE.replace(
        "observations, actions, valid)", "observations: np.ndarray, actions: np.ndarray, valid: np.ndarray) -> Tuple[int, ...]")),
    _file("long names of 20 kinds", "S", body("\n".join(f"x{i} = np.{'é' * 250}{i}" for i in range(20)) + "\nreturn x0")),
]  # fmt: skip

CORPUS = [
    *TIME, *MEMORY, *PROCESS, *FILES, *NUMPY, *INTROSPECTION, *IMPORTS, *VALUES, *EXCEPTIONS, *PURITY, *PARSING,
]  # fmt: skip
