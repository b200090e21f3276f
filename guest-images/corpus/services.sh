#!/bin/bash
# A service in a managed language under load: services.sh flask|java|express SECONDS.
# It prints `phase NAME SECONDS` of each of its handlers when it ends.
set -eu
seconds=$2
ip link set lo up
cd /opt/corpus

case $1 in
flask) gunicorn --preload --workers 2 --threads 2 --bind 127.0.0.1:8000 --log-level warning service:app & ;;
java) java -Dsun.net.httpserver.nodelay=true -cp /opt/corpus Service & ;;
# The process's clock counts threads that collect garbage, too.
express) node --single-threaded --no-parallel-scavenge service.js & ;;
esac
service=$!
until (: >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do
    kill -0 "$service"
    sleep 5
done
load=()
for handler in cart search report; do
    wrk --threads 1 --connections 2 --timeout 30 --duration "${seconds}s" "http://127.0.0.1:8000/$handler" &
    load+=($!)
done
wait "${load[@]}"
kill -TERM "$service"
# Java's exit code after the signal is 143.
wait "$service" || [ $? = 143 ]
