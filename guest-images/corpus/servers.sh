#!/bin/bash
# A server of Debian's under load: servers.sh postgresql|redis|nginx SECONDS.
# Prints `process COMM PID SECONDS` of each of its processes by /proc/PID/schedstat, and `unit NAME SECONDS` by systemd.
set -eu
seconds=$2

# CPU time of a process with its threads, ns.
spent() {
    local sum=0 ran file
    for file in "/proc/$1"/task/*/schedstat; do
        if read -r ran _ <"$file"; then sum=$((sum + ran)); fi
    done
    echo "$sum"
}

# Of all processes below the unit's control group, and of the unit.
books() {
    local pid ns
    for pid in $(cat $(find "/sys/fs/cgroup/system.slice/$2" "/sys/fs/cgroup/system.slice/$1" -name cgroup.procs 2>/dev/null) | sort -nu); do
        ns=$(spent "$pid")
        printf 'process %s %d %d.%09d\n' "$(tr ' ' _ <"/proc/$pid/comm")" "$pid" $((ns / 1000000000)) $((ns % 1000000000))
    done
    ns=$(systemctl show --property CPUUsageNSec --value "$1")
    printf 'unit %s %d.%09d\n' "$1" $((ns / 1000000000)) $((ns % 1000000000))
}

case $1 in
postgresql)
    systemctl start postgresql
    version=$(basename /etc/postgresql/*)
    cd /tmp
    as() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
    as /usr/lib/postgresql/"$version"/bin/pgbench --quiet --initialize --scale 1 postgres >/dev/null 2>&1
    as /usr/lib/postgresql/"$version"/bin/pgbench --no-vacuum --client 2 --select-only --time "$seconds" postgres
    books "postgresql@$version-main.service" "system-postgresql.slice"
    ;;
redis)
    systemctl start redis-server
    timeout "$seconds" redis-benchmark -q -l -c 10 -t set,get,lrange_100 >/dev/null || [ $? = 124 ]
    books redis-server.service redis-server.service
    ;;
nginx)
    systemctl start nginx
    wrk --threads 1 --connections 10 --duration "${seconds}s" http://127.0.0.1/
    books nginx.service nginx.service
    ;;
esac
