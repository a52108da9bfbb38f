"""A polite request to stop: heard at any moment, answered between two steps."""

import signal
import threading


class Terminated(threading.Event):
    """Set by SIGTERM while this context lasts, where signals can be had."""

    def __enter__(self):
        self._can = threading.current_thread() is threading.main_thread()
        if self._can:
            self._before = signal.signal(signal.SIGTERM, lambda *_: self.set())
        return self

    def __exit__(self, *_):
        if self._can:
            signal.signal(signal.SIGTERM, self._before)
