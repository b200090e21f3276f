#!/bin/sh
# Compiles the workspace's crates. A test program has all of its crate once more: without optimization it is built in a
# quarter of the time, which is more than its tests then take longer. Only the simulations of `statistics` are optimized.
case " $* " in
*" --crate-name statistics "*) ;;
*" --test "*) exec "$@" -C opt-level=0 ;;
esac
exec "$@"
