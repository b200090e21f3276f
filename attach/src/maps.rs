//! Lines of /proc/PID/maps (proc_pid_maps(5)).

/// Mapping of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MappingLine<'a> {
    pub(crate) start: u64,
    /// Above `start`.
    pub(crate) end: u64,
    /// Four letters, such as `r-xp`.
    pub(crate) permissions: &'a str,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Major and minor number.
    pub(crate) device: (u64, u64),
    /// Inode number; 0 without a file.
    pub(crate) inode: u64,
    /// Path of the file, or another name from the kernel; empty for none.
    pub(crate) name: &'a str,
}

impl<'a> MappingLine<'a> {
    /// Parses a line.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        // A path may have blanks.
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let permissions = words.next()?;
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let device = (hex(major)?, hex(minor)?);
        let inode = words.next()?.parse().ok()?;
        let name = words.next().unwrap_or_default().trim_start();
        (start < end).then_some(Self { start, end, permissions, offset, device, inode, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_all_fields_and_a_name_may_have_blanks() {
        let line =
            "7f0090000000-7f00a0000000 rw-s 10000000 00:1f 77                         /opt/a vmm (deleted)";
        let wanted = MappingLine {
            start: 0x7f00_9000_0000,
            end: 0x7f00_a000_0000,
            permissions: "rw-s",
            offset: 0x1000_0000,
            device: (0, 0x1f),
            inode: 77,
            name: "/opt/a vmm (deleted)",
        };
        assert_eq!(MappingLine::parse(line), Some(wanted));
        let anonymous = MappingLine::parse("1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.inode, anonymous.name), (0, ""));
    }

    #[test]
    fn other_lines_are_no_mappings() {
        for line in
            ["", "nonsense", "9-1 r-xp 0 0:0 0", "1-9 r-xp 0 0 0", "1-9 r-xp 0 0:0", "1-9 r-xp 0 0:0 x"]
        {
            assert_eq!(MappingLine::parse(line), None, "{line}");
        }
    }
}
