//! The live tables as text.

use std::fmt::Write as _;

use display::units;
use profile::live::Snapshot;

use super::paragraph::heading;
use super::summary::program_name;
use super::table::{ColumnAlign, TextTable};
use super::{PageLayout, with_module};

/// Formats the tables of a snapshot.
pub fn render(snapshot: &Snapshot, page: PageLayout) -> String {
    let mut text = String::new();
    let sampling = match snapshot.sampling.on {
        true => format!("sampled at {}", units::rate(snapshot.sampling.rate_hz)),
        false => "not sampled now".to_owned(),
    };
    let title = format!(
        "The last {} of {}, {sampling}; {} counted",
        units::seconds(snapshot.span_s),
        units::seconds(snapshot.time_s),
        units::counted(snapshot.sampling.counted, "sample")
    );
    // Writing to a String can't fail.
    let _ = writeln!(text, "{}", page.style.bold(&title));
    vcpus(&mut text, snapshot, page);
    programs(&mut text, snapshot, page);
    functions(&mut text, snapshot, page);
    text
}

fn vcpus(text: &mut String, snapshot: &Snapshot, page: PageLayout) {
    let Some(first) = snapshot.vcpus.first() else { return };
    let names = first.states.iter().map(|(name, _)| (name.as_str(), ColumnAlign::Right));
    let columns: Vec<_> = [("vCPU", ColumnAlign::Right)].into_iter().chain(names).collect();
    let mut table = TextTable::new(&columns).indent(2);
    for vcpu in &snapshot.vcpus {
        let parts = vcpu.states.iter().map(|(_, part)| units::percent(*part));
        table.row([vcpu.id.to_string()].into_iter().chain(parts).collect());
    }
    heading(text, page, "vCPUs", "");
    text.push_str(&table.render(page.width));
}

fn programs(text: &mut String, snapshot: &Snapshot, page: PageLayout) {
    let right = ColumnAlign::Right;
    let mut table = TextTable::new(&[
        ("share", right),
        ("±", right),
        ("user", right),
        ("pid", right),
        ("program", ColumnAlign::Left),
    ])
    .indent(2)
    .flexible(4);
    for program in &snapshot.programs {
        table.row(vec![
            units::percent(program.share.share),
            units::percent(program.share.distance()),
            units::percent(program.user),
            program.pid.map_or_else(String::new, |pid| pid.to_string()),
            program_name(&program.comm, program.kernel_thread, program.instances),
        ]);
    }
    heading(text, page, "Programs", "");
    text.push_str(&table.render(page.width));
}

fn functions(text: &mut String, snapshot: &Snapshot, page: PageLayout) {
    let right = ColumnAlign::Right;
    let mut table =
        TextTable::new(&[("self", right), ("±", right), ("total", right), ("function", ColumnAlign::Left)])
            .indent(2)
            .flexible(3);
    for function in &snapshot.functions {
        table.row(vec![
            units::percent(function.own.share),
            units::percent(function.own.distance()),
            units::percent(function.total.share),
            with_module(&function.symbol, function.module.as_deref()),
        ]);
    }
    heading(text, page, "Functions", "");
    text.push_str(&table.render(page.width));
}

#[cfg(test)]
mod tests {
    use profile::live::{FunctionShare, ProgramShare, Sampling, VcpuShare};
    use statistics::estimate::share;

    use super::*;
    use crate::TextStyle;

    #[test]
    fn tables_are_golden() {
        let snapshot = Snapshot {
            time_s: 75.0,
            span_s: 5.0,
            sampling: Sampling { on: true, rate_hz: 500.0, counted: 2_400, ..Sampling::default() },
            vcpus: vec![VcpuShare {
                id: 0,
                states: vec![("guest".to_owned(), 0.75), ("halted".to_owned(), 0.25)],
                ..VcpuShare::default()
            }],
            programs: vec![
                ProgramShare {
                    comm: "gz\x1bip".to_owned(),
                    pid: None,
                    instances: 3,
                    kernel_thread: false,
                    samples: 600,
                    share: share(600, 2_400),
                    user: 0.9,
                },
                ProgramShare {
                    comm: "ksoftirqd/0".to_owned(),
                    pid: Some(14),
                    instances: 1,
                    kernel_thread: true,
                    samples: 120,
                    share: share(120, 2_400),
                    user: 0.0,
                },
            ],
            functions: vec![FunctionShare {
                symbol: "deflate".to_owned(),
                module: Some("gzip".to_owned()),
                samples: 300,
                own: share(300, 2_400),
                total: share(500, 2_400),
            }],
            ..Snapshot::default()
        };
        let page = PageLayout { width: 80, style: TextStyle::Plain };
        assert_eq!(
            render(&snapshot, page),
            "\
The last 5.00 s of 75.00 s, sampled at 500 Hz; 2,400 samples counted

vCPUs
  vCPU   guest  halted
     0  75.0 %  25.0 %

Programs
   share      ±    user  pid  program
  25.0 %  1.8 %  90.0 %       gz\\x1bip, 3 processes
   5.0 %  0.9 %   0.0 %   14  [ksoftirqd/0]

Functions
    self      ±   total  function
  12.5 %  1.4 %  20.8 %  deflate [gzip]
"
        );
    }
}
