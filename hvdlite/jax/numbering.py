"""Gives each call of hvdlite in a program its own name, before XLA compiles the program.

A program can call one name several times: through an inner ``jit`` function, which JAX traces once;
through ``scan(unroll=...)``; or through one optimizer for two models. XLA may run such calls in any
order, and ranks would then mix them up. So this module adds ``#1``, ``#2``, ... to the second and
later calls of a name, in the order of the program. Branches of a ``cond`` exclude each other, so
their calls keep equal names: ranks may take different branches.
"""

import functools
from typing import Any, Iterator, Set, Tuple

from jax._src import compiler
from jaxlib.mlir import ir

from hvdlite.jax.cliques import TARGET

_BRANCHES = "stablehlo.case", "stablehlo.if"
_CALLEES = "callee", "decomposition"  # attributes of a call and of jax.lax.composite
_CONFIG = "mhlo.backend_config"  # has the attributes of a custom call


def install() -> None:
    """Make JAX number the calls of all programs that it compiles from now on."""
    made = compiler.compile_or_get_cached

    @functools.wraps(made)
    def compiled(backend, module, *args, **named):
        with module.context, ir.Location.unknown():
            _Numbering(module.operation).run()
        return made(backend, module, *args, **named)

    compiler.compile_or_get_cached = compiled


def _inside(op: Any) -> Iterator[Any]:
    return (each.operation for region in op.regions for block in region for each in block)


def _text(op: Any, attribute: str) -> str:
    return op.attributes[attribute].value if attribute in op.attributes else ""


def _callee(op: Any) -> Tuple[str, str]:
    """Return the attribute that names the function which the operation calls, and its name."""
    return next(((each, _text(op, each)) for each in _CALLEES if each in op.attributes), ("", ""))


def _is_call(op: Any) -> bool:
    return op.name == "stablehlo.custom_call" and _text(op, "call_target_name") == TARGET


class _Numbering:
    """Renames the calls of a module of MLIR. A second run leaves the names as they are."""

    def __init__(self, module: Any) -> None:
        self._symbols = ir.SymbolTable(module)
        self._end = ir.InsertionPoint(module.regions[0].blocks[0])
        self._functions = {_text(op, "sym_name"): op for op in _inside(module)}
        self._has_calls = functools.lru_cache(maxsize=None)(self._looked)

    def run(self) -> None:
        originals = [name for name in self._functions if name != "main" and self._has_calls(name)]
        if self._has_calls("main"):
            self._rename_inside(self._functions["main"], set())
            for name in originals:  # only copies are called now
                self._symbols.erase(self._functions[name])

    def _looked(self, function: str) -> bool:
        return function in self._functions and self._holds(self._functions[function])

    def _holds(self, op: Any) -> bool:
        found = _is_call(op) or self._has_calls(_callee(op)[1])
        return found or any(map(self._holds, _inside(op)))

    def _rename_inside(self, op: Any, used: Set[Tuple[str, str]]) -> None:
        """Rename the calls inside the operation.

        :param used: the groups and names of the calls before; this adds those of the calls inside.
        """
        before = frozenset(used) if op.name in _BRANCHES else None
        for region in op.regions:
            taken = used if before is None else set(before)
            for block in region:
                for each in block:
                    self._rename(each.operation, taken)
            used |= taken

    def _rename(self, op: Any, used: Set[Tuple[str, str]]) -> None:
        attribute, function = _callee(op)
        if _is_call(op):
            attributes = op.attributes[_CONFIG]
            config = {a.name: a.attr for a in (attributes[i] for i in range(len(attributes)))}
            if not isinstance(config.get("name"), ir.StringAttr):
                return  # from another version of hvdlite; calls.c refuses it
            group, name = str(config.get("group")), config["name"].value
            names = (f"{name}#{i}" if i else name for i in range(len(used) + 1))
            own = next(each for each in names if (group, each) not in used)
            used.add((group, own))
            config["name"] = ir.StringAttr.get(own)
            op.attributes[_CONFIG] = ir.DictAttr.get(config)
        elif self._has_calls(function):  # each call of a function gets a copy of the function
            copy = self._functions[function].clone(self._end).operation
            self._symbols.insert(copy)
            op.attributes[attribute] = ir.FlatSymbolRefAttr.get(_text(copy, "sym_name"))
            self._rename_inside(copy, used)
        else:
            self._rename_inside(op, used)
