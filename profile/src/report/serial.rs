//! Time that the guest's kernel takes to write to a serial port, as for its console.

use super::Estimate;
use super::code::matches;
use super::stacks::has;
use super::sums::Leaf;
use super::view::View;
use crate::rows::FrameKind;

/// Functions of the driver of a PC's serial ports, one of which is on the stack of all of its work
/// (drivers/tty/serial/8250/8250_port.c and 8250_core.c, Linux 5.10 to 6.12).
const DRIVER: [&str; 6] = [
    "io_serial_out",
    "io_serial_in",
    "serial8250_tx_chars",
    "serial8250_console_write",
    "serial8250_interrupt",
    "serial8250_start_tx",
];

/// True for a kernel function of this name that works for a serial port.
pub(crate) fn is_serial_driver(symbol: &str) -> bool {
    DRIVER.iter().any(|name| matches(symbol, name))
}

/// Estimates the time with the driver of a serial port on the stack.
pub(super) fn serial_time(view: &View<'_>) -> Estimate {
    let driver: Vec<bool> = view
        .code
        .functions
        .iter()
        .map(|f| f.kind == FrameKind::Kernel && is_serial_driver(&f.symbol))
        .collect();
    if !driver.contains(&true) {
        return Estimate::default();
    }
    let stacks = view.stacks.with(view.code, &driver);
    let on = |stack: u32| stacks.get(stack as usize).copied().unwrap_or(false);
    let is_driver = |leaf: &Leaf| on(leaf.stack) || has(view.code, leaf.frame, &driver);
    let (found, _) = view.by_stack(|leaf| is_driver(leaf).then_some(()));
    found.first().map(|(_, estimate)| *estimate).unwrap_or_default()
}
