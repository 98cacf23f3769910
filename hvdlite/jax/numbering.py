"""Gives each call of hvdlite in a program its own name, before XLA compiles the program.

A program can call one name several times: through an inner ``jit`` function, which JAX traces once;
through ``scan(unroll=...)``; or through one optimizer for two models. XLA may run such calls in any
order, and ranks would then mix them up. So this module numbers the calls of a name in the order of
the program: ``name#1``, ``name#2``, ... Branches of a ``cond`` exclude each other, so the numbers
are equal in all branches: ranks may take different branches. Calls outside of programs have no
number, because XLA may run a program later than a call that follows the program.
"""

import functools
import re
from typing import Any, ChainMap, Dict, Iterator, Tuple

from jax._src import compiler
from jaxlib.mlir import ir

from hvdlite.jax.cliques import TARGET

FIRST = "#1"  # the end of each call's name before this module numbers the calls
_BRANCHES = "stablehlo.case", "stablehlo.if"
_CALLEES = "callee", "decomposition"  # attributes of a call and of jax.lax.composite
_CONFIG = "mhlo.backend_config"  # has the attributes of a custom call
Numbers = ChainMap[Tuple[str, str], int]


def install() -> None:
    """Make JAX number the calls of all programs that it compiles from now on."""
    compile_program = compiler.compile_or_get_cached

    @functools.wraps(compile_program)
    def number_and_compile(backend, module, *args, **named):
        with module.context, ir.Location.unknown():
            _Numbering(module.operation).run()
        return compile_program(backend, module, *args, **named)

    compiler.compile_or_get_cached = number_and_compile


def _operations(regions: Any) -> Iterator[Any]:
    return (each.operation for region in regions for block in region for each in block)


def _callee(op: Any) -> Tuple[str, str]:
    """Return the operation's attribute that names a called function, and the function's name."""
    found = ((each, op.attributes[each].value) for each in _CALLEES if each in op.attributes)
    return next(found, ("", ""))


def _is_call(op: Any) -> bool:
    name = "stablehlo.custom_call"
    return op.name == name and op.attributes["call_target_name"].value == TARGET


class _Numbering:
    """Renames the calls of a module of MLIR. A second run leaves the names as they are."""

    def __init__(self, module: Any) -> None:
        self._functions = ir.SymbolTable(module)
        self._end = ir.InsertionPoint(module.regions[0].blocks[0])
        self._function_has_calls = functools.lru_cache(maxsize=None)(
            lambda name: name in self._functions and self._has_calls(self._functions[name])
        )
        self._callers = list(filter(self._has_calls, _operations(module.regions)))

    def run(self) -> None:
        main = self._functions["main"].operation
        if main in self._callers:
            self._number_all(main.regions, ChainMap())
            self._callers.remove(main)
            for function in self._callers:  # now unused, because main calls copies
                self._functions.erase(function)

    def _has_calls(self, op: Any) -> bool:
        found = _is_call(op) or self._function_has_calls(_callee(op)[1])
        return found or any(map(self._has_calls, _operations(op.regions)))

    def _number_all(self, regions: Any, numbers: Numbers) -> None:
        """Number the calls inside the regions.

        :param numbers: the last number of each group and name so far, which this method updates.
        """
        for op in _operations(regions):
            attribute, function = _callee(op)
            if _is_call(op):
                _number_call(op, numbers)
            elif self._function_has_calls(function):  # a copy for each call, with its own numbers
                copy = self._functions[function].operation.clone(self._end)
                new = self._functions.insert(copy).value
                op.attributes[attribute] = ir.FlatSymbolRefAttr.get(new)
                self._number_all(copy.regions, numbers)
            elif op.name in _BRANCHES:
                last: Dict[Tuple[str, str], int] = {}
                for region in op.regions:
                    branch = numbers.new_child()  # not a copy, which would take long
                    self._number_all([region], branch)
                    last.update({k: max(n, last.get(k, 0)) for k, n in branch.maps[0].items()})
                numbers.update(last)
            else:
                self._number_all(op.regions, numbers)


def _number_call(op: Any, numbers: Numbers) -> None:
    attributes = op.attributes[_CONFIG]
    config = {a.name: a.attr for a in (attributes[i] for i in range(len(attributes)))}
    if isinstance(config.get("name"), ir.StringAttr):  # calls.c refuses a call without a name
        name = re.sub(r"#\d+$", "", config["name"].value)
        key = str(config.get("group")), name
        numbers[key] = numbers.get(key, 0) + 1
        config["name"] = ir.StringAttr.get(f"{name}#{numbers[key]}")
        op.attributes[_CONFIG] = ir.DictAttr.get(config)
