//! Handling of an exit from KVM_RUN. KVM's result is an argument, so tests can use exits that no guest would
//! cause.

use kvm_bindings::{KVM_SYSTEM_EVENT_CRASH, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN};
use kvm_ioctls::VcpuExit;
use vm_memory::GuestAddress;
use vmm_sys_util::errno;

use crate::bus::Bus;
use crate::end::{MachineEnd, TRIPLE_FAULT};
use crate::observer::Exit;

/// The result of one KVM_RUN.
pub(super) type RunResult<'a> = Result<VcpuExit<'a>, errno::Error>;

/// Next step after an exit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExitAction {
    /// Run on.
    Resume,
    /// Check for a tick or a stop request: no I/O of the guest is pending.
    Kicked,
    /// The guest ended the machine.
    End(MachineEnd),
    /// The guest or KVM failed; the sentence goes before the registers.
    Fail(String),
}

/// Converts an exit to the observer's type.
pub(super) fn classify(result: &RunResult<'_>) -> Exit {
    // Reasons of linux/kvm.h without a variant in `Exit`.
    const KVM_EXIT_FAIL_ENTRY: u32 = 9;
    const KVM_EXIT_INTERNAL_ERROR: u32 = 17;
    const KVM_EXIT_SYSTEM_EVENT: u32 = 24;
    match result {
        Err(_) | Ok(VcpuExit::Intr) => Exit::Interrupted,
        Ok(VcpuExit::IoIn(port, _)) => Exit::Io { port: *port, write: false },
        Ok(VcpuExit::IoOut(port, _)) => Exit::Io { port: *port, write: true },
        Ok(VcpuExit::MmioRead(address, _)) => Exit::Mmio { address: GuestAddress(*address), write: false },
        Ok(VcpuExit::MmioWrite(address, _)) => Exit::Mmio { address: GuestAddress(*address), write: true },
        Ok(VcpuExit::Hlt) => Exit::Halt,
        Ok(VcpuExit::Shutdown) => Exit::Shutdown,
        Ok(VcpuExit::FailEntry(..)) => Exit::Other(KVM_EXIT_FAIL_ENTRY),
        Ok(VcpuExit::InternalError) => Exit::Other(KVM_EXIT_INTERNAL_ERROR),
        Ok(VcpuExit::SystemEvent(..)) => Exit::Other(KVM_EXIT_SYSTEM_EVENT),
        Ok(VcpuExit::Unsupported(reason)) => Exit::Other(*reason),
        Ok(_) => Exit::Other(0),
    }
}

/// Serves an exit.
pub(super) fn handle(bus: &Bus, result: RunResult<'_>) -> ExitAction {
    let exit = match result {
        Ok(exit) => exit,
        // EINTR: a signal. EAGAIN: an application processor was woken by its INIT or SIPI.
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => return ExitAction::Kicked,
        Err(error) => return ExitAction::Fail(format!("KVM_RUN failed: {error}")),
    };
    match exit {
        VcpuExit::IoIn(port, data) => {
            bus.read_port(port, data);
            ExitAction::Resume
        }
        VcpuExit::IoOut(port, data) => match bus.write_port(port, data) {
            Some(end) => ExitAction::End(end),
            None => ExitAction::Resume,
        },
        VcpuExit::MmioRead(address, data) => {
            bus.read_memory(address, data);
            ExitAction::Resume
        }
        VcpuExit::MmioWrite(address, data) => {
            bus.write_memory(address, data);
            ExitAction::Resume
        }
        VcpuExit::Intr => ExitAction::Kicked,
        VcpuExit::IrqWindowOpen | VcpuExit::SetTpr | VcpuExit::IoapicEoi(_) => ExitAction::Resume,
        VcpuExit::Shutdown => {
            ExitAction::Fail(format!("{TRIPLE_FAULT}: an exception that it could not handle"))
        }
        VcpuExit::FailEntry(reason, cpu) => ExitAction::Fail(format!(
            "the processor refused to enter the guest on host CPU {cpu}, hardware reason {reason:#x}"
        )),
        VcpuExit::InternalError => ExitAction::Fail("KVM reports an internal error".to_owned()),
        VcpuExit::SystemEvent(kind, _) => system_event(kind),
        VcpuExit::MemoryFault { gpa, .. } => {
            ExitAction::Fail(format!("KVM could not reach guest memory at {gpa:#x}"))
        }
        VcpuExit::Hlt => ExitAction::Fail("KVM returned a halt to user space despite its APIC".to_owned()),
        VcpuExit::Unknown => ExitAction::Fail("KVM reported no reason for the exit".to_owned()),
        other => ExitAction::Fail(format!("KVM stopped the guest for an unexpected reason: {other:?}")),
    }
}

fn system_event(kind: u32) -> ExitAction {
    match kind {
        KVM_SYSTEM_EVENT_SHUTDOWN => ExitAction::End(MachineEnd::PowerOff),
        KVM_SYSTEM_EVENT_RESET => ExitAction::End(MachineEnd::Reset),
        KVM_SYSTEM_EVENT_CRASH => ExitAction::Fail("the guest reported that it crashed".to_owned()),
        other => ExitAction::Fail(format!("KVM reported a system event of unknown type {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::tests::bus;
    use crate::machine::EXIT_PORT;

    fn error<'a>(number: i32) -> RunResult<'a> {
        Err(errno::Error::new(number))
    }

    #[test]
    fn signals_and_woken_processors_are_kicks() {
        for number in [libc::EINTR, libc::EAGAIN] {
            assert_eq!(classify(&error(number)), Exit::Interrupted);
            assert_eq!(handle(&bus(), error(number)), ExitAction::Kicked);
        }
    }

    #[test]
    fn failures_say_what_failed() {
        let message = |result: RunResult<'_>| match handle(&bus(), result) {
            ExitAction::Fail(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert!(message(error(libc::EFAULT)).contains("KVM_RUN failed"));
        assert!(message(Ok(VcpuExit::Shutdown)).contains("triple fault"));
        assert!(message(Ok(VcpuExit::InternalError)).contains("internal error"));
        assert!(message(Ok(VcpuExit::FailEntry(0x8000_0021, 3))).contains("0x80000021"));
        assert!(message(Ok(VcpuExit::Unsupported(77))).contains("77"));
        assert!(message(Ok(VcpuExit::Unknown)).contains("reported no reason"));
        assert!(message(Ok(VcpuExit::MemoryFault { flags: 0, gpa: 0x1234, size: 1 })).contains("0x1234"));
    }

    #[test]
    fn io_reaches_the_bus_and_may_end_the_machine() {
        let bus = bus();
        let mut data = [0; 4];
        let read: RunResult<'_> = Ok(VcpuExit::IoIn(0x80, &mut data));
        assert_eq!(classify(&read), Exit::Io { port: 0x80, write: false });
        assert_eq!(handle(&bus, read), ExitAction::Resume);
        assert_eq!(data, [0xff; 4]);
        let write: RunResult<'_> = Ok(VcpuExit::IoOut(EXIT_PORT, &[5, 0, 0, 0]));
        assert_eq!(handle(&bus, write), ExitAction::End(MachineEnd::Exited(5)));
        let mut data = [0; 8];
        let read: RunResult<'_> = Ok(VcpuExit::MmioRead(0xd000_0000, &mut data));
        assert_eq!(classify(&read), Exit::Mmio { address: GuestAddress(0xd000_0000), write: false });
        assert_eq!(handle(&bus, read), ExitAction::Resume);
        assert_eq!(data, [0xff; 8]);
    }

    #[test]
    fn system_events_end_the_machine() {
        let event = |kind| handle(&bus(), Ok(VcpuExit::SystemEvent(kind, &[])));
        assert_eq!(event(KVM_SYSTEM_EVENT_SHUTDOWN), ExitAction::End(MachineEnd::PowerOff));
        assert_eq!(event(KVM_SYSTEM_EVENT_RESET), ExitAction::End(MachineEnd::Reset));
        assert!(matches!(event(KVM_SYSTEM_EVENT_CRASH), ExitAction::Fail(_)));
        assert!(matches!(event(999), ExitAction::Fail(_)));
    }
}
