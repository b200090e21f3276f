//! A page of text and tables in the style of the profile's page, without a script.

use std::io::{self, Write};

use display::clean::xml;

use super::page::hash;

const STYLES: [&str; 3] = [
    include_str!("page/style/theme.css"),
    include_str!("page/style/layout.css"),
    include_str!("page/style/parts.css"),
];

/// Writes a page with this title, and `body` as the content of its main element: HTML without scripts and
/// attributes `style`, which the page's policy forbids.
///
/// # Errors
/// `out` fails.
pub fn write_document(title: &str, body: &str, out: &mut dyn Write) -> io::Result<()> {
    let style = STYLES.join("\n");
    let title = xml(title);
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{}'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"generator\" content=\"vprof\">\n\
         <title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n\
         <header class=\"top\"><div class=\"title\"><h1>{title}</h1></div></header>\n\
         <main>\n{body}</main>\n</body>\n</html>\n",
        hash(&style)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_text_and_nothing_is_loaded() {
        let mut page = Vec::new();
        write_document("</title><script>", "<p>body</p>", &mut page).expect("memory takes it");
        let page = String::from_utf8(page).expect("text");
        assert!(page.contains("<h1>&lt;/title&gt;&lt;script&gt;</h1>") && page.contains("<p>body</p>"));
        assert!(!page.contains("<script") && !page.contains(" style=") && !page.contains("url("));
        assert_eq!(page.matches("</style").count(), 1);
    }
}
