"""Functions that measure themselves: phases.py SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock."""
import sys
import threading
import time

spent = {}
now = time.thread_time

def work(limit):
    count = 0
    while now() < limit:
        for i in range(500):
            count += i * i % 7
    return count

def plain(limit):
    return work(limit)

def recursive(limit, depth=40):
    return recursive(limit, depth - 1) if depth else work(limit)

def generated(limit):
    def values(depth):
        if depth:
            yield from values(depth - 1)
        else:
            yield work(limit)
    return list(values(5))

def called_back(limit):
    def key(_):
        return work(limit)
    [0].sort(key=key)

def fail(count):
    raise ValueError("count %d" % count)

def thrown(limit):
    count = 0
    while now() < limit:
        try:
            fail(count)
        except ValueError as error:
            count += len(str(error))

def pooled(limit):
    return work(limit)

def measure(phase, seconds):
    start = now()
    phase(start + seconds)
    spent[phase.__name__] = spent.get(phase.__name__, 0.0) + now() - start

def pool(rounds):
    for _ in range(rounds):
        measure(pooled, 0.01)

rounds = int(float(sys.argv[1]) * 20)
threads = [threading.Thread(target=pool, args=(rounds,), name="pool number %d" % i) for i in range(2)]
print("begun", flush=True)
for thread in threads:
    thread.start()
for _ in range(rounds):
    measure(plain, 0.012)
    measure(recursive, 0.008)
    measure(generated, 0.006)
    measure(thrown, 0.005)
    measure(called_back, 0.004)
for thread in threads:
    thread.join()
for name, seconds in spent.items():
    print("phase", name, seconds)
