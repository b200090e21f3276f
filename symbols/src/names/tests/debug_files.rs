//! Debug files are found where they belong, and only those that belong.

use std::collections::HashMap;
use std::fs;
use std::sync::OnceLock;

use super::*;
use crate::elf::{BuildId, ReadAt};
use crate::names::{DebugFileOrigin, DebugFiles, DebugQuery, DebugSource, DebugSourceError, GuestFiles};

struct Files(HashMap<String, Vec<u8>>);

impl GuestFiles for Files {
    fn open(&self, path: &str) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(self.0.get(path)?.clone()))
    }
}

struct Server(Result<Vec<u8>, String>);

impl DebugSource for Server {
    fn name(&self) -> String {
        "server".into()
    }
    fn find(&self, _: &BuildId) -> Result<Option<Box<dyn ReadAt>>, DebugSourceError> {
        let bytes = self.0.clone().map_err(|reason| DebugSourceError::Servers(vec![reason]))?;
        Ok((!bytes.is_empty()).then(|| Box::new(bytes) as Box<dyn ReadAt>))
    }
}

/// A stripped program with a link to its debug file, the debug file, and that of another build.
struct Programs {
    stripped: Vec<u8>,
    debug: Vec<u8>,
    other_debug: Vec<u8>,
}

impl Programs {
    fn open(&self) -> ElfFile {
        ElfFile::open(Box::new(self.stripped.clone())).unwrap()
    }
}

/// Returns programs that name their build-id.
fn programs() -> Option<&'static Programs> {
    static MADE: OnceLock<Option<Programs>> = OnceLock::new();
    MADE.get_or_init(|| make_programs("sha1")).as_ref()
}

/// Makes programs; the linker is given the style of their build-id.
fn make_programs(build_id: &str) -> Option<Programs> {
    const SOURCE: &str = "int main() {}";
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (debug, stripped, other) = (at("shop.debug"), at("stripped"), at("other"));
    let build_id = format!("-Wl,--build-id={build_id}");
    let path = compiled(SOURCE, directory.path(), &[&build_id, "-O1"])?;
    tool("objcopy", &["--only-keep-debug", path.to_str()?, &other], None)?;
    let path = compiled(SOURCE, directory.path(), &[&build_id, "-O2"])?;
    tool("objcopy", &["--only-keep-debug", path.to_str()?, &debug], None)?;
    let link = format!("--add-gnu-debuglink={debug}");
    tool("objcopy", &["--strip-all", &link, path.to_str()?, &stripped], None)?;
    let [stripped, debug, other_debug] = [stripped, debug, other].map(|path| fs::read(path).unwrap());
    Some(Programs { stripped, debug, other_debug })
}

fn guest(files: &[(&str, &[u8])]) -> DebugFiles {
    let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec())).collect();
    DebugFiles::new().with_guest(Box::new(Files(files)))
}

#[test]
fn the_guest_has_it_in_one_of_the_usual_places() {
    let without_id = make_programs("none");
    for programs in [programs(), without_id.as_ref()] {
        let Some(programs) = programs else { return };
        let query = DebugQuery::new(&programs.open(), "/opt/shop/bin/till");
        assert_eq!(query.link.as_ref().unwrap().name, "shop.debug");
        let mut places = vec![
            "/opt/shop/bin/shop.debug".to_owned(),
            "/opt/shop/bin/.debug/shop.debug".to_owned(),
            "/usr/lib/debug/opt/shop/bin/shop.debug".to_owned(),
        ];
        if let Some(id) = &query.build_id {
            let digits = id.to_string();
            places.push(format!("/usr/lib/debug/.build-id/{}/{}.debug", &digits[..2], &digits[2..]));
        }
        for place in &places {
            let found = guest(&[(place, &programs.debug)]).find(&query).unwrap();
            assert_eq!(found.origin, DebugFileOrigin::Guest(place.clone()));
            assert!(found.elf.has_section(".debug_info"));
            assert!(guest(&[(place, &programs.other_debug)]).find(&query).is_err(), "another build: {place}");
            assert!(guest(&[(place, b"not an ELF file")]).find(&query).is_err());
        }
        assert!(guest(&[("/somewhere/else.debug", &programs.debug)]).find(&query).is_err());
    }
}

#[test]
fn a_directory_of_the_host_has_it_in_any_layout() {
    let Some(programs) = programs() else { return };
    let query = DebugQuery::new(&programs.open(), "/opt/shop/bin/till");
    let digits = query.build_id.as_ref().unwrap().to_string();
    let by_id = format!(".build-id/{}/{}.debug", &digits[..2], &digits[2..]);
    let usual = format!("usr/lib/debug/{by_id}");
    for layout in [&by_id, &usual, "opt/shop/bin/till", "opt/shop/bin/shop.debug", "till.debug", "shop.debug"]
    {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(layout);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let files = DebugFiles::new().with_directory(root.path().to_owned());
        fs::write(&path, &programs.other_debug).unwrap();
        assert!(files.find(&query).is_err(), "another build");
        fs::write(&path, &programs.debug).unwrap();
        assert_eq!(files.find(&query).unwrap().origin, DebugFileOrigin::Host(path));
    }
}

#[test]
fn a_guest_path_does_not_leave_the_host_directory() {
    let Some(programs) = programs() else { return };
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    fs::create_dir(&root).unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, &programs.debug).unwrap();
    let query = DebugQuery::new(&programs.open(), "/../secret");
    assert!(DebugFiles::new().with_directory(root).find(&query).is_err());
}

#[test]
fn a_server_is_asked_last_and_not_believed() {
    let Some(programs) = programs() else { return };
    let query = DebugQuery::new(&programs.open(), "/opt/till");
    let ask = |answer| DebugFiles::new().with_source(Box::new(Server(answer))).find(&query);
    assert_eq!(ask(Ok(programs.debug.clone())).unwrap().origin, DebugFileOrigin::Source("server".into()));
    assert_eq!(ask(Ok(Vec::new())).unwrap_err(), Vec::<String>::new());
    assert_eq!(ask(Err("no route".into())).unwrap_err(), ["server: no route"]);
    let lie = ask(Ok(programs.other_debug.clone())).unwrap_err();
    assert!(lie[0].contains("not the file of build-id"), "{lie:?}");
    let place = "/opt/shop.debug";
    let both = guest(&[(place, &programs.debug)]).with_source(Box::new(Server(Err("asked".into()))));
    assert_eq!(both.find(&query).unwrap().origin, DebugFileOrigin::Guest(place.into()));
}

#[test]
fn what_is_wanted_is_told() {
    let query = DebugQuery { path: "/bin/\x1bx".into(), build_id: "abcd".parse().ok(), link: None };
    assert_eq!(query.to_string(), "build-id abcd (/bin/?x)");
}
