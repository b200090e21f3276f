//! pprof: the protocol buffer that `go tool pprof` and many services read, compressed by gzip.
//!
//! Samples with the same stack and the same labels are one. A location is an address in its file: user code
//! has its ELF file's own addresses, so each file has a mapping that begins at 0.

mod proto;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::assert_sound;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use profile::report::Recording;
use prost::Message as _;

use display::clean::escaped;

use crate::sums::{SampleKey, keyed};
use crate::{ExportError, Format, Request};
use proto::{Label, Profile, Sample, ValueType};
use tables::{Code, Strings};

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    _request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let profile = profile(recording)?;
    let mut zipped = GzEncoder::new(out, Compression::default());
    zipped.write_all(&profile.encode_to_vec())?;
    zipped.finish()?;
    Ok(())
}

fn profile(recording: &Recording) -> Result<Profile, ExportError> {
    let sums = keyed(recording);
    let mut strings = Strings::default();
    let mut code = Code::new(recording);
    let mut samples = Vec::with_capacity(sums.len());
    for (key, sum) in sums {
        samples.push(Sample {
            location_id: key.frames(recording).map(|frame| code.location(frame, &mut strings)).collect(),
            value: vec![signed(sum.samples), whole(sum.ns)],
            label: labels(recording, key, &mut strings),
        });
    }
    let about = &recording.about;
    let comment = [
        format!("vprof {}, host {}", about.version, about.host),
        format!("Linux {}", about.kernel.as_deref().unwrap_or("of an unknown release")),
    ];
    let comment = comment.map(|text| strings.place(&escaped(&text))).to_vec();
    let mut of = |kind, unit| ValueType { r#type: strings.place(kind), unit: strings.place(unit) };
    let sample_type = vec![of("samples", "count"), of("time", "nanoseconds")];
    let period_type = Some(of("time", "nanoseconds"));
    let default_sample_type = strings.place("time");
    let (mapping, location, function) = code.finish(&mut strings);
    let profile = Profile {
        sample_type,
        sample: samples,
        mapping,
        location,
        function,
        time_nanos: signed(about.started_unix_ns),
        duration_nanos: signed(about.duration_ns),
        period_type,
        period: if about.rate_hz > 0.0 { whole(1e9 / about.rate_hz) } else { 0 },
        comment,
        default_sample_type,
        string_table: strings.list,
    };
    // The largest message that readers accept (protobuf.dev, "Total Size": 2 GiB).
    let too_much = profile.encoded_len() > i32::MAX as usize;
    if too_much {
        let reason = "it would be longer than 2 GiB; choose a part of it".to_owned();
        return Err(ExportError::TooMuch { format: Format::Pprof, reason });
    }
    Ok(profile)
}

fn labels(recording: &Recording, key: SampleKey, strings: &mut Strings) -> Vec<Label> {
    let mut labels = Vec::new();
    let mut text = |key: &str, value: &str, strings: &mut Strings| {
        let (key, str) = (strings.place(key), strings.place(&escaped(value)));
        labels.push(Label { key, str, num: 0 });
    };
    text("mode", key.mode, strings);
    let vcpu = recording.vcpu(key.vcpu);
    let mut numbers = vec![("vcpu", i64::from(vcpu.map_or(key.vcpu, |vcpu| vcpu.number)))];
    if let Some(vm) = vcpu.and_then(|vcpu| vcpu.vm.as_deref()) {
        text("vm", vm, strings);
        text("host", vcpu.and_then(|vcpu| vcpu.host.as_deref()).unwrap_or("[unknown]"), strings);
    }
    if let Some(owner) = recording.owners.get(key.owner as usize) {
        match recording.process_of(owner) {
            Some(process) => {
                text("process", &process.comm, strings);
                text("instance", &process.instance(), strings);
                text("thread", &owner.name, strings);
                numbers.push(("pid", process.pid.into()));
            }
            None => text("process", &owner.name, strings),
        }
        numbers.extend(owner.tid.map(|tid| ("tid", tid.into())));
    }
    if let Some(number) = key.syscall {
        let name = recording.syscalls.get(&number);
        text("syscall", name.unwrap_or(&number.to_string()), strings);
    }
    if let Some((_, name)) = key.interrupt.and_then(|place| recording.interrupts.get(place as usize)) {
        text("interrupt", name, strings);
    }
    for (key, num) in numbers {
        labels.push(Label { key: strings.place(key), str: 0, num });
    }
    labels
}

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the nearest whole number.
#[expect(clippy::cast_possible_truncation, reason = "rounded; the cast saturates")]
pub(crate) fn whole(number: f64) -> i64 {
    number.round() as i64
}
