"""Signatures of public names as text."""

import inspect

import hvdlite as hvd

OPERATIONS = ("Average", "Sum", "Min", "Max", "Product", "Adasum")


def default(parameter) -> str:
    value = parameter.default
    if parameter.name == "op" and isinstance(value, int):
        return next(f"hvd.{name}" for name in OPERATIONS if getattr(hvd, name) == value)
    if value is hvd.Compression.none:
        return "hvd.Compression.none"
    return "hvd.global_process_set" if value is hvd.global_process_set else repr(value)


def arguments(function) -> list:
    texts, star = [], False
    for p in inspect.signature(function).parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind == p.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        star = star or prefix == "*"
        shown = "" if p.default is p.empty else f"={default(p)}"
        texts.append(f"{prefix}{p.name}{shown}")
    return texts


def constructor(kind):
    return next((vars(kind)[name] for name in ("__new__", "__init__") if name in vars(kind)), None)
