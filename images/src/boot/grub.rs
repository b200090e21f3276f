//! `grub.cfg`, as far as Debian's, Ubuntu's and Fedora's `grub-mkconfig` write it: menu entries with a `linux` and an
//! `initrd` line, in submenus or not, `set`, and the saved entry in `grubenv`. It is a language of its own; conditions
//! are not evaluated, the first kernel of an entry counts.

use std::collections::HashMap;

use super::{Entry, MAX_ENTRIES, MAX_INITRDS, MAX_WORDS, bounded, config, find_file, readable, rooted};
use crate::volume::{Files, Volume};

/// Where a volume has GRUB's directory.
const PLACES: &[&str] = &["/boot/grub", "/boot/grub2", "/grub", "/grub2"];
/// Submenus in submenus, at most.
const MAX_DEPTH: usize = 8;

/// GRUB's saved variables (`grubenv`).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Environment(HashMap<String, String>);

impl Environment {
    /// Those of a volume; none if it has none.
    pub fn of(files: &dyn Files) -> Self {
        let text = PLACES.iter().find_map(|place| config(files, &format!("{place}/grubenv")));
        text.map_or_else(Self::default, |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.split_once('='));
        Self(pairs.take(MAX_ENTRIES).map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Puts values for `$name` and `${name}`; what is not known becomes nothing. A value can be much longer than its
    /// name: the text ends at [`MAX_WORDS`].
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

/// A menu entry.
#[derive(Debug, Default, PartialEq, Eq)]
struct Item {
    /// Positions from the outermost menu on.
    position: Vec<usize>,
    titles: Vec<String>,
    ids: Vec<String>,
    linux: Option<Vec<String>>,
    initrd: Vec<String>,
}

/// What a grub.cfg says.
#[derive(Debug, Default)]
struct Menu {
    items: Vec<Item>,
    defaults: Vec<String>,
}

/// The entries in the order of the menu, the default first.
pub fn entries(volumes: &[Volume]) -> Vec<Entry> {
    let mut found = Vec::new();
    for (index, files) in readable(volumes) {
        for place in PLACES {
            let path = format!("{place}/grub.cfg");
            let Some(text) = config(files, &path) else { continue };
            let environment = Environment::of(files);
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

impl Item {
    /// `default` names an entry by position, title or id, with `>` between the levels of submenus.
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
        volumes: &[Volume],
        index: usize,
        source: &str,
        environment: &Environment,
    ) -> Option<Entry> {
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
        Some(Entry {
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

/// `(hd0,gpt2)/vmlinuz` without the device.
fn strip_device(path: &str) -> &str {
    match path.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((_, path)) => path,
        None => path,
    }
}

impl Menu {
    /// What the last `set default=` that can be told gives: the saved entry where there is one.
    fn chosen(&self, environment: &Environment) -> Option<String> {
        let saved = self.defaults.iter().any(|value| value.contains("saved_entry"));
        let saved =
            saved.then(|| environment.0.get("saved_entry")).flatten().filter(|entry| !entry.is_empty());
        let literal = self.defaults.iter().rev().find(|value| !value.contains('$'));
        saved.or(literal).cloned()
    }
}

/// Reads the commands that matter. A block's end is a line that begins with `}`; `if` has no braces.
fn parse(text: &str) -> Menu {
    let mut menu = Menu::default();
    // Of each open menu: how many entries it has had; titles and ids of the submenus themselves.
    let mut counts = vec![0_usize];
    let (mut titles, mut ids) = (Vec::new(), Vec::new());
    let mut open: Option<Item> = None;
    // Functions are blocks as well.
    let mut skipped = 0_usize;
    for line in text.lines() {
        let words = words(line);
        let Some(command) = words.first().map(String::as_str) else { continue };
        let block = words.last().is_some_and(|word| word == "{");
        match command {
            "}" if skipped > 0 => skipped -= 1,
            "}" => match open.take() {
                Some(item) if menu.items.len() < MAX_ENTRIES => menu.items.push(item),
                Some(_) => {}
                None if counts.len() > 1 => {
                    counts.pop();
                    titles.pop();
                    ids.pop();
                }
                None => {}
            },
            "menuentry" | "submenu" if block && open.is_none() && skipped == 0 => {
                let (title, id) = (words.get(1).cloned().unwrap_or_default(), id_of(&words));
                let mut position: Vec<usize> = counts.iter().map(|count| count.saturating_sub(1)).collect();
                if let Some(last) = position.last_mut() {
                    *last = counts.last().copied().unwrap_or(0);
                }
                if let Some(count) = counts.last_mut() {
                    *count += 1;
                }
                if command == "menuentry" {
                    let with = |outer: &[String], inner| outer.iter().cloned().chain([inner]).collect();
                    let (titles, ids) = (with(&titles, title), with(&ids, id));
                    open = Some(Item { position, titles, ids, ..Item::default() });
                } else if counts.len() < MAX_DEPTH {
                    titles.push(title);
                    ids.push(id);
                    counts.push(0);
                } else {
                    skipped += 1;
                }
            }
            _ if block => skipped += 1,
            "set" => {
                let value = words.get(1).and_then(|word| word.strip_prefix("default="));
                menu.defaults.extend(value.map(str::to_owned).filter(|_| menu.defaults.len() < MAX_ENTRIES));
            }
            "linux" | "linuxefi" | "linux16" => {
                if let Some(item) = &mut open {
                    item.linux.get_or_insert_with(|| words.get(1..).unwrap_or_default().to_vec());
                }
            }
            "initrd" | "initrdefi" | "initrd16" => {
                if let Some(item) = open.as_mut().filter(|item| item.initrd.is_empty()) {
                    item.initrd = words.get(1..).unwrap_or_default().to_vec();
                }
            }
            _ => {}
        }
    }
    menu
}

/// The id of an entry: `--id ID` or `$menuentry_id_option ID`.
fn id_of(words: &[String]) -> String {
    let at = words.iter().position(|word| word == "--id" || word == "$menuentry_id_option");
    at.and_then(|at| words.get(at + 1)).cloned().unwrap_or_default()
}

/// A line's words: quotes of both kinds group, a backslash takes the next character as it is, `#` begins a comment.
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
