//! `grub.cfg` as the `grub-mkconfig` of Debian, Ubuntu and Fedora writes it: menu entries with a `linux` and
//! an `initrd` line, in submenus or not, `set`, and the saved entry in `grubenv`.
//!
//! GRUB's language has conditions. They are not evaluated: the first kernel of an entry is taken.

use std::collections::HashMap;

use super::{BootEntry, MAX_ENTRIES, MAX_INITRDS, MAX_WORDS, bounded, config, find_file, readable, rooted};
use crate::volume::{DiskVolume, VolumeFiles};

/// Directories of GRUB on a volume.
const PLACES: &[&str] = &["/boot/grub", "/boot/grub2", "/grub", "/grub2"];
/// Most levels of submenus.
const MAX_DEPTH: usize = 8;

/// Saved variables of GRUB (`grubenv`).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GrubEnvironment(HashMap<String, String>);

impl GrubEnvironment {
    /// Reads the saved variables of a volume; empty if it has none.
    pub fn from_volume(files: &dyn VolumeFiles) -> Self {
        let text = PLACES.iter().find_map(|place| config(files, &format!("{place}/grubenv")));
        text.map_or_else(Self::default, |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.split_once('='));
        Self(pairs.take(MAX_ENTRIES).map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Replaces `$name` and `${name}` by their values. An unknown variable has an empty value.
    ///
    /// A value can be much longer than its name, so the result is cut at [`MAX_WORDS`].
    pub fn expand(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let (before, after) = rest.split_at(at);
            out.push_str(before);
            let after = after.get(1..).unwrap_or("");
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let (name, tail) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
                Some(parts) => parts,
                None => after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len())),
            };
            out.push_str(self.0.get(name).map_or("", String::as_str));
            rest = tail;
            if out.len() > MAX_WORDS {
                return bounded(out);
            }
        }
        bounded(out + rest)
    }
}

/// Entry of the menu.
#[derive(Debug, Default, PartialEq, Eq)]
struct MenuItem {
    /// Positions in the menus, the outermost first.
    position: Vec<usize>,
    titles: Vec<String>,
    ids: Vec<String>,
    linux: Option<Vec<String>>,
    initrd: Vec<String>,
}

/// Entries of a grub.cfg, and the values of `default`.
#[derive(Debug, Default)]
struct GrubMenu {
    items: Vec<MenuItem>,
    defaults: Vec<String>,
}

/// Returns the entries in the order of the menu, the default first.
pub fn entries(volumes: &[DiskVolume]) -> Vec<BootEntry> {
    let mut found = Vec::new();
    for (index, files) in readable(volumes) {
        for place in PLACES {
            let path = format!("{place}/grub.cfg");
            let Some(text) = config(files, &path) else { continue };
            let environment = GrubEnvironment::from_volume(files);
            let mut menu = parse(&text);
            let wanted = menu.chosen(&environment);
            menu.items.sort_by_key(|item| !wanted.as_ref().is_some_and(|wanted| item.is_called(wanted)));
            let made =
                menu.items.into_iter().filter_map(|item| item.entry(volumes, index, &path, &environment));
            found.extend(made);
        }
    }
    found
}

impl MenuItem {
    /// Returns true if `default` means this entry: by position, title or id, with `>` between the levels of
    /// submenus.
    fn is_called(&self, wanted: &str) -> bool {
        let levels: Vec<&str> = wanted.split('>').collect();
        levels.len() == self.position.len()
            && levels.iter().enumerate().all(|(level, name)| {
                let named = |names: &[String]| names.get(level).is_some_and(|n| n == name && !n.is_empty());
                named(&self.titles)
                    || named(&self.ids)
                    || name.parse().is_ok_and(|number: usize| self.position.get(level) == Some(&number))
            })
    }

    fn entry(
        self,
        volumes: &[DiskVolume],
        index: usize,
        source: &str,
        environment: &GrubEnvironment,
    ) -> Option<BootEntry> {
        let mut words = self.linux?.into_iter().map(|word| environment.expand(&word));
        let kernel = rooted(strip_device(&words.next()?));
        let mut options = String::new();
        for word in words.filter(|word| !word.is_empty()) {
            if options.len() > MAX_WORDS {
                break;
            }
            if !options.is_empty() {
                options.push(' ');
            }
            options.push_str(&word);
        }
        let initrds = self.initrd.iter().take(MAX_INITRDS).map(|word| environment.expand(word));
        Some(BootEntry {
            volume: find_file(volumes, index, &kernel)?,
            kernel,
            initrds: initrds
                .filter(|word| !word.is_empty())
                .map(|word| rooted(strip_device(&word)))
                .collect(),
            options: Some(bounded(options)),
            unified: false,
            title: self.titles.last().cloned(),
            source: source.to_owned(),
        })
    }
}

/// Removes the device of a path like `(hd0,gpt2)/vmlinuz`.
fn strip_device(path: &str) -> &str {
    match path.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((_, path)) => path,
        None => path,
    }
}

impl GrubMenu {
    /// Returns the default entry: the saved entry if the menu uses it and there is one, else the value of the
    /// last `set default=` without variables.
    fn chosen(&self, environment: &GrubEnvironment) -> Option<String> {
        let saved = self.defaults.iter().any(|value| value.contains("saved_entry"));
        let saved =
            saved.then(|| environment.0.get("saved_entry")).flatten().filter(|entry| !entry.is_empty());
        let literal = self.defaults.iter().rev().find(|value| !value.contains('$'));
        saved.or(literal).cloned()
    }
}

/// Parses the commands that name kernels. A line that begins with `}` ends a block; `if` has no braces.
fn parse(text: &str) -> GrubMenu {
    let mut parser = MenuParser { counts: vec![0], ..MenuParser::default() };
    for line in text.lines() {
        parser.line(&words(line));
    }
    parser.menu
}

/// State of the parser of a grub.cfg.
#[derive(Debug, Default)]
struct MenuParser {
    menu: GrubMenu,
    /// Number of entries so far in each open menu, the outermost first.
    counts: Vec<usize>,
    /// Titles of the open submenus: `default` names an entry by its path through the menus.
    titles: Vec<String>,
    /// Ids of the open submenus.
    ids: Vec<String>,
    /// Entry whose block is open.
    open: Option<MenuItem>,
    /// Depth of the blocks that are not menus, like functions. Menus in them are ignored.
    skipped: usize,
}

impl MenuParser {
    /// Parses the words of one line.
    fn line(&mut self, words: &[String]) {
        let Some(command) = words.first().map(String::as_str) else { return };
        let is_block = words.last().is_some_and(|word| word == "{");
        match command {
            "}" => self.close_block(),
            "menuentry" | "submenu" if is_block && self.open.is_none() && self.skipped == 0 => {
                self.open_menu(command == "submenu", words);
            }
            _ if is_block => self.skipped += 1,
            "set" => {
                let value = words.get(1).and_then(|word| word.strip_prefix("default="));
                let value = value.filter(|_| self.menu.defaults.len() < MAX_ENTRIES);
                self.menu.defaults.extend(value.map(str::to_owned));
            }
            "linux" | "linuxefi" | "linux16" => {
                if let Some(item) = &mut self.open {
                    item.linux.get_or_insert_with(|| words.get(1..).unwrap_or_default().to_vec());
                }
            }
            "initrd" | "initrdefi" | "initrd16" => {
                if let Some(item) = self.open.as_mut().filter(|item| item.initrd.is_empty()) {
                    item.initrd = words.get(1..).unwrap_or_default().to_vec();
                }
            }
            _ => {}
        }
    }

    /// Ends the innermost block. Entries cannot be nested, so that is the open entry, or else a submenu.
    fn close_block(&mut self) {
        if self.skipped > 0 {
            self.skipped -= 1;
        } else if let Some(item) = self.open.take() {
            if self.menu.items.len() < MAX_ENTRIES {
                self.menu.items.push(item);
            }
        } else if self.counts.len() > 1 {
            self.counts.pop();
            self.titles.pop();
            self.ids.pop();
        }
    }

    /// Begins an entry or a submenu with the words of its line.
    fn open_menu(&mut self, is_submenu: bool, words: &[String]) {
        let (title, id) = (words.get(1).cloned().unwrap_or_default(), id_of(words));
        // An outer menu has counted the open submenu already, hence its position is one less than the count.
        let mut position: Vec<usize> = self.counts.iter().map(|count| count.saturating_sub(1)).collect();
        if let (Some(last), Some(count)) = (position.last_mut(), self.counts.last_mut()) {
            *last = *count;
            *count += 1;
        }
        if !is_submenu {
            let with = |outer: &[String], inner| outer.iter().cloned().chain([inner]).collect();
            let (titles, ids) = (with(&self.titles, title), with(&self.ids, id));
            self.open = Some(MenuItem { position, titles, ids, ..MenuItem::default() });
        } else if self.counts.len() < MAX_DEPTH {
            self.titles.push(title);
            self.ids.push(id);
            self.counts.push(0);
        } else {
            self.skipped += 1;
        }
    }
}

/// Returns the id of an entry: `--id ID` or `$menuentry_id_option ID`.
fn id_of(words: &[String]) -> String {
    let at = words.iter().position(|word| word == "--id" || word == "$menuentry_id_option");
    at.and_then(|at| words.get(at + 1)).cloned().unwrap_or_default()
}

/// Splits a line into words. Quotes of both kinds group, a backslash makes the next character literal, and
/// `#` begins a comment.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (_, Some(mark)) if letter == mark => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(letters.next()),
            (_, Some(_)) => word.get_or_insert_default().push(letter),
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            ('#', None) if word.is_none() => break,
            (letter, None) if letter.is_whitespace() || letter == ';' => words.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests;
