//! Functions that are watched on request.

use super::{STYLES, empty, find};
use crate::fixture::trace::NOP;
use crate::fixture::{Config, Guest, Style};
use crate::{ArgumentKind, CannotWatch, Kernel, ProbeEvent};

/// Offset of the first function of [`Guest::traceable`] that these tests watch: `release_task`.
const RELEASE: u64 = 0x5140;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn refused(guest: &Guest, kernel: &Kernel, name: &str) -> CannotWatch {
    kernel.watched(&guest.memory, &names(&[name])).unwrap_err()
}

#[test]
fn a_function_has_its_no_op_and_its_arguments() {
    for style in STYLES {
        let guest = Guest::traceable(style);
        let kernel = find(&guest).unwrap();
        let wanted = names(&["release_task", "wake_up_new_task"]);
        kernel.check_watched(&guest.memory, &wanted).unwrap();
        let watched = kernel.watched(&guest.memory, &wanted).unwrap();
        assert_eq!(watched[0].address, guest.text(RELEASE));
        let arguments = watched[0].arguments.as_ref().unwrap();
        let types: Vec<&str> = arguments.iter().map(|argument| argument.type_name.as_str()).collect();
        assert_eq!(types, ["const char *", "size_t", "enum hrtimer_mode", "_Bool", "int"]);
        let ArgumentKind::Enum(4, values) = &arguments[2].kind else { panic!("{:?}", arguments[2]) };
        assert_eq!(values[1], (1, "HRTIMER_MODE_REL".to_owned()));
        assert_eq!(watched[1].arguments, None);
        // Alone there are but the guards, and with exact mode one site has both meanings.
        let alone = kernel.probe_sites(&guest.memory, false, &watched).unwrap();
        let guards = alone.sites.iter().filter(|site| site.event.is_some_and(ProbeEvent::is_guard)).count();
        assert_eq!((alone.sites.len(), guards), (5, 3));
        let both = kernel.probe_sites(&guest.memory, true, &watched).unwrap();
        let release = both.sites.iter().find(|site| site.watched == Some(0)).unwrap();
        assert_eq!((release.event, release.kind()), (Some(ProbeEvent::Release), 10));
        assert_eq!(both.sites.len(), 10);
    }
}

#[test]
fn a_name_that_is_not_one_function_is_refused() {
    let mut config = Config::new(Style::V6_12);
    let functions = [
        (0x6000, 't', "twice"),
        (0x6040, 't', "twice"),
        (0x6080, 'D', "variable"),
        (0x7000, 'T', "_sinittext"),
        (0x7010, 't', "set_up"),
        (0x7800, 'T', "_einittext"),
    ];
    config.functions.extend(functions.map(|(at, kind, name)| (at, kind, name.to_owned())));
    let guest = config.build();
    let kernel = find(&guest).unwrap();
    let check = |name: &str| kernel.check_watched(&guest.memory, &names(&["schedule", name])).unwrap_err();
    let text = check("shedule").to_string();
    assert!(text.contains("no function shedule") && text.contains("similar: schedule"), "{text}");
    assert_eq!(check("twice"), CannotWatch::Ambiguous { name: "twice".into(), count: 2 });
    assert_eq!(check("set_up"), CannotWatch::Init { name: "set_up".into() });
    for name in ["variable", "", "\u{1b}[31m", "*"] {
        let refused = check(name);
        assert!(matches!(refused, CannotWatch::Unknown { .. }), "{refused}");
        assert!(!refused.to_string().contains('\u{1b}'));
    }
}

#[test]
fn a_function_without_a_no_op_is_refused_with_the_reason() {
    let mut guest = Guest::traceable(Style::V6_12);
    let kernel = find(&guest).unwrap();
    // No no-op, and no record of the tracer.
    for name in ["vfs_read", "ftrace_arch_code_modify_prepare"] {
        let text = refused(&guest, &kernel, name).to_string();
        assert!(text.contains("not traceable"), "{text}");
    }
    guest.put_text(0x3000, &NOP);
    assert!(matches!(refused(&guest, &kernel, "vfs_read"), CannotWatch::NoNoOp { .. }), "a foreign no-op");
    guest.set_tracers(RELEASE, 1);
    let traced = CannotWatch::Traced { name: "release_task".into() };
    assert_eq!(refused(&guest, &kernel, "release_task"), traced);
    guest.set_tracers(RELEASE, 0);
    for opcode in [0xe8, 0xcc, 0xe9] {
        guest.put_text(RELEASE, &[opcode]);
        assert_eq!(refused(&guest, &kernel, "release_task"), traced);
    }
    let wanted = names(&["schedule"]);
    assert!(kernel.watched(&empty(), &wanted).is_err(), "memory that cannot be read");
}
