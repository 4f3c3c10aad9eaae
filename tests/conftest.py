"""What every test may count on."""

import signal


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs the tests start.

    A shell starts background jobs with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
