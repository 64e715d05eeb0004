"""The signals that stop a server or a batch worker."""

from __future__ import annotations

import signal


def stop_on_hangup() -> None:
    """Treats SIGHUP, which a terminal sends when it is closed, like SIGTERM, so that runs in progress can end.

    Where SIGHUP is ignored, as under `nohup`, it stays ignored. Windows does not have it.
    """
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is signal.SIG_DFL:
        signal.signal(hangup, lambda *_: signal.raise_signal(signal.SIGTERM))
