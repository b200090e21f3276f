"""Phases of known shares of the CPU: phases.py SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock."""

import json
import re
import sys
import time


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def sieve(n):
    composite = bytearray(n + 1)
    count = 0
    for candidate in range(2, n + 1):
        if not composite[candidate]:
            count += 1
            for multiple in range(candidate * candidate, n + 1, candidate):
                composite[multiple] = 1
    return count


def text(n):
    records = [{"name": "item %d" % i, "value": i * 1.5} for i in range(n)]
    return len(re.findall(r"item (\d+)", json.dumps(records)))


def run_fib():
    assert fib(11) == 89


def run_sieve():
    assert sieve(1000) == 168


def run_text():
    assert text(20) == 20


PHASES = [("fib", run_fib, 0.5), ("sieve", run_sieve, 0.3), ("text", run_text, 0.2)]


def main(seconds):
    used = dict.fromkeys([name for name, _, _ in PHASES], 0.0)
    done = 0.0
    while done < seconds:
        done += 0.25
        for name, run, weight in PHASES:
            start = now = time.thread_time()
            end = start + done * weight - used[name]
            while now < end:
                run()
                now = time.thread_time()
            used[name] += now - start
    for name, spent in used.items():
        print("phase %s %.6f" % (name, spent))
    print("total %.6f" % time.process_time())


main(float(sys.argv[1]))
