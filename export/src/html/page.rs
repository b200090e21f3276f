//! The page around its block: HTML, style, script, and the policy that names both by their hashes.

use std::io::{self, Write};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

const HTML: &str = include_str!("page/page.html");

const STYLES: [&str; 4] = [
    include_str!("page/style/theme.css"),
    include_str!("page/style/layout.css"),
    include_str!("page/style/parts.css"),
    include_str!("page/style/charts.css"),
];

/// Scripts in the order of their dependencies.
const SCRIPTS: [&str; 26] = [
    include_str!("page/script/elements.js"),
    include_str!("page/script/theme.js"),
    include_str!("page/script/data.js"),
    include_str!("page/script/estimate.js"),
    include_str!("page/script/view.js"),
    include_str!("page/script/table.js"),
    include_str!("page/script/summary.js"),
    include_str!("page/script/activity.js"),
    include_str!("page/script/phases.js"),
    include_str!("page/script/host.js"),
    include_str!("page/script/timeline.js"),
    include_str!("page/script/heat.js"),
    include_str!("page/script/layout.js"),
    include_str!("page/script/flame.js"),
    include_str!("page/script/processes.js"),
    include_str!("page/script/functions.js"),
    include_str!("page/script/by.js"),
    include_str!("page/script/code.js"),
    include_str!("page/script/changes.js"),
    include_str!("page/script/address.js"),
    include_str!("page/script/tasks.js"),
    include_str!("page/script/accounting.js"),
    include_str!("page/script/exits.js"),
    include_str!("page/script/latency.js"),
    include_str!("page/script/log.js"),
    include_str!("page/script/measured.js"),
];
const MAIN: &str = include_str!("page/script/main.js");

/// Writes the page with this block.
///
/// # Errors
/// `out` fails.
pub(super) fn write(block: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let style = STYLES.join("\n");
    let script = format!("(() => {{\n'use strict';\n{}\n{MAIN}}})();\n", SCRIPTS.join("\n"));
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(&style)
    );
    let block = BASE64_STANDARD.encode(block);
    let mut rest = HTML;
    for (mark, text) in
        [("@POLICY@", &policy), ("@STYLE@", &style), ("@DATA@", &block), ("@SCRIPT@", &script)]
    {
        if let Some((before, after)) = rest.split_once(mark) {
            out.write_all(before.as_bytes())?;
            out.write_all(text.as_bytes())?;
            rest = after;
        }
    }
    out.write_all(rest.as_bytes())
}

/// Returns the hash of an inline element for a policy (Content Security Policy 3, 2.3.1).
pub(super) fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_replaced_and_nothing_is_loaded() {
        let mut page = Vec::new();
        write(b"data", &mut page).expect("memory takes it");
        let page = String::from_utf8(page).expect("text");
        for mark in ["@POLICY@", "@STYLE@", "@DATA@", "@SCRIPT@"] {
            assert!(!page.contains(mark), "{mark}");
        }
        assert!(page.contains(">ZGF0YQ==</script>"));
        // The only address is the name of a namespace.
        assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/2000/svg").count() + 1);
        assert!(page.contains("http-equiv"));
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            " src=",
            "@import",
            "url(",
        ] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        // Neither ends early in its element.
        assert_eq!(page.matches("</script").count(), 2);
        assert_eq!(page.matches("</style").count(), 1);
    }
}
