# Runs in the new system's namespace: $1 is its root, $2 the directory of the programs.
set -eu
root=$1
echo corpus >"$root/etc/hostname"
: >"$root/etc/resolv.conf"
cat >"$root/etc/hosts" <<HOSTS
127.0.0.1 localhost
127.0.1.1 corpus
::1 localhost ip6-localhost ip6-loopback
HOSTS
echo "UUID=$ROOT_UUID / ext4 errors=remount-ro 0 1" >"$root/etc/fstab"
chroot "$root" passwd --quiet --delete root

# A test starts the server that it wants: all of them at once would take an emulated guest minutes.
for unit in nginx.service redis-server.service postgresql.service podman.service podman.socket podman-restart.service \
    podman-auto-update.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer phpsessionclean.timer man-db.timer systemd-timesyncd.service; do
    if [ -e "$root/usr/lib/systemd/system/$unit" ]; then
        chroot "$root" systemctl --quiet disable "$unit"
    fi
done
for unit in nginx redis-server postgresql; do
    if [ -e "$root/etc/systemd/system/multi-user.target.wants/$unit.service" ]; then
        echo "$unit still starts by itself" >&2
        exit 1
    fi
done

mkdir -p "$root/opt/corpus"
cp "$2"/* "$root/opt/corpus/"
chmod 755 "$root"/opt/corpus/*
# Compilers would take an emulated guest minutes as well.
chroot "$root" javac --release 17 -d /opt/corpus /opt/corpus/Phases.java /opt/corpus/Service.java
if [ -x "$root/usr/bin/erlc" ]; then
    chroot "$root" erlc -o /opt/corpus /opt/corpus/phases.erl
fi
chroot "$root" env HOME=/tmp GOCACHE=/tmp/go-build GO111MODULE=off go build -o /opt/corpus/phases-go /opt/corpus/phases.go
rm -rf "$root/tmp/go-build"
