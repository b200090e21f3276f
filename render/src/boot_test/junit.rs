//! The result as JUnit XML, in the dialect of Ant's JUnit task, which CI services read.

use super::{BootCheck, BootOutcome};

/// Formats the whole file.
pub fn render(outcome: &BootOutcome) -> String {
    let failures = outcome.checks.iter().filter(|check| !check.passed).count();
    let skipped = outcome.checks.iter().filter(|check| check.skipped).count();
    let time: f64 =
        outcome.checks.iter().filter(|check| check.name.starts_with("boot ")).map(|check| check.time_s).sum();
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    text.push_str(&format!(
        "<testsuites>\n<testsuite name=\"vprof boot {}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\" errors=\"0\" time=\"{time:.3}\">\n",
        xml(&outcome.image),
        outcome.checks.len()
    ));
    for check in &outcome.checks {
        text.push_str(&case(check, outcome));
    }
    text.push_str("</testsuite>\n</testsuites>\n");
    text
}

fn case(check: &BootCheck, outcome: &BootOutcome) -> String {
    let head = format!(
        "<testcase classname=\"vprof.boot\" name=\"{}\" time=\"{:.3}\"",
        xml(&check.name),
        check.time_s
    );
    if check.skipped {
        format!("{head}><skipped message=\"{}\"/></testcase>\n", xml(&check.message))
    } else if check.passed {
        format!("{head}/>\n")
    } else {
        let lines = outcome.boots.iter().find_map(|attempt| attempt.evidence.as_ref());
        let lines = lines.map_or_else(String::new, |evidence| evidence.console.join("\n"));
        format!("{head}><failure message=\"{}\">{}</failure></testcase>\n", xml(&check.message), xml(&lines))
    }
}

/// Escapes lines of text for XML.
fn xml(text: &str) -> String {
    text.split('\n').map(display::clean::xml).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_text_is_escaped() {
        assert_eq!(xml("a<b>&\"c\x1b[2J\n]]>\u{ffff}"), "a&lt;b&gt;&amp;&quot;c\\x1b[2J\n]]&gt;\u{fffd}");
    }

    #[test]
    fn each_expectation_is_a_test_case() {
        let check = |name: &str, passed, skipped| BootCheck {
            name: name.to_owned(),
            passed,
            skipped,
            message: "why".to_owned(),
            time_s: 1.5,
        };
        let outcome = BootOutcome {
            version: "0".to_owned(),
            image: "a&b".to_owned(),
            passed: false,
            failure: Some("why".to_owned()),
            boots: Vec::new(),
            checks: vec![
                check("boot 1: up", true, false),
                check("budget total", false, false),
                check("budget initrd", true, true),
            ],
            spread: Vec::new(),
        };
        assert_eq!(
            render(&outcome),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n\
             <testsuite name=\"vprof boot a&amp;b\" tests=\"3\" failures=\"1\" skipped=\"1\" errors=\"0\" time=\"1.500\">\n\
             <testcase classname=\"vprof.boot\" name=\"boot 1: up\" time=\"1.500\"/>\n\
             <testcase classname=\"vprof.boot\" name=\"budget total\" time=\"1.500\"><failure message=\"why\"></failure></testcase>\n\
             <testcase classname=\"vprof.boot\" name=\"budget initrd\" time=\"1.500\"><skipped message=\"why\"/></testcase>\n\
             </testsuite>\n</testsuites>\n"
        );
    }
}
