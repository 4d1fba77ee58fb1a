"""Static allow-list check of LLM-written potential programs: default deny, every problem with its line number.

This is layer 1 of the sandbox (`bkrl.sandbox.pool`).  It is **not** a security boundary: it exists to give an
author (mostly an LLM asked to repair its program) clear reasons, and to stop nearly all trouble before anything runs.
The boundary is the locked process the program runs in.

The module uses nothing but the standard library, because the worker loads it by path, without `bkrl` importable, and
runs the check *after* locking itself: CPython does not promise that `ast.parse` survives hostile text.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

ENTRY = "potential"
PARAMETERS = ("observations", "actions", "valid")


def parameters(mission: bool, memory: bool) -> tuple[str, ...]:
    """What a program is given, in order."""
    return (*PARAMETERS, *(("mission",) if mission else ()), *(("memory",) if memory else ()))


MAX_BYTES = 16 * 1024
MAX_NODES = 4_000
MAX_DEPTH = 60
MAX_INTEGER = 2**53
MAX_STRING = 64
MAX_REASONS = 20
MAX_SHOWN = 80


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = _names(
    "abs all any bool dict divmod enumerate float frozenset int isinstance len list map max min pow range reversed "
    "round set sorted sum tuple zip"
)
MATH = _names(
    "acos acosh asin asinh atan atan2 atanh ceil comb copysign cos cosh degrees dist e exp expm1 fabs floor fmod fsum "
    "gcd hypot inf isclose isfinite isinf isnan lcm log log10 log1p log2 nan perm pi pow prod radians remainder sin "
    "sinh sqrt tan tanh tau trunc"
)
NUMPY_TYPES = _names("bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64")
NUMPY = NUMPY_TYPES | _names(
    "abs absolute add all allclose amax amin any append arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh "
    "argmax argmin argpartition argsort argwhere around array array_equal asarray ascontiguousarray atleast_1d "
    "atleast_2d atleast_3d average bincount bitwise_and bitwise_or bitwise_xor broadcast_arrays broadcast_to cbrt ceil "
    "choose clip column_stack compress concatenate convolve copy copysign correlate cos cosh count_nonzero cross "
    "cumprod cumsum deg2rad degrees delete diag diagonal diff digitize divide divmod dot e ediff1d einsum equal exp "
    "exp2 expand_dims expm1 extract eye fabs flatnonzero flip fliplr flipud float_power floor floor_divide fmax fmin "
    "fmod full full_like greater greater_equal gradient heaviside histogram hstack hypot identity indices inf inner "
    "insert interp intersect1d invert isclose isfinite isin isinf isnan ix_ kron less less_equal linspace log log10 "
    "log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor matmul max maximum mean median "
    "meshgrid min minimum mod moveaxis multiply nan nan_to_num nanargmax nanargmin nanmax nanmean nanmedian nanmin "
    "nanstd nansum nanvar ndim negative newaxis nonzero not_equal ones ones_like outer pad partition percentile pi "
    "piecewise power prod ptp put_along_axis quantile rad2deg radians ravel reciprocal remainder repeat reshape "
    "rint roll rollaxis rot90 round searchsorted select setdiff1d shape sign sin sinh size sort split sqrt square "
    "squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace transpose tri tril "
    "triu true_divide trunc union1d unique unravel_index unwrap var vstack where zeros zeros_like"
)
NUMPY_LINALG = frozenset({"norm"})
METHODS = _names(
    "T all any append argmax argmin argsort astype clip conj copy count cumprod cumsum diagonal dot dtype extend fill "
    "flatten get index item items keys max mean min ndim nonzero pop prod ravel repeat reshape round shape size "
    "squeeze std sum swapaxes take tolist trace transpose values var"
)
REDUCTIONS = _names("all amax amin any max mean min nanmax nanmean nanmin nanstd nansum nanvar prod std sum var")
"""What leaves out the places that `where=` leaves out; any other function returns what was in memory there."""
DTYPE_STRINGS = _names(
    "bool int int8 int16 int32 int64 uint8 uint16 uint32 uint64 float float32 float64 i4 i8 f4 f8 u1"
)

_WHY_NAME = {
    "open": "programs cannot read or write files",
    "print": "programs cannot print; return components instead",
    "eval": "programs cannot run text as code",
    "exec": "programs cannot run text as code",
    "compile": "programs cannot run text as code",
    "getattr": "attributes are reached by name, with a dot",
    "__import__": "only numpy (as np) and math can be imported",
}
_WHY_NUMPY = {
    "random": "potentials must be deterministic",
    "empty": "its memory is uninitialised, so the result would not be deterministic; use np.zeros",
    "empty_like": "its memory is uninitialised, so the result would not be deterministic; use np.zeros_like",
    "vectorize": "work on whole arrays instead of calling a function once an element",
    "float": "use float or np.float64",
    "int": "use int or np.int64",
}
_ALLOWED = (
    ast.FunctionDef, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.If, ast.For, ast.While, ast.Expr,
    ast.Pass, ast.Break, ast.Continue, ast.Assert,
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.Set, ast.List, ast.Tuple, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.Compare, ast.Call, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice,
    ast.Name, ast.arguments, ast.arg, ast.keyword, ast.comprehension, ast.expr_context, ast.boolop, ast.operator,
    ast.unaryop, ast.cmpop,
)  # fmt: skip
_REFUSED = {
    ast.Import: "only `import numpy as np` and `import math` are allowed",
    ast.ImportFrom: "only `import numpy as np` and `import math` are allowed",
    ast.ClassDef: "classes are not allowed; use functions",
    ast.AsyncFunctionDef: "async functions are not allowed",
    ast.Lambda: "lambda is not allowed; define a function",
    ast.Try: "try/except is not allowed; avoid the error instead",
    ast.With: "with is not allowed",
    ast.Raise: "raise is not allowed",
    ast.Global: "global is not allowed: a potential keeps no state between calls",
    ast.Nonlocal: "nonlocal is not allowed: a potential keeps no state between calls",
    ast.Delete: "del is not allowed",
    ast.Yield: "generator functions are not allowed",
    ast.YieldFrom: "generator functions are not allowed",
    ast.Await: "await is not allowed",
    ast.NamedExpr: "the walrus operator is not allowed; assign on a line of its own",
    ast.JoinedStr: "f-strings are not allowed",
    ast.FormattedValue: "f-strings are not allowed",
    ast.Match: "match is not allowed; use if",
    ast.Starred: "star arguments and unpacking are not allowed",
}


@dataclass(frozen=True)
class Problem:
    """One reason for refusing a program; `line` counts from 1, 0 means the program as a whole."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class Rejected(Exception):
    """The program was refused; `problems` holds every reason, in line order, at most MAX_REASONS of them."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems[:MAX_REASONS]
        super().__init__("; ".join(str(problem) for problem in self.problems))


def check_size(source: str) -> None:
    """Refuse text that should not even reach a parser: too long, not encodable, or holding a NUL."""
    try:
        encoded = source.encode("utf-8")
    except UnicodeEncodeError:
        raise Rejected([Problem(0, "the program is not valid UTF-8 text")]) from None
    if len(encoded) > MAX_BYTES:
        raise Rejected([Problem(0, f"the program has {len(encoded):,} bytes; at most {MAX_BYTES:,} are allowed")])
    if "\0" in source:
        raise Rejected([Problem(0, "the program contains a NUL character")])
    if not source.strip():
        raise Rejected([Problem(0, "the program is empty")])


def check_program(source: str, parameters: tuple[str, ...] = PARAMETERS) -> ast.Module:
    """Check `source` and return its tree, imports and annotations removed; raise `Rejected` with all reasons."""
    check_size(source)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        fence = "```" in source
        hint = "; remove the Markdown fence" if fence else ""
        raise Rejected([Problem(error.lineno or 0, f"not valid Python ({error.msg}){hint}")]) from None
    except (ValueError, MemoryError, RecursionError):
        raise Rejected([Problem(0, "the program is nested too deeply or holds a number too long to parse")]) from None
    _check_shape(tree)
    checker = _Checker(parameters)
    checker.module(tree)
    if checker.problems:
        raise Rejected(sorted(set(checker.problems), key=lambda problem: (problem.line, problem.reason)))
    stripped: ast.Module = ast.fix_missing_locations(_Strip().visit(tree))
    return stripped


def _check_shape(tree: ast.Module) -> None:
    """Bound nodes and depth without recursion, so that the recursive passes below are safe."""
    count = 0
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise Rejected([Problem(vars(node).get("lineno", 0), f"nested more than {MAX_DEPTH} levels deep")])
        if count > MAX_NODES:
            raise Rejected([Problem(0, f"the program has more than {MAX_NODES:,} syntax nodes; make it simpler")])
        stack.extend((child, depth + 1) for child in ast.iter_child_nodes(node))


class _Checker:
    """One walk over the tree; collects problems instead of stopping at the first."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.parameters = parameters
        self.problems: list[Problem] = []
        self.constants: set[str] = set()
        self.functions: set[str] = set()

    def refuse(self, node: ast.AST, reason: str) -> None:
        self.problems.append(Problem(vars(node).get("lineno", 0), reason))

    def module(self, tree: ast.Module) -> None:
        entry: ast.FunctionDef | None = None
        for number, node in enumerate(tree.body):
            if isinstance(node, ast.FunctionDef):
                if node.name in self.functions:
                    self.refuse(node, f"{_shown(node.name)} is defined twice")
                self.functions.add(node.name)
                entry = node if node.name == ENTRY else entry
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self.constant(node)
            elif _is_docstring(node):
                if number:
                    continue
            elif not _is_allowed_import(node):
                self.refuse(node, _REFUSED.get(type(node), "only functions and constants are allowed at module level"))
        wanted = ", ".join(self.parameters)
        if entry is None:
            self.refuse(tree, f"no function `{ENTRY}({wanted})` is defined")
        elif len(entry.args.args) != len(self.parameters) or entry.args.defaults:
            self.refuse(entry, f"`{ENTRY}` must take exactly ({wanted})")
        known = {*self.functions, *self.constants}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.function(node, known)

    def constant(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in names:
                if not isinstance(name, ast.Name):
                    self.refuse(node, "only plain names can be assigned at module level")
                else:
                    self.binding(name, name.id)
                    self.constants.add(name.id)
        if isinstance(node, ast.AnnAssign):
            self.annotation(node.annotation)
        if node.value is not None and not self.is_literal(node.value):
            self.refuse(node, "module-level values must be literal constants; compute anything else inside a function")

    def is_literal(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            self.literal(node)
            return True
        if isinstance(node, ast.Name):
            return node.id in self.constants
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return all(self.is_literal(element) for element in node.elts)
        if isinstance(node, ast.Dict):
            return all(key is not None and self.is_literal(key) for key in node.keys) and all(
                self.is_literal(value) for value in node.values
            )
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub | ast.UAdd | ast.Invert) and self.is_literal(node.operand)
        if isinstance(node, ast.BinOp):
            arithmetic = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod)
            sides = (node.left, node.right)
            numeric = all(not (isinstance(side, ast.Constant) and isinstance(side.value, str)) for side in sides)
            return arithmetic and numeric and all(self.is_literal(side) for side in sides)
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in {"np", "math"}
            and node.attr in {"inf", "pi", "e"}
        )

    def function(self, node: ast.FunctionDef, known: set[str]) -> None:
        self.binding(node, node.name)
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.posonlyargs or arguments.kwonlyargs:
            self.refuse(node, "only plain parameters are allowed")
        if vars(node).get("type_params"):
            self.refuse(node, "type parameters are not allowed")
        for decorator in node.decorator_list:
            self.refuse(decorator, "decorators are not allowed")
        for default in arguments.defaults:
            if not isinstance(default, ast.Constant | ast.UnaryOp) or not self.is_literal(default):
                self.refuse(default, "default values must be numbers, strings, True, False or None")
        for argument in arguments.args:
            self.binding(argument, argument.arg)
            if argument.annotation is not None:
                self.annotation(argument.annotation)
        if node.returns is not None:
            self.annotation(node.returns)
        local = {argument.arg for argument in arguments.args} | {name for name, _ in _bindings(node)}
        names = known | local
        shared = self.constants - local
        for number, statement in enumerate(node.body):
            if number == 0 and _is_docstring(statement):
                continue
            self.visit(statement, names, shared)

    def visit(self, node: ast.AST, names: set[str], shared: set[str]) -> None:
        if isinstance(node, ast.FunctionDef):
            self.function(node, names)
            return
        if not isinstance(node, _ALLOWED):
            self.refuse(node, _REFUSED.get(type(node), f"{type(node).__name__} is not allowed"))
            return
        if isinstance(node, ast.AnnAssign):
            self.annotation(node.annotation)
            self.target(node.target, shared)
            self.visit(node.target, names, shared)
            if node.value is not None:
                self.visit(node.value, names, shared)
            return
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.target(target, shared)
        elif isinstance(node, ast.AugAssign | ast.For | ast.comprehension):
            self.target(node.target, shared)
        elif isinstance(node, ast.Constant):
            self.literal(node)
        elif isinstance(node, ast.Attribute):
            if self.attribute(node):
                return
        elif isinstance(node, ast.Name):
            self.name(node, names)
        elif isinstance(node, ast.Call):
            self.call(node)
        elif isinstance(node, ast.Dict) and any(key is None for key in node.keys):
            self.refuse(node, _REFUSED[ast.Starred])
        elif isinstance(node, ast.keyword) and node.arg is None:
            self.refuse(node.value, _REFUSED[ast.Starred])
        if isinstance(node, ast.Expr) and _is_docstring(node):
            return
        for child in ast.iter_child_nodes(node):
            self.visit(child, names, shared)

    def binding(self, node: ast.AST, name: str) -> None:
        if name in {"np", "math", "numpy"}:
            self.refuse(node, f"{name} cannot be redefined")
        elif "__" in name or not name.isascii():
            self.refuse(node, f"the name '{_shown(name)}' is not allowed")

    def target(self, target: ast.expr, shared: set[str]) -> None:
        if isinstance(target, ast.Name):
            self.binding(target, target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self.target(element, shared)
        elif isinstance(target, ast.Subscript):
            base = target.value
            while isinstance(base, ast.Subscript):
                base = base.value
            if isinstance(base, ast.Name) and base.id in shared:
                name = _shown(base.id)
                self.refuse(target, f"{name} is a module constant and cannot be changed: potentials keep no state")
        elif isinstance(target, ast.Attribute):
            self.refuse(target, "attributes cannot be assigned")

    def name(self, node: ast.Name, names: set[str]) -> None:
        if node.id in names or node.id in BUILTINS:
            if "__" in node.id or not node.id.isascii():
                self.refuse(node, f"the name '{_shown(node.id)}' is not allowed")
        elif node.id in {"np", "math", "numpy"}:
            self.refuse(node, f"{node.id} can only be used as `{node.id}.something`")
        else:
            why = _WHY_NAME.get(node.id, "it is neither defined here nor an allowed builtin")
            self.refuse(node, f"the name '{_shown(node.id)}' is not allowed: {why}")

    def attribute(self, node: ast.Attribute) -> bool:
        """Check one attribute; True when its left side needs no visit."""
        path: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            path.insert(0, root.attr)
            root = root.value
        if isinstance(root, ast.Name) and root.id in {"np", "math"}:
            self.module_attribute(node, root.id, path)
            return True
        if node.attr not in METHODS:
            self.refuse(node, f"the attribute .{_shown(node.attr)} is not allowed")
        return False

    def module_attribute(self, node: ast.Attribute, module: str, path: list[str]) -> None:
        allowed = NUMPY if module == "np" else MATH
        name = _shown(f"{module}.{'.'.join(path)}")
        if path[:1] == ["linalg"] and module == "np":
            if len(path) != 2 or path[1] not in NUMPY_LINALG:
                self.refuse(node, f"{name} is not allowed: of np.linalg only np.linalg.norm is")
        elif path[0] not in allowed:
            why = _WHY_NUMPY.get(path[0], "it is not on the list of allowed functions")
            self.refuse(node, f"{name} is not allowed: {why}")
        elif len(path) > 1:
            self.refuse(node, f"{name} is not allowed: functions have no attributes here")

    def literal(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bytes | complex):
            self.refuse(node, f"{type(value).__name__} values are not allowed")
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            self.refuse(node, "integers beyond 2**53 are not allowed")
        elif isinstance(value, str) and len(value) > MAX_STRING:
            self.refuse(node, f"strings longer than {MAX_STRING} characters are not allowed")

    def call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "astype" and node.args:
            self.dtype(node.args[0])
        for keyword in node.keywords:
            if keyword.arg == "dtype":
                self.dtype(keyword.value)
        if self.leaves_places(node):
            self.refuse(
                node,
                'where= without out= leaves other places uninitialised, as mode="empty" does, so the result would not '
                "be deterministic; use np.where, or add out=np.zeros(...)",
            )
        if not isinstance(function, ast.Name | ast.Attribute):
            self.refuse(node, "only named functions and methods can be called")

    def leaves_places(self, node: ast.Call) -> bool:
        """Whether NumPy would leave places of its result as they were in memory."""
        function = node.func
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if isinstance(function, ast.Name) and function.id in self.functions:  # may have a parameter of that name
            return False
        if isinstance(function, ast.Attribute) and function.attr in REDUCTIONS:
            return False
        if isinstance(function, ast.Attribute) and function.attr == "pad":
            return any(isinstance(one, ast.Constant) and one.value == "empty" for one in (*node.args, *given.values()))
        out = given.get("out", ast.Constant(None))
        places = out.elts if isinstance(out, ast.Tuple) else [out]
        return "where" in given and any(isinstance(one, ast.Constant) and one.value is None for one in places)

    def dtype(self, node: ast.expr) -> None:
        text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in DTYPE_STRINGS
        builtin = isinstance(node, ast.Name) and node.id in {"int", "float", "bool"}
        numpy = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "np"
            and node.attr in NUMPY_TYPES
        )
        same = isinstance(node, ast.Attribute) and node.attr == "dtype"
        if not (text or builtin or numpy or same):
            self.refuse(node, "a dtype must be one of " + ", ".join(sorted(NUMPY_TYPES - {"bool"})))

    def annotation(self, node: ast.expr) -> None:
        """Annotations are dropped before anything runs; they only have to look like types."""
        for part in ast.walk(node):
            plain = ast.Name | ast.Attribute | ast.Subscript | ast.Tuple | ast.List | ast.Constant | ast.BinOp
            if not isinstance(part, plain | ast.expr_context | ast.operator):
                self.refuse(node, "annotations must be plain types")
                return


def _shown(name: str) -> str:
    """A name as it stands in a reason: in ASCII, and a very long one cut, so that all reasons fit into one reply."""
    text = ascii(name)[1:-1]
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_allowed_import(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):  # annotations are dropped, so what typing offers is never looked up
        return node.module in {"typing", "__future__"} and node.level == 0 and all(a.name != "*" for a in node.names)
    if not isinstance(node, ast.Import):
        return False
    return all((a.name, a.asname) in {("numpy", "np"), ("math", None), ("math", "math")} for a in node.names)


def _bindings(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST]]:
    """Names a function body binds, nested functions' own locals left out."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node
        stack.extend(ast.iter_child_nodes(node))


class _Strip(ast.NodeTransformer):
    """Drops imports and annotations: the names are there already, and an annotation would be evaluated."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        plain = ast.Pass() if node.value is None else ast.Assign(targets=[node.target], value=node.value)
        return ast.copy_location(plain, node)
