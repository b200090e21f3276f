//! Calls of watched functions as instants.

use std::collections::HashSet;

use display::clean::escaped;
use profile::Profile;
use profile::report::for_each_call;

use super::proto::{Annotation, EventType, TrackEvent};
use super::{TraceWriter, named, uuid};
use crate::ExportError;

impl TraceWriter<'_> {
    /// Writes the calls of watched functions, if there are any, on a track of their vCPU.
    pub(super) fn calls(&mut self, profile: &Profile) -> Result<(), ExportError> {
        let mut known: HashSet<u16> = HashSet::new();
        for_each_call(profile, |call| {
            let vcpu = u64::from(call.vcpu);
            let track = uuid::CALLS + vcpu;
            if known.insert(call.vcpu) {
                self.track(track, format!("vCPU {vcpu} calls"), Some(uuid::VCPUS + vcpu))?;
            }
            let text =
                |name: &str, value: &str| Annotation::text(escaped(name).into(), escaped(value).into());
            let mut debug_annotations = vec![text("process", &call.comm)];
            let tid = call.tid.and_then(|tid| u64::try_from(tid).ok());
            debug_annotations.extend(tid.map(|tid| Annotation::number("tid", tid)));
            debug_annotations.extend(call.arguments.iter().map(|(name, value)| text(name, value)));
            let event = named("call", escaped(&call.symbol).into_owned());
            let event = TrackEvent { track_uuid: track, debug_annotations, ..event };
            Ok(self.event(call.time_ns, EventType::Instant, event)?)
        })
    }
}
