//! A console, at which the test types and reads.

use std::io::Write;

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::config;
use crate::virtio::console::{Console, Input};

#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn console() -> (Rig, Screen, Arc<Input>) {
    let (screen, input) = (Screen::default(), Input::new().unwrap());
    let output = config::Console(Box::new(screen.clone()));
    let mut rig = Rig::new(Box::new(Console::new(output, Arc::clone(&input))));
    rig.start();
    (rig, screen, input)
}

impl Rig {
    fn print(&mut self, bytes: &[u8]) {
        self.on(1);
        self.memory.write_slice(bytes, GuestAddress(BUFFERS)).unwrap();
        self.descriptor(0, BUFFERS, u32::try_from(bytes.len()).unwrap(), 0, 0);
        self.submit(0);
        assert_eq!(self.answer(), 0);
    }

    fn typed(&mut self, length: u32) -> Vec<u8> {
        let length = self.on(0).answer().min(length);
        let mut bytes = vec![0; length as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(BUFFERS + 0x10_0000)).unwrap();
        bytes
    }

    fn read_keys(&mut self, length: u32) {
        self.on(0).descriptor(0, BUFFERS + 0x10_0000, length, WRITE, 0);
        self.submit(0);
    }
}

#[test]
fn output_is_shown_whole_and_keys_arrive() {
    let (mut rig, screen, input) = console();
    let text: Vec<u8> = (0..20_000u32).map(|index| index.to_le_bytes()[0]).collect();
    rig.print(&text);
    rig.print(b"");
    rig.print(b"$ ");
    assert_eq!(*screen.0.lock().unwrap(), [&text[..], b"$ "].concat());
    // Before the driver asks for keys, and after.
    assert_eq!(input.put(b"echo hi\n"), 8);
    rig.read_keys(5);
    assert_eq!(rig.typed(5), b"echo ");
    rig.read_keys(64);
    assert_eq!(rig.typed(64), b"hi\n");
    rig.read_keys(64);
    input.put(b"x");
    assert_eq!(rig.typed(64), b"x");
}

#[test]
fn keys_that_nobody_reads_do_not_pile_up() {
    let (_rig, _, input) = console();
    let taken: usize = (0..100).map(|_| input.put(&[b'x'; 1000])).sum();
    assert_eq!(taken, 64 << 10);
}

#[test]
fn buffers_that_cannot_be_break_the_console_until_reset() {
    // For keys, but to be read; and outside of memory.
    for (queue, flags) in [(0, 0), (0, WRITE), (1, 0)] {
        let (mut rig, screen, _) = console();
        rig.on(queue).descriptor(0, MEMORY - 1, 64, flags, 0);
        rig.submit(0);
        rig.expect_broken();
        rig.print(b"again");
        assert_eq!(*screen.0.lock().unwrap(), b"again");
    }
}
