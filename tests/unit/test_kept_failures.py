"""A framework keeps only the text of hvdlite's error; a hash in the text finds the whole error."""

from hvdlite.core.native import (
    HvdliteError,
    RankFailedError,
    failure_of,
    ffi,
    keep_failure,
    lib,
    new_error,
)


def kept(text: str) -> str:
    """Store an error with this text; return the text, to which the core has added a hash."""
    error = new_error()
    error.code, error.text, error.nblamed, error.blamed[0] = lib.HVD_RANK_DEAD, text.encode(), 1, 3
    lib.hvd_keep_failure(error)
    return ffi.string(error.text).decode()


def test_failure_of_finds_the_error_in_an_exception_of_a_framework():
    failure = failure_of(RuntimeError(f"UNKNOWN: MPI error: {kept('rank 3 is dead')}"))
    assert isinstance(failure, RankFailedError)
    assert (str(failure), failure.ranks) == ("rank 3 is dead", (3,))
    assert failure_of(RuntimeError("rank 3 is dead")) is None


def test_failure_of_ignores_an_error_hash_in_the_quoted_text_of_another_rank():
    older = kept("an older error, which this rank has raised, too")
    text = kept(f"rank 1 left the job (its script raised Error: {older})")
    assert str(failure_of(RuntimeError(text))).startswith("rank 1 left the job")


def test_failure_of_finds_only_the_last_1024_errors():
    first = kept("first")
    texts = [kept("later") for _ in range(1023)]
    assert str(failure_of(RuntimeError(first))) == "first"
    texts.append(kept("last"))
    assert failure_of(RuntimeError(first)) is None
    assert all(failure_of(RuntimeError(text)) for text in texts)


def test_truncating_a_long_error_text_keeps_the_hash_at_its_end():
    text = kept("é" * 511)
    assert text.startswith("éé") and str(failure_of(RuntimeError(text))) == "é" * 511


def test_a_kept_error_is_found_with_its_fields():
    fields = {"kind": "rank dead", "tensor": "w", "ranks": (3, 1), "pid": 7, "host": "é" * 40}
    error = keep_failure(RankFailedError("rank 3 is dead", **fields))
    failure = failure_of(RuntimeError(f"INTERNAL: a callback failed: {error}\nno traceback"))
    assert isinstance(error, RankFailedError) and isinstance(failure, RankFailedError)
    assert (str(failure), failure.ranks, failure.pid) == ("rank 3 is dead", (3, 1), 7)
    assert (failure.tensor, failure.host) == ("w", "é" * 31 + "\N{REPLACEMENT CHARACTER}")
    assert failure_of(RuntimeError(str(keep_failure(HvdliteError("x" * 2000))))).kind == "invalid"
