"""Settings of all Python tests. Those under parallel/ run in MPI jobs and have their own."""

import signal


def pytest_configure() -> None:
    """Let Ctrl-C through: a shell that starts the tests in the background has them ignore it, and
    what they start, too.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
