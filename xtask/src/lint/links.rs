//! Dead relative links of documents.

use std::fs;
use std::path::Path;

use super::finding::LintFinding;
use super::markdown;

/// Checks that the files which a document links to exist and have the anchors that the links name.
pub fn check(root: &Path, path: &str, document: &str) -> Vec<LintFinding> {
    let directory = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut findings = Vec::new();
    for link in markdown::links(document) {
        if is_external(&link.target) {
            continue;
        }
        let (file, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
        if let Some(reason) = fault(&directory, document, file, anchor) {
            let text = format!("dead link \"{}\": {reason}", link.target);
            findings.push(LintFinding::new("dead link", link.line, text));
        }
    }
    findings
}

/// True for links with a scheme, like `https:` or `mailto:`, and those to a server's root.
fn is_external(target: &str) -> bool {
    let scheme = target.split([':', '/', '#', '?', '.']).next().unwrap_or_default();
    target.starts_with('/') || target[scheme.len()..].starts_with(':')
}

/// Returns why a link leads nowhere.
fn fault(directory: &Path, document: &str, file: &str, anchor: &str) -> Option<&'static str> {
    let target = directory.join(file);
    if !file.is_empty() && !target.exists() {
        return Some("the file does not exist");
    }
    if anchor.is_empty() {
        return None;
    }
    let found = if file.is_empty() {
        markdown::anchors(document)
    } else if target.extension().is_some_and(|extension| extension == "md") {
        match fs::read_to_string(&target) {
            Ok(other) => markdown::anchors(&other),
            Err(_) => return Some("the file cannot be read"),
        }
    } else {
        // Anchors of other files, like #L10 of a source file, are made by the page that shows them.
        return None;
    };
    (!found.iter().any(|known| known == anchor)).then_some("the document has no such heading")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found_and_living_ones_are_not() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("docs")).unwrap();
        fs::write(root.path().join("docs/b.md"), "# A heading\n").unwrap();
        fs::write(root.path().join("c.rs"), "").unwrap();
        let document = "# Own\n\
            [a](b.md) [b](b.md#a-heading) [c](../c.rs#L1) [d](#own) [e](https://example.org/x#y) [f](mailto:a@b)\n\
            [g](x.md) [h](b.md#gone)\n\
            [i](#gone) [j](/root) [k](b.md#)\n";
        let found: Vec<(usize, String)> = check(root.path(), "docs/a.md", document)
            .into_iter()
            .map(|finding| (finding.line, finding.text))
            .collect();
        assert_eq!(
            found,
            [
                (3, "dead link \"x.md\": the file does not exist".to_owned()),
                (3, "dead link \"b.md#gone\": the document has no such heading".to_owned()),
                (4, "dead link \"#gone\": the document has no such heading".to_owned()),
            ]
        );
    }
}
