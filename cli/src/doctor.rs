//! `vprof doctor`: the features of this machine, and the host that `run` uses because of them.

use std::io::{self, Write};
use std::time::Duration;

use host::HostError;
use host::choice::{Chosen, Host, HostChoice, Kvm, Portable, choose};
use host::portable::bundle::HOW_TO_BUILD;
use serde_json::{Value, json};
use vmm::KvmError;
use vmm::kvm_check::RingSpeeds;

use crate::args::DoctorArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{ignore_closed_pipe, stdout_error};
use render::TextStyle;

/// One finding about this machine.
struct HostFinding {
    what: &'static str,
    state: FindingState,
    found: String,
    /// Meaning of the finding, or advice.
    note: Option<String>,
}

/// Answer of a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FindingState {
    Yes,
    No,
    Unknown,
}

impl FindingState {
    fn from_bool(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    fn mark(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "-",
        }
    }
}

/// Runs the command. Exit code 4 where no host can be used.
pub fn command(args: &DoctorArgs) -> Result<ExitCode, Error> {
    let kvm = Kvm::probe();
    let portable = Portable::find(args.portable_host.as_deref());
    let chosen = choose(HostChoice::Auto, args.portable_host.as_deref(), Duration::ZERO);
    let printed = if args.json {
        writeln!(io::stdout().lock(), "{:#}", to_json(&kvm, &portable, &chosen))
    } else {
        print(&kvm, &portable, &chosen)
    };
    ignore_closed_pipe(printed.map_err(stdout_error))?;
    Ok(if chosen.is_ok() { ExitCode::Done } else { ExitCode::NoHypervisor })
}

fn print(kvm: &Kvm, portable: &Portable, chosen: &Result<Chosen, HostError>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let style = TextStyle::for_stream(io::IsTerminal::is_terminal(&out));
    for line in kvm_lines(kvm).into_iter().chain(portable_lines(portable)) {
        write_line(&mut out, style, &line)?;
    }
    let verdict = match chosen {
        Ok(chosen) => format!("`vprof run` uses the host `{}`: {}.", chosen.name(), chosen.why),
        // The reasons are above.
        Err(_) => "`vprof run` can't run guests here, neither by KVM nor in the portable host.".to_owned(),
    };
    writeln!(out, "\n{}", style.bold(&verdict))?;
    if matches!(chosen, Ok(c) if matches!(c.host, Host::Portable(_))) {
        writeln!(
            out,
            "Times measured in the portable host are those of an emulated machine; relative shares are still \
             meaningful."
        )?;
    }
    Ok(())
}

fn write_line(out: &mut impl Write, style: TextStyle, line: &HostFinding) -> io::Result<()> {
    let mark = format!("{:>4}", line.state.mark());
    let mark = if line.state == FindingState::No { style.bold(&mark) } else { mark };
    let text = format!("{:<28}{}", line.what, line.found);
    writeln!(out, "{mark}  {}", text.trim_end())?;
    match &line.note {
        Some(note) => writeln!(out, "      {note}"),
        None => Ok(()),
    }
}

fn kvm_lines(kvm: &Kvm) -> Vec<HostFinding> {
    let mut lines = Vec::new();
    let mut add = |what, state, found: String, note| lines.push(HostFinding { what, state, found, note });
    let (present, permitted) = presence(kvm);
    add("/dev/kvm present", FindingState::from_bool(present), String::new(), None);
    add(
        "/dev/kvm permitted",
        if present { FindingState::from_bool(permitted) } else { FindingState::Unknown },
        String::new(),
        kvm.state.as_ref().err().map(ToString::to_string),
    );
    let Ok(capabilities) = &kvm.state else { return lines };
    let explained = match kvm.kind {
        "vmx" => "vmx (Intel VT-x)",
        "svm" => "svm (AMD-V)",
        "pvm" => "pvm (no processor support; kernel code is emulated)",
        other => other,
    };
    add("kind", FindingState::Yes, explained.to_owned(), None);
    let (state, found, note) = match &kvm.native {
        Some(Ok(speeds)) if speeds.native() => (FindingState::Yes, speed(speeds), None),
        Some(Ok(speeds)) => (
            FindingState::No,
            speed(speeds),
            Some("kernel code is emulated here, far too slowly to boot a guest".to_owned()),
        ),
        Some(Err(reason)) => (FindingState::No, String::new(), Some(reason.to_string())),
        None => (FindingState::Unknown, String::new(), None),
    };
    add("64-bit kernel code native", state, found, note);
    add(
        "registers in run page",
        FindingState::from_bool(capabilities.registers_in_run_page()),
        format!("KVM_CAP_SYNC_REGS = {:#x}", capabilities.sync_regs),
        (!capabilities.registers_in_run_page())
            .then(|| "samples cost more: registers are read by system calls".to_owned()),
    );
    add(
        "statistics descriptor",
        FindingState::from_bool(capabilities.stats_fd),
        "KVM_CAP_BINARY_STATS_FD".to_owned(),
        None,
    );
    add("vCPUs", FindingState::Yes, format!("up to {} of one guest", capabilities.max_vcpus), None);
    lines
}

/// Formats the self-test's result: the speed of kernel code relative to user code.
fn speed(speeds: &RingSpeeds) -> String {
    let factor = speeds.ring3_per_s / speeds.ring0_per_s;
    // One power of ten: the exact factor differs from one measurement to the next.
    if factor > 1.5 {
        format!("about {:.0} times slower than user code", 10_f64.powf(factor.log10().round()).max(2.0))
    } else {
        "as fast as user code".to_owned()
    }
}

fn presence(kvm: &Kvm) -> (bool, bool) {
    match &kvm.state {
        Ok(_) => (true, true),
        Err(KvmError::Missing) => (false, false),
        Err(KvmError::Denied) => (true, false),
        Err(_) => (true, true),
    }
}

fn portable_lines(portable: &Portable) -> Vec<HostFinding> {
    let qemu = match &portable.qemu {
        Some(qemu) => HostFinding {
            what: "QEMU",
            state: FindingState::Yes,
            found: format!("{} {}", qemu.version, display::message::Shown(&qemu.path)),
            note: None,
        },
        None => HostFinding {
            what: "QEMU",
            state: FindingState::No,
            found: String::new(),
            note: Some("for the portable host: `sudo apt install qemu-system-x86`".to_owned()),
        },
    };
    let bundle = match &portable.bundle {
        Ok(bundle) => HostFinding {
            what: "portable host",
            state: FindingState::Yes,
            found: display::message::Shown(&bundle.directory).to_string(),
            note: None,
        },
        Err(not_found) => HostFinding {
            what: "portable host",
            state: FindingState::No,
            found: String::new(),
            note: Some(format!("not found in {}; build it with `{HOW_TO_BUILD}`", not_found.places())),
        },
    };
    vec![qemu, bundle]
}

fn to_json(kvm: &Kvm, portable: &Portable, chosen: &Result<Chosen, HostError>) -> Value {
    let (present, permitted) = presence(kvm);
    let capabilities = kvm.state.as_ref().ok();
    let speeds = kvm.native.as_ref().and_then(|s| s.as_ref().ok());
    json!({
        "kvm": {
            "present": present,
            "permitted": permitted,
            "kind": present.then_some(kvm.kind),
            "ring0_native": speeds.map(|s| s.native()),
            "ring0_per_s": speeds.map(|s| s.ring0_per_s),
            "ring3_per_s": speeds.map(|s| s.ring3_per_s),
            "sync_regs": capabilities.map(|c| c.sync_regs),
            "stats_fd": capabilities.map(|c| c.stats_fd),
            "max_vcpus": capabilities.map(|c| c.max_vcpus),
            "usable": kvm.usable().is_ok(),
            "reason": kvm.usable().unwrap_or_else(|doubt| doubt.to_string()),
        },
        "portable": {
            "qemu": portable.qemu.as_ref().map(|q| q.version.clone()),
            "qemu_path": portable.qemu.as_ref().map(|q| q.path.to_string_lossy().into_owned()),
            "bundle": portable.bundle.as_ref().ok().map(|b| b.directory.to_string_lossy().into_owned()),
            "looked_in": match &portable.bundle {
                Ok(_) => Vec::new(),
                Err(not_found) => not_found.looked.iter().map(|p| p.to_string_lossy().into_owned()).collect(),
            },
            "usable": portable.usable().is_ok(),
            "reason": portable.usable().err().map(|missing| missing.to_string()),
        },
        "host": chosen.as_ref().ok().map(host::choice::Chosen::name),
        "reason": match chosen { Ok(chosen) => chosen.why.clone(), Err(error) => error.to_string() },
    })
}
