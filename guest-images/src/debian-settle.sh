# Runs in the new system's namespace: $1 is its root.
set -eu
root=$1
echo debian >"$root/etc/hostname"
: >"$root/etc/resolv.conf"
cat >"$root/etc/hosts" <<EOF
127.0.0.1 localhost
127.0.1.1 debian
::1 localhost ip6-localhost ip6-loopback
EOF
# FAT's volume id as blkid writes it: 1234-5678.
esp=$(echo "$ESP_ID" | tr a-f A-F | sed 's/^..../&-/')
cat >"$root/etc/fstab" <<EOF
UUID=$ROOT_UUID / ext4 errors=remount-ro 0 1
UUID=$esp /boot/efi vfat umask=0077 0 2
EOF
chroot "$root" passwd --quiet --delete root

# The loader, its entry and kernel on what becomes the EFI system partition.
mkdir -p "$root/boot/efi/EFI/BOOT" "$root/boot/efi/loader" "$root/etc/kernel"
cp "$root/usr/lib/systemd/boot/efi/systemd-bootx64.efi" "$root/boot/efi/EFI/BOOT/BOOTX64.EFI"
echo "timeout 1" >"$root/boot/efi/loader/loader.conf"
echo debian >"$root/etc/kernel/entry-token"
echo "root=UUID=$ROOT_UUID ro quiet" >"$root/etc/kernel/cmdline"
printf 'layout=bls\nBOOT_ROOT=/boot/efi\n' >"$root/etc/kernel/install.conf"
release=$(basename "$root"/boot/vmlinuz-*)
release=${release#vmlinuz-}
chroot "$root" kernel-install add "$release" "/boot/vmlinuz-$release" "/boot/initrd.img-$release"
# Nothing is mounted there yet, so the paths are those of the root file system.
sed -i 's# /boot/efi/# /#' "$root"/boot/efi/loader/entries/*.conf
