"""numpy in phases of known shares: arrays.py SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock."""

import sys
import time

import numpy


# As large that what numpy and Python do around them is a small part: it is in no phase of a profile.
FACTORS = numpy.full((96, 96), 0.5)
EXPONENTS = numpy.full(1 << 17, 0.5)
POWERS = numpy.empty_like(EXPONENTS)


def dot():
    return FACTORS.dot(FACTORS)


def exp():
    return numpy.exp(EXPONENTS, out=POWERS)


def main(seconds):
    assert dot()[0, 0] == 24.0 and exp()[0] > 1.648
    phases = [("dot", dot, 0.6), ("exp", exp, 0.4)]
    used = dict.fromkeys([name for name, _, _ in phases], 0.0)
    done = 0.0
    while done < seconds:
        done += 0.25
        for name, run, weight in phases:
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
