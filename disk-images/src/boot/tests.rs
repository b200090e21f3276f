//! Entries of disks whose files are in a table.

use super::*;
use crate::volume::table;

fn volume<T: AsRef<[u8]>>(files: &[(&str, T)]) -> DiskVolume {
    table::volume(files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.as_ref().to_vec())).collect())
}

fn first(volumes: &[DiskVolume]) -> BootEntry {
    entries(volumes).into_iter().next().expect("an entry")
}

#[test]
fn systemd_boot_on_an_efi_system_partition() {
    let esp = volume(&[
        ("/loader/loader.conf", "timeout 1\n"),
        (
            "/loader/entries/debian-6.1.conf",
            "title Debian\nversion 6.1\nsort-key debian\noptions root=UUID=1 ro\nlinux /debian/6.1/linux\ninitrd /debian/6.1/initrd\n",
        ),
        (
            "/loader/entries/debian-6.12.conf",
            "title Debian\nversion 6.12\nsort-key debian\noptions root=UUID=1 ro quiet\nlinux /debian/6.12/linux\ninitrd /debian/6.12/initrd\n",
        ),
        ("/debian/6.1/linux", ""),
        ("/debian/6.12/linux", ""),
    ]);
    let root = volume(&[("/boot/vmlinuz", ""), ("/boot/initrd.img", "")]);
    let all = entries(&[esp, root]);
    assert_eq!((all[0].volume, all[0].kernel.as_str()), (0, "/debian/6.12/linux"));
    assert_eq!(all[0].initrds, ["/debian/6.12/initrd"]);
    assert_eq!(all[0].options.as_deref(), Some("root=UUID=1 ro quiet"));
    assert_eq!(all[0].source, "/loader/entries/debian-6.12.conf");
    assert_eq!((all[2].volume, all[2].kernel.as_str(), &all[2].options), (1, "/boot/vmlinuz", &None));
}

#[test]
fn the_loaders_default_comes_first() {
    let entry = |name: &str| format!("title {name}\nversion {name}\nlinux /{name}\n");
    let (a, b) = (entry("6.1"), entry("6.12"));
    let esp = volume(&[
        ("/loader/loader.conf", "default old*\n"),
        ("/loader/entries/old.conf", &a),
        ("/loader/entries/new.conf", &b),
        ("/6.1", ""),
        ("/6.12", ""),
    ]);
    assert_eq!(first(&[esp]).kernel, "/6.1");
}

#[test]
fn fedoras_entries_on_a_boot_partition_with_grubs_variables() {
    let boot = volume(&[
        (
            "/loader/entries/x-6.5.conf",
            "title Fedora\nversion 6.5\nlinux /vmlinuz-6.5\ninitrd /initramfs-6.5.img $tuned_initrd\noptions $kernelopts\n",
        ),
        ("/loader/entries/x-0-rescue.conf", "title Rescue\nversion 0-rescue\nlinux /vmlinuz-0-rescue\n"),
        ("/grub2/grubenv", "# GRUB GrubEnvironment Block\nkernelopts=root=UUID=2 ro\n"),
        ("/grub2/grub.cfg", "blscfg\n"),
        ("/vmlinuz-6.5", ""),
        ("/vmlinuz-0-rescue", ""),
    ]);
    let found = first(&[boot]);
    assert_eq!((found.kernel.as_str(), found.options.as_deref()), ("/vmlinuz-6.5", Some("root=UUID=2 ro")));
    assert_eq!(found.initrds, ["/initramfs-6.5.img"]);
}

#[test]
fn grub_on_the_root_finds_kernels_on_a_boot_partition() {
    let config = "set default=\"1\"\nmenuentry 'A' {\n linux /vmlinuz-a root=/dev/sda2\n}\nmenuentry 'B' {\n linux /vmlinuz-b root=/dev/sda2 ro\n initrd /initrd-b\n}\n";
    let root = volume(&[("/boot/grub/grub.cfg", config)]);
    let boot = volume(&[("/vmlinuz-a", ""), ("/vmlinuz-b", ""), ("/initrd-b", "")]);
    let found = first(&[root, boot]);
    assert_eq!((found.volume, found.kernel.as_str(), found.title.as_deref()), (1, "/vmlinuz-b", Some("B")));
    assert_eq!(found.options.as_deref(), Some("root=/dev/sda2 ro"));
}

#[test]
fn extlinux_counts_from_its_own_directory() {
    let config = "default b\nlabel a\n kernel ../vmlinuz\nlabel b\n kernel vmlinuz\n append root=LABEL=x initrd=i.img\n";
    let found = first(&[volume(&[("/extlinux/extlinux.conf", config), ("/extlinux/vmlinuz", "")])]);
    assert_eq!(
        (found.kernel.as_str(), found.initrds.as_slice()),
        ("/extlinux/vmlinuz", &["/extlinux/i.img".to_owned()][..])
    );
}

#[test]
fn names_are_used_where_no_loader_has_entries() {
    let boot =
        volume(&[("/vmlinuz-6.1.0-9", ""), ("/vmlinuz-6.1.0-10", ""), ("/initramfs-6.1.0-10.img", "")]);
    let found = first(&[boot]);
    assert_eq!(
        (found.kernel.as_str(), found.initrds[0].as_str()),
        ("/vmlinuz-6.1.0-10", "/initramfs-6.1.0-10.img")
    );
    assert_eq!(found.source, "the newest /vmlinuz-*");
}

#[test]
fn entries_without_their_kernel_are_none() {
    let esp = volume(&[("/loader/entries/a.conf", "linux /gone\n"), ("/boot/vmlinuz", "")]);
    assert_eq!(first(&[esp]).source, "/boot/vmlinuz");
    assert!(entries(&[volume::<&str>(&[])]).is_empty());
}

#[test]
fn unified_kernel_images_on_an_efi_system_partition() {
    let image = |version: &str| {
        super::unified::tests::pe(&[
            (".osrel", b"ID=debian\nPRETTY_NAME=\"Debian\"\n"),
            (".uname", version.as_bytes()),
            (".cmdline", b"quiet word=$kept"),
            (".linux", b"kernel"),
        ])
    };
    let esp = volume(&[
        ("/EFI/Linux/debian-6.1.0-9.efi", image("6.1.0-9")),
        ("/EFI/Linux/debian-6.1.0-10.efi", image("6.1.0-10")),
        ("/EFI/Linux/damaged.efi", b"MZ".to_vec()),
        ("/EFI/BOOT/BOOTX64.EFI", image("0")),
    ]);
    let root = volume(&[("/boot/vmlinuz", ""), ("/boot/initrd.img", "")]);
    let all = entries(&[esp, root]);
    assert_eq!(all.len(), 3, "{all:#?}");
    let newest = &all[0];
    assert_eq!((newest.volume, newest.kernel.as_str()), (0, "/EFI/Linux/debian-6.1.0-10.efi"));
    assert_eq!(
        (newest.options.as_deref(), newest.title.as_deref()),
        (Some("quiet word=$kept"), Some("Debian"))
    );
    assert!(newest.unified && newest.initrds.is_empty() && !all[2].unified);
    // The loader's own choice, by the name of the file.
    let esp = volume(&[
        ("/loader/loader.conf", b"default debian-6.1.0-9.efi\n".to_vec()),
        ("/EFI/Linux/debian-6.1.0-9.efi", image("6.1.0-9")),
        ("/EFI/Linux/debian-6.1.0-10.efi", image("6.1.0-10")),
    ]);
    assert_eq!(first(&[esp]).kernel, "/EFI/Linux/debian-6.1.0-9.efi");
}
