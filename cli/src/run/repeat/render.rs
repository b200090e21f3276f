//! The spread between several runs: the end of `vprof run --repeat`.

use display::clean::escaped;
use display::units;

use super::{RepeatedRuns, TIMES};
use render::PageLayout;
use render::boot::spread as table;
use render::paragraph::{heading, wrapped};
use statistics::spread::ValueSpread;

/// Formats times and shares of all runs.
pub fn render(repeated: &RepeatedRuns, page: PageLayout) -> String {
    let mut text = String::new();
    let command =
        repeated.command.as_deref().map_or_else(String::new, |command| format!(" of {}", escaped(command)));
    wrapped(
        &mut text,
        &page.style.bold(&format!("{} runs{command}", repeated.profiles.len())),
        "",
        page.width,
    );
    let for_people = |one: &ValueSpread| {
        let time = TIMES.iter().find(|(name, _)| *name == one.name);
        let name = time.map_or_else(|| one.name.clone(), |(_, name)| (*name).to_owned());
        ValueSpread { name, ..one.clone() }
    };
    let times: Vec<ValueSpread> = repeated.times_s.iter().map(for_people).collect();
    table(&mut text, &times, units::seconds, page);
    heading(&mut text, page, "Shares", " of the time in the guest in which it was not idle");
    table(&mut text, &repeated.shares, units::percent, page);
    let note = "spread: standard deviation over mean. CPU times and shares are estimated by samples.";
    text.push('\n');
    wrapped(&mut text, note, "  ", page.width);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use render::TextStyle;

    #[test]
    fn times_have_distinct_names_at_80_columns() {
        let spread = |name: &str, values: &[f64]| ValueSpread::from_values(name, values).unwrap();
        let repeated = RepeatedRuns {
            version: "0".to_owned(),
            command: Some("sha256sum /a\x1b[2J".to_owned()),
            profiles: vec!["1.vprof".into(), "2.vprof".into()],
            times_s: vec![
                spread("wall", &[1.0, 1.1]),
                spread("user", &[0.5, 0.6]),
                spread("run", &[3.0, 3.0]),
            ],
            shares: vec![spread("sha256sum", &[0.5, 0.7])],
        };
        let text = render(&repeated, PageLayout { width: 80, style: TextStyle::Plain });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(lines[0], "2 runs of sha256sum /a\\x1b[2J");
        assert!(lines[2].contains("1.05 s") && lines[2].ends_with("wall time of the command"), "{text}");
        assert!(
            text.contains("  in user code\n") && text.contains("the whole run, with the guest's boot"),
            "{text}"
        );
    }
}
