"""Rules of the C core: which files a file may include, and which functions and effects it may use.

The comments of the headers give the reasons.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

import hvdlite._build as build

PACKAGE = Path(__file__).resolve().parents[2] / "hvdlite"
CSRC = PACKAGE / "csrc"
HEADERS = sorted(CSRC.rglob("*.h"))
SOURCES = sorted(CSRC.rglob("*.c"))
MODULES = sorted(PACKAGE.rglob("*.py"))

# The folders of csrc, lowest layer first; "" is csrc itself, which has the public interface.
ROOMS = ["base", "kernels", "negotiation", "shm", "transport", "collectives", "engine", ""]
ROOMS += ["job", "mxnet"]
PURE_ROOMS = ("kernels", "negotiation")

MOST_LINES, MOST_LINES_OF_A_FUNCTION = 350, 80
COMMENT_OR_LITERAL = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\])+'""", re.S
)
OBJECT = re.compile(r"(?=\w)[\w\s*&:<>,]+?\b(\w+)(?:\[[^\]]*\])*(?:\s*[=;]|\{)")

# Many rules look at the same files, so each file is read and parsed once.
text_of = functools.lru_cache(None)(Path.read_text)
parsed = functools.lru_cache(None)(ast.parse)


def wrong_in(files, check) -> dict:
    """Return path -> result of check(file), for each file whose result is true or not empty."""
    found = {str(file.relative_to(PACKAGE.parent)): check(file) for file in files}
    return {path: wrong for path, wrong in found.items() if wrong}


def names(files) -> list:
    return [path_of(file) for file in files]


def path_of(file: Path) -> str:
    """Return the path as #include writes it, for example transport/wait.h."""
    return file.relative_to(CSRC).as_posix()


def room_of(path: str) -> str:
    return path.rpartition("/")[0]


@functools.lru_cache(None)
def code_of(file: Path) -> str:
    """Return the C text with comments and literals blanked, but with #include "..." unchanged."""

    def blank(match: re.Match) -> str:
        text = match.group()
        before = file_text[file_text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if before.lstrip().startswith("#") and "include" in before:
            return text
        return '""' if text[0] in "\"'" else re.sub(r"[^\n]", " ", text)

    file_text = text_of(file)
    return COMMENT_OR_LITERAL.sub(blank, file_text)


def includes(file: Path) -> list:
    return re.findall(r'^[ \t]*#\s*include\s+"([^"]+)"', code_of(file), re.M)


def system_includes(file: Path) -> list:
    return re.findall(r"^[ \t]*#\s*include\s+<([^>]+)>", code_of(file), re.M)


def users_of(pattern: str, files=None) -> set:
    files = SOURCES + HEADERS if files is None else files
    return {path_of(file) for file in files if re.search(pattern, code_of(file))}


def circle(below) -> set:
    """Return the files that include each other in a circle, and all files that need these files."""
    left = set(below)
    while True:
        lowest = {path for path in left if not (left - {path}).intersection(below[path])}
        if not lowest:
            return left
        left -= lowest


def test_the_lists_of_sources_and_headers_are_complete():
    assert len(SOURCES) > 20
    assert len(HEADERS) > 20
    assert {room_of(path) for path in names(SOURCES + HEADERS)} == set(ROOMS)


def test_a_file_includes_only_its_own_and_lower_folders():
    def wrong(file) -> list:
        allowed = ROOMS[: ROOMS.index(room_of(path_of(file))) + 1]
        found = includes(file)
        return [p for p in found if room_of(p) not in allowed or not (CSRC / p).exists()]

    assert wrong_in(SOURCES + HEADERS, wrong) == {}


def test_no_headers_include_each_other_in_a_circle():
    assert circle({path_of(header): includes(header) for header in HEADERS}) == set()


def test_no_sources_call_each_other_in_a_circle():
    """collectives/ is exempt: coll.c calls every algorithm, and some algorithms call coll.c."""
    defined = r"^(?!static)\w[\w *]*?\b(\w+)\([^;{}]*\) \{$"
    codes = {path_of(source): code_of(source) for source in SOURCES}
    owners = {name: path for path in codes for name in re.findall(defined, codes[path], re.M)}
    assert len(owners) > 500
    left = {path for path in codes if room_of(path) != "collectives"}
    assert circle({p: {owners.get(w) for w in re.findall(r"\w+", codes[p])} for p in left}) == set()


def test_a_source_includes_its_own_header_first():
    own = {s: path_of(s.with_suffix(".h")) for s in SOURCES if s.with_suffix(".h") in HEADERS}
    assert wrong_in(own, lambda source: includes(source)[0] != own[source]) == {}


def test_a_header_begins_with_its_purpose():
    """The comment has a first line with the purpose, an empty line, then owner, threads, units."""

    def wrong(header) -> bool:
        comment = re.match(r"/\* \S.*?\*/", text_of(header), re.S)
        return not comment or not re.search(r"\n \*\n \* \S", comment[0])

    assert wrong_in(HEADERS, wrong) == {}


def test_a_source_without_its_own_header_begins_with_its_purpose():
    own_purpose = [s for s in SOURCES if s.with_suffix(".h") not in HEADERS]
    assert wrong_in(own_purpose, lambda source: not text_of(source).startswith("/* ")) == {}


def test_a_header_is_guarded_by_its_name():
    def wrong(header) -> bool:
        guard = re.sub(r"\W", "_", f"HVDLITE_{path_of(header)}").upper()
        return f"#ifndef {guard}\n#define {guard}\n" not in text_of(header)

    assert wrong_in(HEADERS, wrong) == {}


DOORS = [  # effect, pattern of the code that has the effect, the only files that may have this code
    ("MPI", r"\bMPI_\w+|<mpi\.h>", {"transport/transport_mpi.c"}),
    ("the environment", r"\bgetenv\b|\benviron\b", {"base/options.c"}),
    ("time", r"\bclock_gettime\b|\bnanosleep\b|\busleep\b|\btime\(", {"base/os.c"}),
    ("sockets", r"\bsocket\(|\bsendto\(|\brecvfrom\(", {"transport/nudge.c"}),
    ("streams", r"\bsendmsg\(|\breadv\(", {"transport/link.c"}),
    ("poll", r"\bp?poll\(|\beventfd\(", {"base/poller.c"}),
    ("epoll", r"\bepoll_\w+\(", {"transport/net.c"}),
    ("futexes", r"\bSYS_futex\b|\bFUTEX_", {"shm/doorbell.c"}),
    ("shared memory", r"\bshm_(?:open|unlink)\(|\bmmap\(", {"shm/shmem.c"}),
    ("memory of other processes", r"\bprocess_vm_\w+\(", {"shm/near.c"}),
    ("the loader", r"\bdlopen\b|\bdlsym\b", {"mxnet/api.c"}),
    ("the console", r"\b(?:printf|puts|putchar|perror|fputs)\s*\(", set()),
    ("files", r"\bfopen\b|\bfwrite\b|\bfreopen\b|\bfdopen\b", {"base/output.c"}),
    ("new files", r"\bO_CREAT\b|\bcreat\(|\bmk\w*temp\(|\bmkfifo\(|\bmknod", {"base/output.c"}),
    ("names in the file system", r"\bAF_UNIX\b|\bsem_open\(|\bmq_open\(|\blink\(", set()),
    ("stderr", r"\bstderr\b|\bSTDERR_FILENO\b|\bfprintf\b|\bdprintf\b", {"base/output.c"}),
    ("stdout", r"\bstdout\b", set()),
    ("exit", r"\b(?:exit|_exit|abort|raise|kill)\s*\(", {"job/end.c"}),
    ("signals", r"\bsignal\s*\(|\bsigaction\b", {"job/stacks.c", "job/stacks.h"}),
    ("Python", r"\bPy[A-Z_]\w+|<Python\.h>", set()),
]


@pytest.mark.parametrize("door, pattern, behind", DOORS, ids=[door for door, _, _ in DOORS])
def test_each_system_interface_is_used_only_in_its_file(door, pattern, behind):
    assert users_of(pattern) <= behind, door
    if behind:
        assert users_of(pattern), f"the pattern for {door} matches nothing any more"


def test_pthreads_are_used_only_in_one_file():
    """job/context.c is exempt, but only for the lock that guards the pointer to the context."""
    assert users_of(r"\bpthread_\w+\s*\(") <= {"base/os.c", "job/context.c"}
    context = code_of(CSRC / "job/context.c")
    assert set(re.findall(r"\bpthread_\w+(?=\s*\()", context)) <= {
        "pthread_rwlock_rdlock",
        "pthread_rwlock_wrlock",
        "pthread_rwlock_unlock",
    }


def test_algorithms_use_no_mpi_no_threads_and_no_mxnet():
    allowed = {"math.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"}

    def wrong(source) -> set:
        used = re.findall(r"MPI|pthread|atomic|monitor|mxnet|NDArray", code_of(source))
        return {*used, *system_includes(source)} - allowed

    algorithms = [f for f in SOURCES if f.parent.name == "collectives"]
    assert wrong_in(algorithms, wrong) == {}


def test_pure_code_uses_no_clock_no_threads_and_no_log():
    pure = [f for f in SOURCES + HEADERS if room_of(path_of(f)) in PURE_ROOMS]
    effects = r"clock_|pthread|monitor_|atomic_|log_line|transport"
    assert wrong_in(pure, lambda file: re.findall(effects, code_of(file))) == {}


def mutable_statics(source: Path) -> list:
    """Return the names of global and static variables of a file that are not const."""
    code = re.sub(r"^[ \t]*#.*(?:\\\n.*)*", "", code_of(source), flags=re.M)
    found, opened = [], ""
    inner = []  # for each open brace: True unless it opens a namespace
    for statement in re.findall(r"[^;{}]+[;{]|[{}]", code):
        text = " ".join(statement.split())
        depth = sum(inner)
        object_like = OBJECT.match(text)
        is_static = re.match(r"(?:SIMD |inline )*(?:static|_Thread_local)\b", text)
        if (
            object_like
            and (is_static or depth == 0)
            and not re.match(r"typedef|using|return|}", text)
        ):
            constant = re.search(
                r"\bconstexpr\b|\bconst\b(?![^=;{]*\*)|\*\s*const\b", text.partition("=")[0]
            )
            forward = re.match(r"(?:static )?(?:struct|union|enum|class) \w+ ?;", text)
            if not constant and not forward:
                found.append(object_like.group(1))
        of_type_before = re.match(r"(\w+)(?: ?\[[^\]]*\])* ?[=;]", text)  # b of "struct a {...} b;"
        if depth == 0 and of_type_before and re.match(r"(?:static |extern )?struct|union", opened):
            found.append(of_type_before.group(1))
        opened = text if depth == 0 and statement.endswith("{") else opened
        if statement.endswith("{"):
            inner.append(not re.match(r"(?:inline )?namespace\b|extern \"\" ", text))
        elif statement == "}":
            inner.pop()
    return found


PREPARED = sorted(PACKAGE.glob("core/*.[ch]"))  # uses Python's C API
BINDINGS = sorted(
    [*PACKAGE.glob("jax/*.[ch]"), *PACKAGE.glob("torch/**/*.h"), *PACKAGE.glob("torch/**/*.cpp")]
)


def test_only_the_listed_globals_are_mutable():
    """A framework passes some callbacks no pointer to hvdlite's state, so they need a global."""
    allowed = {
        "prepared.c": ["methods", "definition"],  # CPython needs statics and changes `definition`
        "context.c": ["process"],
        "calls.c": ["core"],  # XLA calls these functions without a pointer to hvdlite's state
        "library.c": ["jax", "failure"],  # MPI's functions have no argument for state
        "calls.h": ["process"],  # PyTorch passes no pointer to hvdlite's state
    }
    files = [*SOURCES, *PREPARED, *BINDINGS]
    found = {f: (mutable_statics(f), allowed.get(f.name, [])) for f in files}
    assert wrong_in(files, lambda f: found[f][0] != found[f][1] and found[f]) == {}


@pytest.mark.parametrize(
    "code, expected",
    [
        ("static int counter;\n", ["counter"]),
        ("int counter = 3;\n", ["counter"]),
        ("static int f(void) {\n    static int calls;\n    return calls++;\n}\n", ["calls"]),
        ("static struct a *list[3] = {0};\n", ["list"]),
        ("static const char *name = 0;\n", ["name"]),  # the pointer itself is mutable
        ("static const char *const NAMES[] = {0};\n", []),
        ("static const int TABLE[] = {1, 2};\nstatic void f(int a) {\n    int b = a;\n}\n", []),
        ("_Thread_local int x;\n", ["x"]),
        ("struct a {\n    int b;\n};\nstruct c;\nenum { D = 1 };\n", []),
        ("static struct a {\n    int b;\n} x = {1};\n", ["x"]),
        ("static const struct a {\n    int b;\n} x[2] = {{1}};\n", []),
        ("namespace a {\nint b;\ninline int c = 1;\n}\n", ["b", "c"]),
        ("namespace a {\ninline std::atomic<int> b{1};\ninline A &c = *new A;\n}\n", ["b", "c"]),
        ("namespace a {\nclass B;\nstruct C : D {\n    int e{1};\n};\nusing F = G;\n}\n", []),
        ('extern "C" {\nint f(void);\nint a;\n}\n', ["a"]),
    ],
)
def test_the_check_finds_mutable_variables_of_c_files(code, expected, tmp_path):
    (tmp_path / "x.c").write_text(code)
    assert mutable_statics(tmp_path / "x.c") == expected


BESIDE = [PACKAGE.parent / name for name in ("tests", "benchmarks", "tools", "examples", "docs")]
SCRIPTS = [file for folder in BESIDE for file in folder.rglob("*.py")]
C_BESIDE = [file for folder in BESIDE for file in folder.rglob("*.[ch]")]
MAKEFILES = [PACKAGE.parent / name for name in ("Makefile", "benchmarks/benchmarks.mk")]
C_FILES = [*SOURCES, *HEADERS, *BINDINGS, *PREPARED, *C_BESIDE]


def test_files_are_short():
    files = [*C_FILES, *MODULES, *SCRIPTS, *MAKEFILES]
    assert wrong_in(files, lambda file: text_of(file).count("\n") > MOST_LINES) == {}


def test_functions_are_short():
    def long(file) -> dict:
        if file.suffix == ".py":
            nodes = [n for n in ast.walk(parsed(text_of(file))) if isinstance(n, ast.FunctionDef)]
            lines = {node.name: node.end_lineno - node.lineno + 1 for node in nodes}
        else:
            functions = re.findall(r"^(\w[^\n;]*\)) \{\n(.*?)^\}\n", text_of(file), re.M | re.S)
            lines = {start: body.count("\n") + 2 for start, body in functions}
        return {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FUNCTION}

    assert wrong_in([*C_FILES, *MODULES, *SCRIPTS], long) == {}


def test_lines_of_c_are_short():
    """At most 100 characters, also in comments, which clang-format does not shorten."""
    assert wrong_in(C_FILES, lambda file: re.findall(".{101,}", text_of(file))) == {}


def test_declarations_for_python_come_from_the_headers():
    """No prototype may be written a second time for Python."""
    build_text = (PACKAGE / "_build.py").read_text()
    seen = {*build.HEADERS, *build.HEADERS_OF_MPI, *build.HEADERS_OF_JAX}
    declared = "\n".join(build.cdef((CSRC / name).read_text()) for name in seen)
    functions = set(re.findall(r"\b(hvd(?:lite_jax)?_\w+)\(", declared))
    assert {"hvd_init", "hvd_start", "hvd_mxnet_push", "hvdlite_jax_open"} <= functions
    assert not any(re.search(rf"\b{name}\b", build_text) for name in functions)
    assert len(re.findall(r"\.cdef\(", build_text)) == 1
    typed = re.compile(rf"\b(?:{'|'.join(functions)})\)?\((?:const |void|int|double)")
    assert not any(typed.search(file.read_text()) for file in PREPARED)
    for header in HEADERS:
        text = header.read_text()
        assert text.count("/* cdef begin */") == text.count("/* cdef end */")
        assert ("/* cdef begin */" in text) == (path_of(header) in seen)


def test_every_compilation_has_the_flags_for_equal_bits():
    """Clang contracts products and sums to fused multiply-adds by default, which changes bits."""
    assert "-ffp-contract=off" in (CSRC / "flags.txt").read_text().split()
    files = [*MAKEFILES, *MODULES, *PACKAGE.parent.glob("*.py")]
    files = [file for file in files if "-std=c" in text_of(file)]
    of_frameworks = {"compiled.py", "calls.py"}
    assert {file.name for file in files} == {"Makefile", "setup.py", "_build.py", *of_frameworks}

    def wrong(file) -> list:
        options = re.findall(r"-std=c[\w+]+(.*)", text_of(file))
        return [text for text in options if not re.match(r"\W*(compiled\.)?FLAGS\b", text)]

    assert wrong_in(files, wrong) == {}
