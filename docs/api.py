"""Writes docs/api.md: every public name with its signature and its docstring.

``make docs`` runs it.
"""

import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path

import hvdlite as hvd
import hvdlite.numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# The order of the page: a heading, the modules whose public names follow, whether the docstring of
# the first one introduces them.
SECTIONS = (
    (
        "The job",
        ("hvdlite.lifecycle", "hvdlite.topology", "hvdlite.monitor", "hvdlite._native"),
        False,
    ),
    ("Collectives on MXNet arrays", ("hvdlite.mxnet.ops",), True),
    ("Handles", ("hvdlite.handles", "hvdlite.mxnet.handles"), True),
    ("Waiting for other ranks", ("hvdlite.numpy", "hvdlite.reduce_ops"), False),
    ("Python objects", ("hvdlite.objects",), False),
    ("Process sets", ("hvdlite.process_sets.process_set", "hvdlite.process_sets.registry"), False),
    (
        "Training",
        (
            "hvdlite.mxnet.trainer",
            "hvdlite.mxnet.optimizer",
            "hvdlite.mxnet.parameters",
            "hvdlite.mxnet.states",
            "hvdlite.mxnet.sync_batch_norm",
            "hvdlite.mxnet.zero_copy",
        ),
        False,
    ),
    ("Compression of gradients", ("hvdlite.mxnet.compression",), False),
    (
        "Data, metrics, schedules, checkpoints",
        (
            "hvdlite.mxnet.data",
            "hvdlite.mxnet.evaluation",
            "hvdlite.mxnet.schedule",
            "hvdlite.mxnet.checkpoint",
            "hvdlite.mxnet.estimator",
        ),
        False,
    ),
    ("Jobs from Python", ("hvdlite.launch.api",), False),
    ("What this build has", ("hvdlite.build_queries",), True),
)
OPERATIONS = ("Average", "Sum", "Min", "Max", "Product", "Adasum")

INTRODUCTION = """\
# Every public name

Made from the docstrings by `make docs`: change those, not this page. A script says
`import hvdlite as hvd` or, as one of Horovod's does, `import hvdlite.mxnet as hvd`.

[horovod.md](horovod.md) has these names beside Horovod's, [launch.md](launch.md) the command
`hvdliterun`, [kvstore.md](kvstore.md) the kvstore.
"""

# ---- docstrings as Markdown ----

FIELD = re.compile(r":(param|return|raises)\s*([\w.]*):\s*")
ROLE = re.compile(r":(?:func|class|meth|attr):`([\w.]+)`")


def inline(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", ROLE.sub(r"`\1`", text))


def field(kind: str, name: str, text: str) -> str:
    start = {"param": f"`{name}`: ", "return": "returns ", "raises": f"raises `{name}`: "}[kind]
    if text.startswith("and "):  # one text for several
        start = start[: -len(": ")] + " "
    return textwrap.fill(
        f"* {start}{inline(' '.join(text.split()))}",
        100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def split_fields(doc: str) -> tuple:
    """The docstring without its fields, and those as (kind, name, text), in their order."""
    body, fields = [], []
    for line in doc.splitlines():
        start = FIELD.match(line)
        if start:
            fields.append([*start.groups(), line[start.end() :]])
        elif fields and line.startswith(" "):
            fields[-1][2] += " " + line.strip()
        elif fields and line.strip():
            body.append(line)  # what follows the fields: an example
        else:
            body.append(line)
    return "\n".join(body), fields


def is_code(paragraph: str, after: str) -> bool:
    return paragraph.startswith(">>>") or (after.endswith("::") and paragraph.startswith(" "))


def paragraphs(body: str) -> list:
    """Markdown of each paragraph; code that blank lines divide stays one block."""
    found, after = [], ""
    for paragraph in re.split(r"\n\s*\n", body.strip("\n")):
        if is_code(paragraph, after):
            found.append(f"```python\n{textwrap.dedent(paragraph)}\n```")
        elif paragraph.strip() != "::":
            found.append(inline(re.sub(r"\s*::$", ":", paragraph)))
        after = paragraph.rstrip() if not is_code(paragraph, after) else after
    return found


def markdown(doc: str) -> str:
    body, fields = split_fields(doc)
    texts = paragraphs(body)
    at = next((i for i, text in enumerate(texts) if text.startswith("```python\n>>>")), len(texts))
    if fields:  # before the example
        texts.insert(at, "\n".join(field(*one) for one in fields))
    return "\n\n".join(text for text in texts if text)


# ---- what a name is ----


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


def signature(name: str, function) -> str:
    head = f"{name}("
    return textwrap.fill(
        head + ", ".join(arguments(function)) + ")",
        96, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def constructor(kind):
    return next((vars(kind)[name] for name in ("__new__", "__init__") if name in vars(kind)), None)


def source(module: str) -> str:
    path = Path(importlib.import_module(module).__file__).resolve().relative_to(ROOT)
    return f"Source: [{path}](../{path})"


def member(owner: str, name: str, value) -> str:
    """A public method, property or constant of a class; empty for what users do not need."""
    value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    if (inspect.getdoc(value) or "Internal.").endswith("Internal."):
        return ""
    call = "" if isinstance(value, property) or inspect.isclass(value) else "()"
    if call and arguments(value):
        call = f"({', '.join(arguments(value))})"
    return f"#### `{owner}.{name}{call}`\n\n{markdown(inspect.getdoc(value))}"


def members(name: str, kind) -> list:
    public = [(n, v) for n, v in vars(kind).items() if not n.startswith("_")]
    return [member(name, n, v) for n, v in public if not isinstance(v, (str, int, float))]


def entry(heading: str, name: str, value, module: str) -> str:
    """The description of one name; `name` is how a script writes it."""
    parts = [f"### {heading}"]
    function = constructor(value) if inspect.isclass(value) else value
    if inspect.isroutine(function):
        parts.append(f"```python\n{signature(name, function)}\n```")
    parts.append(markdown(inspect.getdoc(value)))
    if inspect.isclass(value):
        parts += members(heading, value)
    return "\n\n".join(part for part in [*parts, source(module)] if part)


def operations() -> str:
    names = ", ".join(f"`hvd.{name}`" for name in OPERATIONS)
    return (
        f"### {', '.join(OPERATIONS)}\n\n{names}: what `op=` takes, here and for NumPy arrays. See "
        f"[allreduce](#allreduce).\n\n{source('hvdlite.numpy')}"
    )


def is_async(name: str) -> bool:
    return name.rstrip("_").endswith("_async")


def asynchronous() -> str:
    """One entry for all of them: their arguments are those of the functions they are named for."""
    names = [f"`hvd.{name}`" for name in hvd._DEFINED_IN["hvdlite.mxnet.handles"]]
    names += [f"`hvd.numpy.{name}`" for name in vars(hvdlite.numpy) if is_async(name)]
    text = markdown(inspect.getdoc(hvd.allreduce_async))
    return (
        f"### allreduce_async and its like\n\n{text}\n\nSo do, for the functions that they are "
        f"named for: {', '.join(names)}.\n\n{source('hvdlite.mxnet.handles')}"
    )


# ---- the page ----


def public_names(module: str) -> list:
    """In the order in which they are defined."""

    def line(name: str) -> int:
        value = getattr(hvd, name)
        defined = inspect.isclass(value) or inspect.isroutine(value)
        return inspect.getsourcelines(value)[1] if defined else sys.maxsize

    alone = (n for n in hvd._DEFINED_IN[module] if n not in OPERATIONS and not is_async(n))
    return sorted(alone, key=line)


def section(heading: str, modules, introduced: bool) -> str:
    parts = [f"## {heading}"]
    if introduced:
        parts.append(markdown(inspect.getdoc(importlib.import_module(modules[0]))))
    for module in modules:
        for name in public_names(module):
            parts.append(entry(name, f"hvd.{name}", getattr(hvd, name), module))
    if modules[-1] in MORE:
        parts.append(MORE[modules[-1]]())
    return "\n\n".join(parts)


MORE = {"hvdlite.mxnet.ops": operations, "hvdlite.mxnet.handles": asynchronous}


def numpy_functions() -> dict:
    own = {n: v for n, v in vars(hvdlite.numpy).items() if inspect.isroutine(v) and n[0] != "_"}
    return {
        n: v for n, v in own.items()
        if v.__module__ == "hvdlite.numpy" and n not in hvd._DEFINED_IN["hvdlite.numpy"]
        and not is_async(n)
    }  # fmt: skip


def numpy_section() -> str:
    parts = ["## Collectives on NumPy arrays", markdown(inspect.getdoc(hvdlite.numpy))]
    for name, function in numpy_functions().items():
        parts.append(entry(f"numpy.{name}", f"hvd.numpy.{name}", function, "hvdlite.numpy"))
    return "\n\n".join(parts)


def contents(sections) -> str:
    lines = []
    for text in sections:
        headings = re.findall(r"^##(#?) (.+)$", text, re.M)
        links = [f"[{title}](#{anchor(title)})" for _, title in headings]
        lines.append(f"* **{links[0]}**: {', '.join(links[1:])}")
    return "\n".join(lines)


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def page() -> str:
    missing = set(hvd._DEFINED_IN) - {module for _, modules, _ in SECTIONS for module in modules}
    if missing:
        sys.exit(f"docs/api.py: SECTIONS lacks {', '.join(sorted(missing))}")
    sections = [section(*one) for one in SECTIONS]
    sections.insert(2, numpy_section())
    return "\n\n".join([INTRODUCTION.strip(), contents(sections), *sections]) + "\n"


if __name__ == "__main__":
    (HERE / "api.md").write_text(page(), encoding="utf-8")
