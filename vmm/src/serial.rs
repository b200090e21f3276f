//! Serial ports: 16550As at [`COM1`] and, if it is wanted, at [`COM2`], whose output goes to the configured
//! consoles.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

use crate::config::Console;
use crate::injected::InjectionTally;

/// First I/O port of COM1 on every PC.
pub(crate) const COM1: u16 = 0x3f8;
/// First I/O port of COM2 on every PC.
pub(crate) const COM2: u16 = 0x2f8;
/// Number of a serial port's I/O ports.
pub(crate) const COM_PORTS: u8 = 8;
/// COM1's interrupt.
pub(crate) const COM1_IRQ: u32 = 4;
/// COM2's interrupt.
pub(crate) const COM2_IRQ: u32 = 3;

/// Raises a port's interrupt: KVM watches the descriptor (irqfd).
#[derive(Debug)]
struct IrqLine {
    event: EventFd,
    tally: Arc<InjectionTally>,
}

impl Trigger for IrqLine {
    type E = std::io::Error;

    fn trigger(&self) -> std::io::Result<()> {
        self.tally.line();
        self.event.write(1)
    }
}

/// Serial port, shared by all vCPUs and the source of console input.
pub(crate) struct SerialPort {
    uart: Mutex<Serial<IrqLine, NoEvents, Box<dyn Write + Send>>>,
}

impl std::fmt::Debug for SerialPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SerialPort")
    }
}

impl SerialPort {
    /// Makes a port that raises its interrupt through `interrupt`, and counts it.
    pub(crate) fn new(interrupt: EventFd, tally: Arc<InjectionTally>, console: Console) -> Self {
        Self { uart: Mutex::new(Serial::new(IrqLine { event: interrupt, tally }, console.0)) }
    }

    /// Locks the registers, which stay usable even if a console sink panicked while they were locked.
    fn lock(&self) -> MutexGuard<'_, Serial<IrqLine, NoEvents, Box<dyn Write + Send>>> {
        self.uart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the guest's read of a register; `offset` counts from its first I/O port.
    pub(crate) fn read(&self, offset: u8, data: &mut [u8]) {
        let mut uart = self.lock();
        // `rep insb` asks for several bytes of the same register at once.
        data.fill_with(|| uart.read(offset));
    }

    /// Serves the guest's write to a register. A sink that fails loses the byte, as a terminal that is
    /// switched off would; the guest must not stop for it.
    pub(crate) fn write(&self, offset: u8, data: &[u8]) {
        let mut uart = self.lock();
        for byte in data {
            let _lost = uart.write(offset, *byte);
        }
    }

    /// Sends bytes to the guest; returns how many the FIFO accepted.
    pub(crate) fn input(&self, bytes: &[u8]) -> usize {
        self.lock().enqueue_raw_bytes(bytes).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct OutputSink(Arc<Mutex<Vec<u8>>>);

    impl Write for OutputSink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn port(sink: OutputSink) -> SerialPort {
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        SerialPort::new(interrupt, InjectionTally::new("COM1"), Console(Box::new(sink)))
    }

    #[test]
    fn output_reaches_the_console_byte_for_byte() {
        let sink = OutputSink::default();
        let port = port(sink.clone());
        port.write(0, b"h");
        port.write(0, b"ello");
        assert_eq!(*sink.0.lock().unwrap(), b"hello");
    }

    #[test]
    fn input_is_taken_until_the_fifo_is_full_and_read_back_in_order() {
        let port = port(OutputSink::default());
        let typed: Vec<u8> = (0..100).collect();
        let taken = port.input(&typed);
        assert!((16..100).contains(&taken), "{taken}");
        assert_eq!(port.input(b"x"), 0);
        let mut read = vec![0; taken];
        port.read(0, &mut read);
        assert_eq!(read, typed[..taken]);
        assert_eq!(port.input(b"x"), 1);
    }

    #[test]
    fn a_failing_console_does_not_disturb_the_guest() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let port = SerialPort::new(interrupt, InjectionTally::new("COM1"), Console(Box::new(Broken)));
        port.write(0, b"lost");
        let mut status = [0];
        port.read(5, &mut status);
        assert_eq!(status[0] & 0x20, 0x20, "transmitter must be ready again");
    }
}
