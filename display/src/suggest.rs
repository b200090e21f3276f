//! Names that resemble a mistyped one.

/// Limit of suggestions.
const OFFERED: usize = 3;
/// Length above which names are compared by their beginnings, bytes.
const COMPARED: usize = 48;

/// Returns the names nearest to `wanted`, the nearest first: those that contain it, and those a few letters
/// away.
pub fn suggest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let lower = wanted.to_ascii_lowercase();
    let candidate = |name: &'a str| Some((distance(&lower, name)?, name.len(), name));
    let mut found: Vec<(usize, usize, &str)> = names.filter_map(candidate).collect();
    found.sort_unstable();
    found.dedup();
    found.truncate(OFFERED);
    found.into_iter().map(|(_, _, name)| name).collect()
}

/// Returns the distance of a name from the wanted one; `None` if it does not resemble it.
fn distance(wanted: &str, name: &str) -> Option<usize> {
    let name = name.to_ascii_lowercase();
    if name.contains(wanted) {
        return Some(0);
    }
    let cut = |text: &str| text.bytes().take(COMPARED).collect::<Vec<u8>>();
    let (a, b) = (cut(wanted), cut(&name));
    let most = (a.len() / 3).max(1);
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    Some(edits(&a, &b)).filter(|&edits| edits <= most)
}

/// Returns the Levenshtein distance: insertions, deletions and replacements from one to the other.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, n) in
            [("", "", 0), ("abc", "abc", 0), ("abc", "abd", 1), ("kitten", "sitting", 3), ("", "ab", 2)]
        {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), n, "{a} {b}");
            assert_eq!(edits(b.as_bytes(), a.as_bytes()), n, "{b} {a}");
        }
    }

    #[test]
    fn similar_names_are_offered() {
        let names = ["schedule", "schedule_timeout", "vfs_read", "ksys_read", "main"];
        assert_eq!(suggest("shedule", names.into_iter()), ["schedule"]);
        assert_eq!(suggest("READ", names.into_iter()), ["vfs_read", "ksys_read"]);
        assert!(suggest("quite_another", names.into_iter()).is_empty());
        assert!(suggest("", names.into_iter()).is_empty());
    }
}
