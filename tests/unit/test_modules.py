"""Rules of the architecture of Python modules: mutable state, creation of files, imports."""

import ast
import re
from pathlib import Path

import pytest
from test_architecture import MODULES, PACKAGE, circle, parsed, text_of, wrong_in

from hvdlite.core import launchers

CONTAINERS = "set dict list deque Counter defaultdict count cycle local ExitStack WeakSet"
CONTAINERS = {*CONTAINERS.split(), "WeakKeyDictionary", "WeakValueDictionary", "Process"}
CHANGES = "append appendleft extend insert add update setdefault pop popleft popitem remove discard"
CHANGES = {*CHANGES.split(), "clear", "__setitem__"}


def kept_by(code: str) -> list:
    """Return the names, of a module or its classes, whose values the module's functions change."""
    tree, found = parsed(code), []
    names = set()  # names that the module itself assigns
    for body in [tree.body, *(c.body for c in ast.walk(tree) if isinstance(c, ast.ClassDef))]:
        for node in body:
            target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
            if isinstance(target, ast.Name):
                names.add(target.id)
                made = node.value.func if isinstance(node.value, ast.Call) else None
                container = ast.unparse(made).rpartition(".")[2] if made else ""
                if container in CONTAINERS and not re.fullmatch("[A-Z_]+|__all__", target.id):
                    found.append(target.id)
            elif isinstance(node, ast.ClassDef):
                names.add(node.name)
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.Lambda)):
            found += changed_by(function, names)
        if isinstance(function, ast.FunctionDef):
            cached = any("cache" in ast.unparse(each) for each in function.decorator_list)
            found += [function.name] * cached + kept_by_closures_of(function)
    return list(dict.fromkeys(found))


def changed_by(function, names: set) -> list:
    """Return the names, of the given names outside the function, whose values it changes."""
    found = []
    own = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
    own |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and is_bound(n)}
    own |= {f.name for f in ast.walk(function) if isinstance(f, ast.FunctionDef)}
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            found += [n for n in node.names if isinstance(node, ast.Global) or n in names]
        of = getattr(node, "value", None)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in CHANGES:
            of = node.func.value
        elif not isinstance(node, (ast.Attribute, ast.Subscript)) or not is_bound(node):
            continue
        name = getattr(of, "id", None) if of is not None else None
        if name == "cls" or (name in names and name not in own):
            found.append(name)
    return found


def kept_by_closures_of(function) -> list:
    """Return the function's variables that are changed by an inner function that it returns."""
    nodes = list(ast.walk(function))
    names = {
        t.id for n in nodes if isinstance(n, ast.Assign) for t in n.targets if hasattr(t, "id")
    }
    returned = {getattr(n.value, "id", None) for n in nodes if isinstance(n, ast.Return)}
    inner = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name in returned - {None}]
    return [name for each in inner if each is not function for name in changed_by(each, names)]


def is_bound(node) -> bool:
    return isinstance(node.ctx, (ast.Store, ast.Del))


def path(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


def test_modules_keep_mutable_state_only_in_a_module_state():
    def kept(file) -> list:
        code = text_of(file)
        classes = "|".join(re.findall(r"class (\w+)\(ModuleState\)", code))
        states = re.findall(rf"^(\w+) = (?:{classes})\(\)$", code, re.M)
        return [name for name in kept_by(code) if name not in states]

    assert wrong_in(MODULES, kept) == {"hvdlite/core/module_state.py": ["process"]}


@pytest.mark.parametrize(
    "code, expected",
    [
        ("_kept = []\ndef f():\n    _kept.append(1)", ["_kept"]),
        ("_kept = {}\ndef f():\n    _kept[1] = 2", ["_kept"]),
        ("_kept = {}\ndef f():\n    del _kept[1]", ["_kept"]),
        ("_kept = Counter()", ["_kept"]),
        ("_own: Any = threading.local()", ["_own"]),
        ("class A:\n    x = 0\ndef f():\n    A.x = 1", ["A"]),
        ("class A:\n    x = 0\n    def f(self):\n        A.x += 1", ["A"]),
        ("class A:\n    @classmethod\n    def f(cls):\n        cls.x = 1", ["cls"]),
        ("x = 0\ndef f():\n    global x\n    x = 1", ["x"]),
        ("NAMES = dict(a=1)\ndef f():\n    return NAMES['a']", []),
        ("def f():\n    kept = []\n    kept.append(1)", []),
        ("def f():\n    def g():\n        pass\n    g.x = 1", []),
        ("kept = ()\ndef f(kept):\n    kept.append(1)", []),
        ("@functools.lru_cache(maxsize=None)\ndef f():\n    return A()", ["f"]),
        ("def f(g):\n    made = {}\n    def h(x):\n        made[x] = g(x)\n    return h", ["made"]),
        (
            "def f():\n    made = {}\n    def h():\n        made[1] = 2\n    h()\n    return made",
            [],
        ),
    ],
)
def test_the_check_finds_mutable_state_of_modules(code, expected):
    assert kept_by(code) == expected


# functions that create files
MAKES_FILES = "os.mkfifo os.mknod os.link os.symlink os.creat sqlite3.connect shelve.open np.save"
MAKES_FILES = {*MAKES_FILES.split(), "np.savez", "tempfile.NamedTemporaryFile", "codecs.open"}
MAKES_FILES |= {"tempfile.mkstemp", "tempfile.mktemp", "io.open"}
MAKES_FILES |= {f"shutil.{name}" for name in ("copy", "copy2", "copyfile", "copytree")}
# methods, of any object, that create files
METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "tofile"}
DEVICES = (["os.devnull"], ["'/dev/tty'"])


def makes_a_file(call: ast.Call) -> bool:
    """Return whether the call creates a file or may truncate one."""
    name = ast.unparse(call.func)
    if name in ("open", "io.open") or (name.endswith(".open") and name != "os.open"):
        of = [ast.unparse(each) for each in call.args]
        modes = [*of[name == "open" : 1 + (name == "open")]]
        modes += [ast.unparse(k.value) for k in call.keywords if k.arg == "mode"]
        written = any(re.fullmatch(r"'[rwxabt+U]*[wxa+][rwxabt+U]*'", mode) for mode in modes)
        unknown = name == "open" and any(not mode.startswith("'") for mode in modes)
        return (written or unknown) and of[:1] not in DEVICES
    if name == "os.open":
        return "O_CREAT" in ast.unparse(call) or "O_TRUNC" in ast.unparse(call)
    return name in MAKES_FILES or name.rpartition(".")[2] in METHODS and "files" not in name


def test_only_one_module_creates_files():
    """machine/files.py creates all files, because it refuses files and links of other users."""
    calls = [
        (module, node)
        for module in MODULES
        for node in ast.walk(parsed(text_of(module)))
        if isinstance(node, ast.Call) and makes_a_file(node)
    ]
    assert {module.name for module, _ in calls} == {"files.py"}, [
        f"{module.name}:{node.lineno}" for module, node in calls
    ]


@pytest.mark.parametrize(
    "code, expected",
    [
        ("open(a, 'w')", True),
        ("open(a, mode='ab')", True),
        ("open(a, self._mode)", True),
        ("open(a, 'r+b')", True),
        ("Path(a).open('wb')", True),
        ("Path(a).write_text('')", True),
        ("os.open(a, os.O_WRONLY | os.O_CREAT)", True),
        ("tempfile.mkstemp()", True),
        ("open(a)", False),
        ("open(a, 'rb')", False),
        ("open(os.devnull, 'w')", False),
        ("os.open(a, os.O_WRONLY | os.O_NONBLOCK)", False),
        ("world.open(ranks)", False),
    ],
)
def test_the_check_finds_calls_that_create_files(code, expected):
    assert makes_a_file(ast.parse(code).body[0].value) == expected


# Imports that only the listed modules may use.
IMPORTERS = {
    # In this order, the modules build the libraries with cffi, load the library for an MPI, load
    # the core, look for the core, and load the library for JAX.
    r"hvdlite\._hvdlite_|from hvdlite import .*_hvdlite": {
        "_build.py", "bootstrap/mpi/loading.py", "core/native.py", "machine/probe.py",
        "jax/calls.py", "jax/cliques.py",
    },
    # patches/after_import.py changes mpi4py when other code imports it.
    r"\bimport mpi4py|from mpi4py|modules(?:\.get\(|\[)\"mpi4py": {
        "core/mpi.py", "patches/after_import.py",
    },
    r"hvdlite\.bootstrap(?:\.| import )mpi\b": {  # all other modules use the World of the job
        "__init__.py", "core/member.py", "machine/probe.py",
        "bootstrap/mpi/bootstrap.py", "bootstrap/mpi/loading.py", "bootstrap/mpi/meeting.py",
        "bootstrap/mpi/world.py",
    },
}  # fmt: skip


@pytest.mark.parametrize("pattern, importers", IMPORTERS.items(), ids=IMPORTERS)
def test_only_the_listed_modules_import_mpi_and_the_c_library(pattern, importers):
    assert {path(m) for m in MODULES if re.search(pattern, text_of(m))} == importers


# Names of mpi4py that no other library has.
OF_MPI = "Is_initialized Is_finalized Init_thread Query_thread Get_library_version Abort COMM_WORLD"
OF_MPI = {*OF_MPI.split(), "COMM_SELF", "COMM_NULL", "Create_group", "Create_keyval", "Get_attr"}
OF_MPI |= {"Set_attr", "Isend", "Recv", "Iprobe", "Ibarrier", "Dup", "Split", "Translate_ranks"}


def test_one_module_calls_mpi():
    users = {
        path(module)
        for module in MODULES
        for node in ast.walk(parsed(text_of(module)))
        if isinstance(node, ast.Attribute)
        and (
            node.attr in OF_MPI
            or "MPI" in (getattr(node.value, "id", ""), getattr(node.value, "attr", ""))
        )
    }
    assert users == {"core/mpi.py"}


def test_environment_variables_of_launchers_are_in_one_table():
    """init_wait.py is exempt: it runs as a script without the package."""
    rows = (*launchers.OF_MPI, launchers.SRUN, launchers.JAX)
    names = {name for row in rows for name in (*row[1:3], *row.run) if name}
    names.update(launchers.TORCHRUN.run)
    users = {
        module.name
        for module in MODULES
        for node in ast.walk(parsed(text_of(module)))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert users == {"launchers.py", "init_wait.py"}


# Packages that may import each framework; Keras uses some of the other frameworks as backends.
FRAMEWORKS = {
    "mxnet": {"mxnet", "bench"},
    "torch": {"torch", "backend", "keras"},  # backend is hvdlite.torch.backend
    "tensorflow": {"tensorflow", "keras"},
    "jax": {"jax", "keras"},
    "keras": {"keras", "tensorflow"},
    "xgboost": {"xgboost"},
}


@pytest.mark.parametrize("framework, folders", FRAMEWORKS.items(), ids=FRAMEWORKS)
def test_a_framework_is_imported_only_in_its_folder(framework, folders):
    """Other modules import the folder only inside functions: hvdlite works without a framework."""
    importing = rf"^(?:\s*(?:import|from) {framework}|(?:import|from) hvdlite\.{framework})\b"
    users = {m.parent.name for m in MODULES if re.search(importing, text_of(m), re.M)}
    assert users and users <= folders


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported_by(file: Path) -> set:
    """Return the modules that a module imports at its top level or in functions.

    The module's own package is left out, because Python imports the package first in any case.
    """
    found = set()
    for node in ast.walk(parsed(text_of(file))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found - {module_name(file).rpartition(".")[0]}


def test_no_modules_import_each_other_in_a_circle():
    """The package itself is exempt: it imports every public name at its first use."""
    every = {module_name(m): imported_by(m) for m in MODULES}
    assert circle({name: every[name] for name in every if name != "hvdlite"}) == set()


# The packages of hvdlite and its top-level modules, lowest layer first. A module may import from
# earlier lines; hvdlite itself imports each public name at its first use.
FLOORS = [
    {"machine"},
    {"core"},
    {"cli", "numpy", "patches"},
    {"monitor"},
    {"exit", "launch"},
    {"bootstrap"},
    {"membership"},
    {"joined"},
    {"at_exit"},
    {"job"},
    {"training"},
    {"elastic", "bench"},
    {"jax", "mxnet", "torch", "xgboost", "lightgbm"},
    {"keras"},
    {"tensorflow", "horovod"},
    {"as_horovod", "__main__", "_build"},
]
# The only imports of a higher layer, and why they are needed.
UPWARD = {
    ("hvdlite.patches.kvstore_hooks", "hvdlite.mxnet"),  # imported when MXNet makes a kvstore
    ("hvdlite.keras.averaging", "hvdlite.tensorflow"),  # for Keras with TensorFlow
    # runs in each rank when Python starts
    ("hvdlite.launch.job_site.sitecustomize", "hvdlite.as_horovod"),
}


def test_packages_import_only_lower_layers():
    floor_of = {f"hvdlite.{name}": number for number, floor in enumerate(FLOORS) for name in floor}
    upward = set()
    for file in MODULES:
        module = module_name(file)
        own = ".".join(module.split(".")[:2])
        others = {".".join(name.split(".")[:2]) for name in imported_by(file)} - {own}
        for other in others & set(floor_of) if own != "hvdlite" else ():
            if floor_of[other] >= floor_of[own]:
                upward.add((module, other))
    assert upward == UPWARD


# Functions that Python 3.8 lacks. No other test runs with Python 3.8.
NEWER = "removeprefix|removesuffix|resolve_name|functools.cache|is_relative_to|math.lcm|pidfd_open"


def test_modules_use_no_function_that_python_3_8_lacks():
    assert wrong_in(MODULES, lambda path: re.findall(rf"\b(?:{NEWER})\b", text_of(path))) == {}
