//! The guest's kernel command line.

use crate::args::ConsoleDevice;

/// Returns the kernel command line: the words of the disk's own boot loader or of a unified kernel image
/// (`own`), vprof's, then the user's. Of words for the same parameter the last one takes effect.
pub fn cmdline(own: Option<&str>, device: ConsoleDevice, append: Option<&str>) -> String {
    // panic=-1 resets a panicked guest at once; otherwise it would spin until someone ends the run.
    let added = match device {
        ConsoleDevice::Serial => "console=ttyS0 quiet panic=-1",
        ConsoleDevice::Virtio => "console=hvc0 quiet panic=-1",
    };
    let parts =
        [own, Some(added), append].into_iter().flatten().map(str::trim).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_words_come_last() {
        let serial = ConsoleDevice::Serial;
        assert_eq!(cmdline(None, serial, None), "console=ttyS0 quiet panic=-1");
        assert_eq!(cmdline(None, ConsoleDevice::Virtio, None), "console=hvc0 quiet panic=-1");
        assert_eq!(
            cmdline(Some("root=/dev/vda rw"), serial, Some(" root=/dev/vdb ")),
            "root=/dev/vda rw console=ttyS0 quiet panic=-1 root=/dev/vdb"
        );
    }
}
