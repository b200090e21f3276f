# Runs in gdb: stops a program at random moments and writes, for each stop, registers, stack, mappings and gdb's own
# frames as one line of JSON. Parameters come in the environment: see main.rs.
import gdb
import json
import os
import random
import subprocess

NAMES = "rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip".split()
RED_ZONE = 128
out = open(os.environ["SNAPSHOTS"], "w")
stops, steps = int(os.environ["STOPS"]), int(os.environ["STEPS"])
copied = int(os.environ["STACK_BYTES"])
random.seed(int(os.environ["SEED"]))
last_maps = None


def write(**line):
    out.write(json.dumps(line) + "\n")


def mappings():
    global last_maps
    maps = open(f"/proc/{gdb.selected_inferior().pid}/maps").read()
    if maps != last_maps:
        last_maps = maps
        write(maps=maps)
        for line in maps.splitlines():
            if line.endswith("[vdso]"):
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                write(vdso=bytes(gdb.selected_inferior().read_memory(start, end - start)).hex())
    return maps


def stack_end(maps, rsp):
    for line in maps.splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= rsp < end:
            return end
    return rsp


def record():
    maps = mappings()
    frame = gdb.newest_frame()
    values = [int(frame.read_register(name)) & (2**64 - 1) for name in NAMES]
    start = values[7] - RED_ZONE
    size = min(copied + RED_ZONE, stack_end(maps, values[7]) - start)
    stack = bytes(gdb.selected_inferior().read_memory(start, size)) if size > 0 else b""
    frames, last = [], frame
    while frame is not None:
        # Frames that gdb makes up from debug files have no stack of their own.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            frames.append(frame.pc())
        last = frame
        try:
            frame = frame.older()
        except gdb.error:
            break
    stop = gdb.frame_stop_reason_string(last.unwind_stop_reason())
    write(registers=values, stack_start=start, stack=stack.hex(), frames=frames, stop=stop)


def alive():
    return gdb.selected_inferior().pid != 0


for command in (
    "set pagination off",
    "set confirm off",
    "set debuginfod enabled off",
    "set backtrace past-main on",
    "set backtrace past-entry on",
    "set backtrace limit 250",
    "set startup-with-shell off",
    "handle all nostop noprint pass",
    "handle SIGINT stop print nopass",
    "handle SIGTRAP stop print nopass",
    "starti",
):
    gdb.execute(command, to_string=True)
for _ in range(stops):
    delay = random.uniform(0.001, 0.04)
    killer = subprocess.Popen(["sh", "-c", f"sleep {delay}; kill -INT {gdb.selected_inferior().pid}"])
    gdb.execute("continue", to_string=True)
    killer.wait()
    if not alive():
        break
    record()
    for _ in range(steps):
        gdb.execute("stepi", to_string=True)
        if not alive():
            break
        record()
if alive():
    gdb.execute("kill", to_string=True)
out.close()
