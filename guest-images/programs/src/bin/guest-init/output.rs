//! Ports of the machine for the command's output, apart from the console.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guest_programs::OUTPUT_PORTS;

/// Devices of the driver, each a link of this directory.
const DEVICES: &str = "/sys/bus/virtio/drivers/virtio_console";
/// Ports, each a directory of this one with a file `name`.
const PORTS: &str = "/sys/class/virtio-ports";
/// Feature bit `VIRTIO_CONSOLE_F_MULTIPORT` (virtio specification, 5.3.3).
const MULTIPORT: usize = 1;
/// Longest time until the driver knows the ports of its device.
const LIMIT: Duration = Duration::from_secs(10);
/// Interval of looking for them.
const PAUSE: Duration = Duration::from_millis(10);

/// Open ports for the command's output.
#[derive(Debug)]
pub struct OutputPorts {
    /// Its standard output.
    pub output: File,
    /// Its standard error.
    pub errors: File,
}

impl OutputPorts {
    /// Opens the ports; `None` in a machine or a kernel without them.
    pub fn open() -> Option<Self> {
        let deadline = Instant::now() + LIMIT;
        while has_ports() && Instant::now() < deadline {
            let [output, errors] = OUTPUT_PORTS.map(find);
            if let (Some(output), Some(errors)) = (output, errors) {
                let open = |path: PathBuf| OpenOptions::new().write(true).open(path).ok();
                return Some(Self { output: open(output)?, errors: open(errors)? });
            }
            // The driver has its device before it has the ports.
            sleep(PAUSE);
        }
        None
    }
}

/// Returns true if the driver has a device with ports.
fn has_ports() -> bool {
    let devices = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    // One digit for each feature bit; other entries of the directory have no such file.
    let mut features = devices.filter_map(|device| fs::read(device.path().join("features")).ok());
    features.any(|bits| bits.get(MULTIPORT) == Some(&b'1'))
}

/// Returns the device file of the port with this name.
fn find(name: &str) -> Option<PathBuf> {
    let mut ports = fs::read_dir(PORTS).ok()?.flatten();
    let named = |port: &Path| fs::read_to_string(port.join("name")).is_ok_and(|text| text.trim_end() == name);
    ports.find(|port| named(&port.path())).map(|port| Path::new("/dev").join(port.file_name()))
}
