"""A signal ends a process once, wherever it arrives: it is not lost, and does not cut short what another set off."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from esctl import interrupts

START = """
import os, signal, sys, time
from esctl import interrupts
me, went_on = os.getpid(), False
def work():
    global went_on
    for _ in range(400):
        time.sleep(0.01)
    went_on = True
class Frees:
    def __del__(self):
        os.kill(me, signal.SIGTERM)
        sum(range(1000))
"""
END = """
print("went on" if went_on else "ended")
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = START + body + END
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


SWALLOWED = {
    "a destructor": """
try:
    with interrupts.listening():
        Frees()
        work()
except KeyboardInterrupt:
    pass
""",
    "destructors one after the other": """
try:
    with interrupts.listening():
        for _ in range(50):
            Frees()
        work()
except KeyboardInterrupt:
    pass
""",
    "a bare except": """
try:
    with interrupts.listening():
        try:
            os.kill(me, signal.SIGUSR1)
            time.sleep(1)
        except:
            pass
        work()
except KeyboardInterrupt:
    pass
""",
    "a callback from C": """
import ctypes
@ctypes.CFUNCTYPE(None)
def called():
    os.kill(me, signal.SIGHUP)
    sum(range(1000))
try:
    with interrupts.listening():
        called()
        work()
except KeyboardInterrupt:
    pass
""",
}


@pytest.mark.parametrize("where", SWALLOWED)
def test_an_interrupt_that_was_swallowed_is_raised_again(where):
    done = run(SWALLOWED[where])
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_a_second_signal_does_not_cut_short_what_the_first_set_off():
    done = run("""
written = []
try:
    with interrupts.listening():
        try:
            os.kill(me, signal.SIGTERM)
            time.sleep(5)
        finally:
            for n in range(20):
                os.kill(me, signal.SIGINT if n % 2 else signal.SIGUSR1)
                try:
                    raise OSError
                except OSError:
                    os.kill(me, signal.SIGTERM)
                time.sleep(0.001)
                written.append(n)
            time.sleep(1.2)  # longer than an interrupt stays unseen
            written.append(20)
except KeyboardInterrupt:
    pass
assert len(written) == 21
""")
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_a_request_that_was_taken_is_not_raised_again():
    done = run("""
with interrupts.listening():
    try:
        os.kill(me, signal.SIGTERM)
        time.sleep(5)
    except KeyboardInterrupt:
        interrupts.taken()
    interrupts.check()
    time.sleep(1.2)
""")
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_what_the_process_was_started_to_ignore_stays_ignored():
    code = START + "with interrupts.listening():\n    os.kill(me, signal.SIGHUP)\n    time.sleep(0.1)\n" + END
    command = [sys.executable, "-c", code]
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN) and None  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=ignore)
    assert (done.returncode, done.stdout) == (0, "ended\n")


def test_handlers_are_put_back():
    before = [signal.getsignal(n) for n in (*interrupts.SIGNALS, signal.SIGALRM)]
    with interrupts.listening():
        assert signal.getsignal(signal.SIGUSR1) != before[2]
    assert [signal.getsignal(n) for n in (*interrupts.SIGNALS, signal.SIGALRM)] == before
    assert not interrupts.requested()


def test_the_next_safe_point_raises_what_was_swallowed():
    with interrupts.listening():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except KeyboardInterrupt:
            pass
        assert interrupts.requested()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_other_threads_do_not_listen():
    def listen() -> None:
        with interrupts.listening():
            interrupts.check()

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before
