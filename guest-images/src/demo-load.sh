#!/bin/sh
# What the demo guest does when it is given no command: programs of known character, for $1 seconds (20).
#
# Four of them want a CPU all the time and get it by their weights, which nice sets; that is each about half of the
# one before. The others come and go.
#
#   python3    weight 1024   user: a loop of byte code
#   sha256sum  weight 526    user, a little kernel: reads /dev/zero
#   dd         weight 272    kernel: copies /dev/zero to /dev/null
#   gzip       weight 137    user: packs the python program, then does it again in a new process
#   worker                   200 processes of 5 ms, every few seconds
#   hog                      user: works between the scheduler's ticks on CPU 0, so /proc/stat does not see it
#   dd                       kernel and interrupts: writes 4 MB to the disk every second
#   sleeper                  nothing at all

seconds=${1:-20}
echo "demo-load: $seconds s of python3, sha256sum, gzip, dd, worker, hog and sleeper"

python3 -c 'n = 0
while True:
    n = (n * 1103515245 + 12345) % 2147483648' &
nice -n 3 sha256sum /dev/zero &
nice -n 6 dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
while :; do nice -n 9 gzip -c /usr/bin/python3.11 >/dev/null; done &
while :; do
    dd if=/dev/zero of=/var/tmp/written bs=64k count=64 conv=fsync 2>/dev/null
    sleep 1
done &
while :; do shortlived --name worker --count 200 --cpu-millis 5 >/dev/null; sleep 2; done &
hog --seconds "$seconds" &
sleeper --seconds "$seconds" &

sleep "$seconds"
rm -f /var/tmp/written
echo "demo-load: done"
