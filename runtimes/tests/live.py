"""Stacks of every kind that stay as they are, for a test that reads them from outside.

Prints a line for each thread: its ident, its name, then NAME|FILE|LINE of each frame, innermost first, separated by tabs.
"""

import functools
import sys
import threading
import time

lock = threading.Lock()
name = (lambda code: code.co_qualname) if hasattr((lambda: 0).__code__, "co_qualname") else (lambda code: code.co_name)


def report():
    frame, parts = sys._getframe(1), [str(threading.get_ident()), threading.current_thread().name]
    while frame:
        parts.append("|".join((name(frame.f_code), frame.f_code.co_filename, str(frame.f_lineno))))
        frame = frame.f_back
    with lock:
        print("\t".join(parts), flush=True)


def park():
    report(); time.sleep(600)


def recursive(depth):
    if depth == 0:
        park()
    else:
        recursive(depth - 1)


def generator(depth):
    if depth == 0:
        park()
    else:
        yield from generator(depth - 1)
    yield depth


class Räume:
    """Its name is not ASCII."""

    def __init__(self):
        self.値 = 1

    def 名前(self, _):
        long = [
            1,
            2,
        ]
        return park() or long


def native():
    # A native function between frames of Python.
    sorted([2, 1], key=Räume().名前)


def nested():
    functools.reduce(lambda a, b: max([a, b], key=lambda _: native() or 0), [1, 2])


def closure():
    def inner():
        list(generator(3))
    return inner


def consume():
    for _ in generator(4):
        pass


class Task:
    async def outer(self):
        await self.inner()

    async def inner(self):
        park()


def drive():
    Task().outer().send(None)


threads = [
    threading.Thread(target=target)
    for target in (functools.partial(recursive, 150), native, nested, closure(), consume, drive)
]
for number, thread in enumerate(threads):
    # One keeps the name that threading gives it, one is not ASCII, and one has its attributes in a dict.
    if number > 0:
        thread.name = "thread number %d, für Räume" % number
    if number > 3:
        thread.__dict__["other"] = number
    thread.daemon = True
    thread.start()
recursive(3)
