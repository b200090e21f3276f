#!/bin/sh
# mixed-load [SECONDS]: real and synthetic programs of many kinds at once, for $1 seconds (20): what a profiler's stacks
# are tried on.
#
#   loop, call, btree    Rust, static: the programs of the SLEEPY paper
#   shares, recursion, threads, handler, inlined, jit
#                        Rust, static: functions of known shares, deep stacks, threads, a signal handler, own code
#   cpp-inlined          C++: inlined and virtual calls, without frame pointers
#   dlopened             C: a library loaded late
#   dd, gzip, sha256sum  C: kernel and user
#   openssl              C and hand-written assembler
#   sh                   a loop of built-ins and short processes
#   bash                 a loop of its own functions
#   python3              byte code
#   fzf                  Go

seconds=${1:-20}
echo "mixed-load: $seconds s"

loop --seconds "$seconds" &
call --outer 2000 --seconds "$seconds" &
btree --operations 50000 --seconds "$seconds" &
shares --seconds "$seconds" &
recursion --seconds "$seconds" &
threads --seconds "$seconds" &
handler --seconds "$seconds" &
inlined --seconds "$seconds" &
jit --seconds "$seconds" &
cpp-inlined "$seconds" &
dlopened "$seconds" &
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
while :; do gzip -c /usr/bin/python3.11 >/dev/null; done &
sha256sum /dev/zero &
openssl speed -seconds "$seconds" -evp aes-256-gcm >/dev/null 2>&1 &
sh -c 'while :; do i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done; true | cat; done' &
bash -c 'f() { local n=$1; ((n > 0)) && f $((n - 1)); }; while :; do f 20; done' &
python3 -c 'def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
while True:
    fib(18)' &
while :; do seq 20000 | fzf --filter 123 >/dev/null; done &

sleep "$seconds"
# What measures itself ends a moment later and says what it did; then init ends the rest.
sleep 1
echo "mixed-load: done"
