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
    /// Bytes that the empty input FIFO takes.
    fifo_size: usize,
}

impl std::fmt::Debug for SerialPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SerialPort")
    }
}

impl SerialPort {
    /// Makes a port that raises its interrupt through `interrupt`, and counts it.
    pub(crate) fn new(interrupt: EventFd, tally: Arc<InjectionTally>, console: Console) -> Self {
        let uart = Serial::new(IrqLine { event: interrupt, tally }, console.0);
        Self { fifo_size: uart.fifo_capacity(), uart: Mutex::new(uart) }
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

    /// Sends bytes to the guest; returns how many the FIFO accepted: 0 before it is empty.
    ///
    /// The port takes its interrupt back at each byte that is read, and Linux stops reading after 256 bytes
    /// (`serial8250_rx_chars`, Linux 6.1). Of a FIFO that is filled while the guest reads, the last bytes
    /// would be left without an interrupt.
    pub(crate) fn input(&self, bytes: &[u8]) -> usize {
        let mut uart = self.lock();
        if uart.fifo_capacity() < self.fifo_size {
            return 0;
        }
        uart.enqueue_raw_bytes(bytes).unwrap_or(0)
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

    /// Reads like Linux (`serial8250_interrupt`, Linux 6.1): while the port has received bytes, until the
    /// FIFO is empty, 256 bytes at most. The sender adds bytes after each.
    #[test]
    fn a_sender_that_is_faster_than_the_guest_is_not_stuck() {
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let console = Console(Box::new(OutputSink::default()));
        let port = SerialPort::new(interrupt.try_clone().unwrap(), InjectionTally::new("COM2"), console);
        let register = |offset| {
            let mut value = [0];
            port.read(offset, &mut value);
            value[0]
        };
        // Interrupts for received bytes.
        port.write(1, &[1]);
        let sent: Vec<u8> = (0..4 * 256 + 30).map(|n: u32| n.to_le_bytes()[0]).collect();
        let (mut rest, mut read) = (&sent[..], Vec::new());
        rest = &rest[port.input(rest)..];
        while interrupt.read().is_ok() {
            while register(2) & 1 == 0 {
                for _ in 0..256 {
                    if register(5) & 1 == 0 {
                        break;
                    }
                    read.push(register(0));
                    rest = &rest[port.input(rest)..];
                }
            }
            rest = &rest[port.input(rest)..];
        }
        assert_eq!(read, sent);
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
