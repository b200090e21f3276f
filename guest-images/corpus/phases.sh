#!/bin/bash
# Phases of known shares of the CPU: phases.sh SECONDS. Prints `phase NAME SECONDS`, by the process's schedstat.
# bash's own functions have no native code of their own: what counts is the process.

fib() {
    if (($1 < 2)); then
        result=$1
        return
    fi
    fib $(($1 - 1))
    local first=$result
    fib $(($1 - 2))
    result=$((first + result))
}

sieve() {
    local -a composite=()
    local candidate multiple
    result=0
    for ((candidate = 2; candidate <= $1; candidate++)); do
        [[ ${composite[candidate]-} ]] && continue
        ((++result))
        for ((multiple = 2 * candidate; multiple <= $1; multiple += candidate)); do
            composite[multiple]=1
        done
    done
}

run_fib() { fib 8; ((result == 21)) || exit 1; }
run_sieve() { sieve 100; ((result == 25)) || exit 1; }

cpu_ns() { read -r now _ </proc/self/schedstat; }

declare -A used=([fib]=0 [sieve]=0)
declare -A weight=([fib]=6 [sieve]=4)
for ((done = 250; done <= $1 * 1000; done += 250)); do
    for name in fib sieve; do
        cpu_ns
        start=$now
        end=$((start + done * weight[$name] * 100000 - used[$name]))
        while ((now < end)); do
            "run_$name"
            cpu_ns
        done
        ((used[$name] += now - start))
    done
done
for name in fib sieve; do
    printf 'phase %s %d.%09d\n' "$name" $((used[$name] / 1000000000)) $((used[$name] % 1000000000))
done
cpu_ns
printf 'total %d.%09d\n' $((now / 1000000000)) $((now % 1000000000))
