//! Names that a hostile guest may choose, through every format and back.

use std::io::Read;

use flate2::read::GzDecoder;
use quick_xml::events::Event;

use super::{fixture, readers, text, written};
use crate::{Count, Format, Request, Root};

fn names() -> Vec<String> {
    let names = [
        "\"; DROP TABLE sample; --",
        "<script>alert('1')</script>&amp;]]>",
        "a;b;c 12\n2nd line 7\r\n",
        "\x1b[2J\x1b]0;title\x07\u{9b}31m",
        "\u{202e}gpj.exe\u{200f}\u{61c}",
        " 1 2/3 [000] 4.5: 6 cpu-clock:",
        "=cmd|' /C calc'!A0,\"x\"",
        "\u{fffd}\u{fffd}",
        "a (b) (c)",
        "",
        "\\",
        "größe 漢字 \u{1f600}",
        "{\"libs\":[]}",
    ];
    let mut names: Vec<String> = names.map(str::to_owned).to_vec();
    names.push("x".repeat(10_000));
    names
}

/// Asserts that there are no control characters but the line end, and none that reorders text.
fn assert_harmless(format: Format, name: &str, text: &str) {
    let allowed = |c: char| c == '\n' || (c == '\t' && format == Format::PerfScript);
    let text = if format == Format::Csv { text.replace("\r\n", "\n") } else { text.to_owned() };
    // Inferno's page has its own scripts, with tabs in them.
    let bad = text.chars().find(|&c| {
        (c.is_control() && !allowed(c) && c != '\t') || matches!(c, '\u{200f}' | '\u{202e}' | '\u{61c}')
    });
    assert_eq!(bad, None, "{format} of {name:?}");
}

#[test]
fn names_do_no_harm_in_any_format() {
    for name in names() {
        let made = fixture::named(&name);
        for format in Format::all() {
            let request = Request { title: name.clone(), count: Count::Samples, ..Request::new(format) };
            let bytes = written(&made, &request);
            let text = match format {
                Format::Pprof => {
                    let mut plain = Vec::new();
                    GzDecoder::new(&bytes[..]).read_to_end(&mut plain).expect("gzip");
                    readers::assert_pprof(&plain);
                    continue;
                }
                Format::Perfetto => {
                    crate::perfetto::assert_sound(&bytes);
                    continue;
                }
                Format::Otlp => {
                    drop(crate::otlp::decoded(&bytes));
                    continue;
                }
                Format::FirefoxGz => {
                    let mut plain = String::new();
                    GzDecoder::new(&bytes[..]).read_to_string(&mut plain).expect("gzip of UTF-8");
                    drop(readers::assert_firefox(&plain));
                    continue;
                }
                Format::Parquet => {
                    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
                    continue;
                }
                _ => String::from_utf8(bytes).expect("UTF-8"),
            };
            assert_harmless(format, &name, &text);
            match format {
                Format::Folded => readers::assert_folded(&text, fixture::SAMPLES),
                Format::Flamegraph => assert_svg(&text, 9),
                Format::Bootchart => assert_svg(&text, 1),
                Format::Firefox => drop(readers::assert_firefox(&text)),
                Format::Speedscope => readers::assert_speedscope(&text),
                Format::PerfScript => readers::assert_perf_script(&text),
                Format::Csv => readers::assert_csv(&text, &name),
                Format::Html => super::page::assert_page(&text, &name),
                Format::Pprof | Format::Otlp | Format::Perfetto | Format::FirefoxGz | Format::Parquet => {}
            }
        }
    }
}

#[test]
fn threads_with_such_names_are_harmless_roots() {
    for name in names() {
        let made = fixture::named(&name);
        let request = Request { root: Root::Thread, count: Count::Samples, ..Request::new(Format::Folded) };
        readers::assert_folded(&text(&made, &request), fixture::SAMPLES);
    }
}

/// Asserts that the picture is well-formed XML with its own script and at least this number of frames.
fn assert_svg(text: &str, least: i32) {
    let mut reader = quick_xml::Reader::from_str(text);
    let (mut frames, mut scripts, mut depth) = (0, 0, 0_i32);
    loop {
        match reader.read_event().expect("well-formed XML") {
            Event::Start(tag) => {
                depth += 1;
                scripts += i32::from(tag.name().as_ref() == b"script");
                frames += i32::from(tag.name().as_ref() == b"title");
            }
            Event::End(_) => depth -= 1,
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!((depth, scripts), (0, 1));
    assert!(frames >= least, "{frames} frames");
}
