//! Disks made from directories.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::tools::{run, tool};

/// Unit of image sizes, bytes.
const STEP: u64 = 16 << 20;

/// Options of a file system.
#[derive(Debug)]
pub(crate) struct Ext4Options<'a> {
    /// Label of the file system.
    pub(crate) label: &'a str,
    /// UUID of the file system, fixed so that equal inputs make equal disks, as far as mke2fs can.
    pub(crate) uuid: &'a str,
    /// Free space for the guest's writes, bytes.
    pub(crate) free: u64,
    /// User and group of files, by path below the root, that do not belong to root.
    pub(crate) owners: HashMap<PathBuf, (u32, u32)>,
}

/// Makes a sparse file that is one ext4 file system with the contents of `root`.
pub(crate) fn make(root: &Path, image: &Path, fs: &Ext4Options<'_>) -> Result<()> {
    let Ext4Options { label, uuid, free, owners } = fs;
    let contents = walk(root)?;
    // Every file ends in the middle of a block, and inodes need space as well.
    let used: u64 = contents.iter().map(|(_, meta)| meta.len().next_multiple_of(4096) + 1024).sum();
    let size = (used + used / 8 + free).next_multiple_of(STEP);
    let file = File::create(image).with_context(|| format!("cannot write {}", image.display()))?;
    file.set_len(size).with_context(|| format!("cannot make {} {size} bytes long", image.display()))?;
    drop(file);
    let mut mke2fs = tool("mke2fs", "e2fsprogs")?;
    // By default mke2fs gives a small disk blocks of 1 KiB, which no real installation has.
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-L", label, "-U", uuid]);
    mke2fs.args(["-E", &format!("root_owner=0:0,hash_seed={uuid}"), "-d"]).arg(root).arg(image);
    run(&mut mke2fs).with_context(|| format!("cannot make a file system in {}", image.display()))?;
    give(root, &contents, owners, image)
}

/// Returns everything below a directory, without the directory.
fn walk(root: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let fail = || format!("cannot list {}", directory.display());
        for entry in fs::read_dir(&directory).with_context(fail)? {
            let path = entry.with_context(fail)?.path();
            let meta =
                fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if meta.is_dir() {
                open.push(path.clone());
            }
            found.push((path, meta));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

/// Sets the owners of files in the image by debugfs. mke2fs copies the owners in the directory, which belongs
/// to the user who builds.
fn give(
    root: &Path,
    contents: &[(PathBuf, Metadata)],
    owners: &HashMap<PathBuf, (u32, u32)>,
    image: &Path,
) -> Result<()> {
    let mut script = String::new();
    for (path, meta) in contents {
        let inside = path.strip_prefix(root).unwrap_or(path);
        let Some(name) = inside.to_str().filter(|name| !name.contains(['"', '\n'])) else {
            bail!(
                "cannot pass the name of {} to debugfs: it has a quote, a newline, or is not UTF-8",
                path.display()
            );
        };
        let (uid, gid) = owners.get(inside).copied().unwrap_or((0, 0));
        for (field, has, wanted) in [("uid", meta.uid(), uid), ("gid", meta.gid(), gid)] {
            if has != wanted {
                script.push_str(&format!("set_inode_field \"/{name}\" {field} {wanted}\n"));
            }
        }
    }
    if script.is_empty() {
        return Ok(());
    }
    let mut list = tempfile::tempfile().context("cannot make a temporary file")?;
    list.write_all(script.as_bytes()).context("cannot write a temporary file")?;
    std::io::Seek::rewind(&mut list).context("cannot rewind a temporary file")?;
    let mut debugfs = tool("debugfs", "e2fsprogs")?;
    debugfs.arg("-w").arg(image).stdin(Stdio::from(list));
    // debugfs repeats every command on stdout. It exits with 0 even after a failure, which is only on stderr.
    let output = run(&mut debugfs)?;
    let messages = String::from_utf8_lossy(&output.stderr);
    match messages.lines().find(|line| !line.starts_with("debugfs ") && !line.trim().is_empty()) {
        Some(problem) => bail!("debugfs cannot change owners in {}: {problem}", image.display()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::output_of;

    #[test]
    fn a_directory_becomes_a_disk_with_its_owners() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("etc/with space")).unwrap();
        fs::write(root.join("etc/with space/file"), b"hello\n").unwrap();
        std::os::unix::fs::symlink("etc", root.join("link")).unwrap();
        // Another user's build is imitated, which only root can do; for other users the files are such
        // already.
        if fs::metadata(&root).unwrap().uid() == 0 {
            std::os::unix::fs::chown(root.join("etc/with space/file"), Some(1234), Some(1234)).unwrap();
            std::os::unix::fs::lchown(root.join("link"), Some(1234), Some(1234)).unwrap();
        }
        let image = directory.path().join("x.img");
        let uuid = "6f1d2c3e-5a4b-4c8d-9e7f-767072660009";
        let owners = HashMap::from([(PathBuf::from("etc/with space"), (7, 8))]);
        make(&root, &image, &Ext4Options { label: "x", uuid, free: 8 << 20, owners }).unwrap();
        let debugfs = |request: &str| {
            output_of(tool("debugfs", "e2fsprogs").unwrap().args(["-R", request]).arg(&image)).unwrap()
        };
        assert_eq!(debugfs("cat \"/etc/with space/file\""), "hello\n");
        let root = ("0", "0");
        for (path, owner) in
            [("/etc/with space", ("7", "8")), ("/etc/with space/file", root), ("/link", root), ("/etc", root)]
        {
            let stat = debugfs(&format!("stat \"{path}\""));
            let line = stat.lines().find(|line| line.starts_with("User:")).unwrap();
            let words: Vec<_> = line.split_whitespace().collect();
            assert_eq!((words[1], words[3]), owner, "{path}: {line}");
        }
        run(tool("e2fsck", "e2fsprogs").unwrap().args(["-f", "-n"]).arg(&image)).unwrap();
    }
}
