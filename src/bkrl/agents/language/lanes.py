"""Sixteen numbers at once, for kernels: what a processor multiplies in one instruction, or in two or four.

numba leaves it to the compiler to find loops that can be done so. In short loops over a few rows of a matrix it finds
that they can only after tests that take longer than the loop. Values of the type `Lanes` say it outright. Products and
sums are rounded once where the processor can (`add_product`).
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba import types
from numba.core.cgutils import ir  # llvmlite, of the version that numba needs
from numba.extending import intrinsic, models, register_model

from bkrl.core.jit import helper

LANES: Final = 16
_VECTOR: Final = ir.VectorType(ir.FloatType(), LANES)
_BITS: Final = ir.VectorType(ir.IntType(32), LANES)
_ONCE: Final = ("contract",)


class _Lanes(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="Lanes")


_LANES: Final = _Lanes()


@register_model(_Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _VECTOR)


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.bitcast(builder.gep(data, [args[1]]), _VECTOR.as_pointer())


def _alike(builder: Any, number: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_BITS, [0] * LANES))


@intrinsic
def load(typing: Any, array: Any, at: Any) -> Any:
    """The sixteen numbers of a flat float32 array that begin at an index; nothing looks whether they are inside."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.load(_place(context, builder, signature, args))
        found.align = 4
        return found

    return _LANES(array, types.intp), code


@intrinsic
def store(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Write sixteen numbers into a flat float32 array from an index on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _place(context, builder, signature, args)).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), code


@intrinsic
def alike(typing: Any, number: Any) -> Any:
    """A float32, sixteen times."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _alike(builder, args[0])

    return _LANES(types.float32), code


@intrinsic
def spread(typing: Any, array: Any, at: Any) -> Any:
    """One number of a flat float32 array, sixteen times; nothing looks whether it is inside."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return _alike(builder, builder.load(builder.gep(data, [args[1]])))

    return _LANES(array, types.intp), code


@intrinsic
def total(typing: Any, lanes: Any) -> Any:
    """The sum of sixteen numbers."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = [builder.extract_element(args[0], ir.IntType(32)(place)) for place in range(LANES)]
        while len(found) > 1:
            found = [builder.fadd(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        return found[0]

    return types.float32(_LANES), code


def _of_lanes(count: int, make: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `count` lanes to lanes, from the instructions that `make` writes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return make(builder, *args)

    return lambda typing, *given: (_LANES(*[_LANES] * count), code)


@intrinsic
def add(typing: Any, a: Any, b: Any) -> Any:
    """a + b."""
    return _of_lanes(2, lambda builder, a, b: builder.fadd(a, b, flags=_ONCE))(typing)


@intrinsic
def subtract(typing: Any, a: Any, b: Any) -> Any:
    """a − b."""
    return _of_lanes(2, lambda builder, a, b: builder.fsub(a, b, flags=_ONCE))(typing)


@intrinsic
def multiply(typing: Any, a: Any, b: Any) -> Any:
    """a b."""
    return _of_lanes(2, lambda builder, a, b: builder.fmul(a, b, flags=_ONCE))(typing)


@intrinsic
def divide(typing: Any, a: Any, b: Any) -> Any:
    """a / b."""
    return _of_lanes(2, lambda builder, a, b: builder.fdiv(a, b))(typing)


@intrinsic
def add_product(typing: Any, total: Any, a: Any, b: Any) -> Any:
    """total + a b."""

    def make(builder: Any, total: Any, a: Any, b: Any) -> Any:
        return builder.fadd(total, builder.fmul(a, b, flags=_ONCE), flags=_ONCE)

    return _of_lanes(3, make)(typing)


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> Any:
    """The larger of a and b; a where that is no number."""
    return _of_lanes(2, lambda builder, a, b: builder.select(builder.fcmp_unordered(">", a, b), a, b))(typing)


@intrinsic
def _power(typing: Any, shifted: Any) -> Any:
    """2^n, of n + `_SHIFT`: the last bits of such a number are those of n."""

    def make(builder: Any, shifted: Any) -> Any:
        bits = builder.bitcast(shifted, _BITS)
        bits = builder.add(bits, ir.Constant(_BITS, [127] * LANES))
        return builder.bitcast(builder.shl(bits, ir.Constant(_BITS, [23] * LANES)), _VECTOR)

    return _of_lanes(1, make)(typing)


_SHIFT: Final = np.float32(1.5 * 2**23)
_LOWEST: Final = np.float32(-87.0)
_HIGHEST: Final = np.float32(88.0)
_PER_LN2: Final = np.float32(1 / np.log(2))
_LN2: Final = np.float32(np.log(2))
_1: Final = np.float32(1)
_2: Final = np.float32(1 / 2)
_3: Final = np.float32(1 / 6)
_4: Final = np.float32(1 / 24)
_5: Final = np.float32(1 / 120)
_6: Final = np.float32(1 / 720)


@helper
def exp(x: Any) -> Any:
    """e^x to a few units in the last place, as if x were between −87 and 88: 2^n times the series of what is left."""
    x = subtract(alike(np.float32(0)), larger(subtract(alike(np.float32(0)), x), alike(-_HIGHEST)))
    x = larger(x, alike(_LOWEST))
    shifted = add_product(alike(_SHIFT), x, alike(_PER_LN2))
    n = subtract(shifted, alike(_SHIFT))
    x = subtract(x, multiply(n, alike(_LN2)))
    total = add_product(alike(_5), x, alike(_6))
    total = add_product(alike(_4), x, total)
    total = add_product(alike(_3), x, total)
    total = add_product(alike(_2), x, total)
    total = add_product(alike(_1), x, total)
    return multiply(add_product(alike(_1), x, total), _power(shifted))
