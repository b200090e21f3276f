//! Kernel modules and the order of loading them.
//!
//! Debian's kernel packages have no `modules.dep`: depmod makes that file on installation. The dependencies
//! of a module are in the module itself, as `depends=` in its `.modinfo` section (include/linux/module.h).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tools::{run, tool};

/// Modules of one kernel.
#[derive(Debug, Default)]
pub(crate) struct KernelModules {
    /// Files by module name.
    files: BTreeMap<String, PathBuf>,
    /// Names of modules that are part of the kernel image.
    built_in: BTreeSet<String>,
}

/// Module for an initramfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelModule {
    /// Name of the module, with underscores.
    pub(crate) name: String,
    /// Uncompressed ELF file.
    pub(crate) contents: Vec<u8>,
}

impl KernelModules {
    /// Finds the modules below `/lib/modules/RELEASE` of an unpacked kernel package.
    pub(crate) fn find(directory: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let built_in = directory.join("modules.builtin");
        let list = fs::read_to_string(&built_in)
            .with_context(|| format!("cannot read the kernel's list {}", built_in.display()))?;
        modules.built_in = list.lines().filter_map(|line| module_name(Path::new(line))).collect();
        let mut open = vec![directory.to_owned()];
        while let Some(directory) = open.pop() {
            let entries =
                fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
            for entry in entries {
                let path = entry.with_context(|| format!("cannot list {}", directory.display()))?.path();
                if path.is_dir() && !path.is_symlink() {
                    open.push(path);
                } else if let Some(name) = module_name(&path) {
                    modules.files.insert(name, path);
                }
            }
        }
        Ok(modules)
    }

    /// Returns the modules `needed`, and those of `useful` that this kernel has, each after all its
    /// dependencies.
    pub(crate) fn load_order(&self, needed: &[&str], useful: &[&str]) -> Result<Vec<KernelModule>> {
        let useful = useful.iter().filter(|name| self.files.contains_key(**name));
        let mut order = Vec::new();
        let mut done = self.built_in.clone();
        for name in needed.iter().chain(useful) {
            self.add(name, &mut Vec::new(), &mut done, &mut order)?;
        }
        Ok(order)
    }

    fn add(
        &self,
        name: &str,
        above: &mut Vec<String>,
        done: &mut BTreeSet<String>,
        order: &mut Vec<KernelModule>,
    ) -> Result<()> {
        if done.contains(name) {
            return Ok(());
        }
        let wanted_by = above.last().map_or_else(String::new, |by| format!(", which {by} depends on"));
        if above.iter().any(|other| other == name) {
            bail!("the kernel module {name} depends on itself");
        }
        let path = self
            .files
            .get(name)
            .with_context(|| format!("the kernel package has no module {name}{wanted_by}"))?;
        let contents = read_module(path)?;
        let depends =
            depends(&contents).with_context(|| format!("{} is not a kernel module", path.display()))?;
        above.push(name.to_owned());
        for dependency in depends {
            self.add(&dependency, above, done, order)?;
        }
        above.pop();
        done.insert(name.to_owned());
        order.push(KernelModule { name: name.to_owned(), contents });
        Ok(())
    }
}

/// Returns the name of the module in a file like `kvm-amd.ko` or `ext4.ko.xz`. The kernel replaces dashes by
/// underscores.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, compression) = file.rsplit_once(".ko")?;
    matches!(compression, "" | ".xz").then(|| name.replace('-', "_"))
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|extension| extension == "xz") {
        return Ok(run(tool("xz", "xz-utils")?.args(["-d", "-c"]).arg(path))?.stdout);
    }
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the dependencies that a module names; `None` if the bytes are not a module.
fn depends(elf: &[u8]) -> Option<Vec<String>> {
    let info = section(elf, b".modinfo")?;
    let list = info.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"depends="))?;
    let list = std::str::from_utf8(list).ok()?;
    Some(list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect())
}

/// Returns the bytes of a section of a 64-bit little-endian ELF file (System V ABI, chapter 4).
fn section<'a>(elf: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    const HEADER: usize = 64;
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let header = |index: u16| {
        let table = usize::try_from(number(elf, 0x28, 8)?).ok()?;
        elf.get(table.checked_add(usize::from(index).checked_mul(HEADER)?)?..)?.get(..HEADER)
    };
    let contents = |header: &[u8]| {
        let start = usize::try_from(number(header, 0x18, 8)?).ok()?;
        let length = usize::try_from(number(header, 0x20, 8)?).ok()?;
        elf.get(start..start.checked_add(length)?)
    };
    let count = u16::try_from(number(elf, 0x3c, 2)?).ok()?;
    let names = contents(header(u16::try_from(number(elf, 0x3e, 2)?).ok()?)?)?;
    (0..count).find_map(|index| {
        let header = header(index)?;
        let own = names.get(usize::try_from(number(header, 0, 4)?).ok()?..)?.strip_prefix(name)?;
        own.starts_with(&[0]).then(|| contents(header))?
    })
}

/// Reads a little-endian number of up to eight bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use testkit::elf::{ElfImage, ElfSection, section_type};

    use super::*;

    /// Returns an ELF file with only `.modinfo` and the names of sections.
    fn elf(info: &str) -> Vec<u8> {
        let sections = [ElfSection::new(".modinfo", section_type::BITS, info.as_bytes())];
        ElfImage { sections: &sections, ..ElfImage::default() }.to_bytes()
    }

    fn kernel(built_in: &str, modules: &[(&str, &str)]) -> (tempfile::TempDir, KernelModules) {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("kernel")).unwrap();
        fs::write(directory.path().join("modules.builtin"), built_in).unwrap();
        for (name, depends) in modules {
            let info = format!("license=GPL\0depends={depends}\0name=x\0");
            fs::write(directory.path().join("kernel").join(format!("{name}.ko")), elf(&info)).unwrap();
        }
        let modules = KernelModules::find(directory.path()).unwrap();
        (directory, modules)
    }

    fn names(order: &[KernelModule]) -> Vec<&str> {
        order.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let (_directory, modules) = kernel(
            "kernel/lib/crc16.ko\n",
            &[
                ("virtio", ""),
                ("virtio_ring", "virtio"),
                ("virtio_pci_modern-dev", ""),
                ("virtio_pci", "virtio_ring,virtio,virtio-pci-modern-dev"),
                ("virtio_blk", "virtio,virtio_ring"),
                ("ext4", "crc16"),
            ],
        );
        let order = modules.load_order(&["virtio_blk", "virtio_pci"], &["ext4", "not_there"]).unwrap();
        assert_eq!(
            names(&order),
            ["virtio", "virtio_ring", "virtio_blk", "virtio_pci_modern_dev", "virtio_pci", "ext4"]
        );
    }

    #[test]
    fn what_is_built_in_is_not_loaded() {
        let (_directory, modules) = kernel("kernel/fs/ext4/ext4.ko\nkernel/a/virtio-blk.ko\n", &[]);
        assert!(modules.load_order(&["ext4", "virtio_blk"], &[]).unwrap().is_empty());
    }

    #[test]
    fn missing_and_circular_modules_are_named() {
        let (_directory, modules) = kernel("", &[("a", "b"), ("b", "a"), ("c", "gone")]);
        let error = |needed| modules.load_order(needed, &[]).unwrap_err().to_string();
        assert_eq!(error(&["a"]), "the kernel module a depends on itself");
        assert_eq!(error(&["c"]), "the kernel package has no module gone, which c depends on");
    }

    #[test]
    fn damaged_modules_are_not_modules() {
        let good = elf("depends=virtio\0");
        assert_eq!(depends(&good), Some(vec!["virtio".to_owned()]));
        for length in 0..good.len() {
            assert_eq!(depends(&good[..length]), None, "cut to {length} bytes");
        }
        let mut wild = good;
        wild[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(depends(&wild), None);
    }

    #[test]
    fn compressed_modules_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.ko");
        let contents = elf("depends=\0");
        fs::write(&path, &contents).unwrap();
        run(tool("xz", "xz-utils").unwrap().arg(&path)).unwrap();
        let packed = directory.path().join("a.ko.xz");
        assert_eq!(module_name(&packed).as_deref(), Some("a"));
        assert_eq!(read_module(&packed).unwrap(), contents);
    }
}
