//! The programs in the kernel: loading, and the three ways to run them.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::trace_point::TracePointLink;
use aya::programs::{Iter, Program, ProgramFd, RawTracePoint, TracePoint};
use aya::{Ebpf, EbpfLoader};

use super::area::{ArrayMapping, RecordView};
use super::course::{CourseView, ExitsView};
use super::finder::KernelMemory;
use super::host_kernel::FileIterator;
use super::host_stack::HostStacksView;
use super::notes::NotesView;
use super::offsets::Vendor;
use super::plans::{PlanTable, plans_for};
use super::refusal::{BpfRefusal, host_refusal};
use super::shared::{
    EXITS, NOTES, PAGE, RawCourse, RawExit, RawFile, RawHostStacks, RawNote, RawNotes, RawOptions, RawRecord,
    RawTarget, ThreadFinding,
};
use super::test_run;

/// The programs, made of attach/bpf/record.c by `cargo xtask bpf`.
static OBJECT: &Aligned<[u8; include_bytes!("../../bpf/record.o").len()]> =
    &Aligned(*include_bytes!("../../bpf/record.o"));
/// Result of a peek that has copied all. The kernel returns 0 for a program that it has not run.
const PEEKED: u32 = 1;
/// Open files that are listed, at most.
const MOST_FILES: usize = 1 << 16;

/// Bytes that are aligned as an ELF file has to be.
#[repr(align(8))]
struct Aligned<T>(T);

/// Directories in which the numbers of trace points are (Documentation/trace/ftrace.rst).
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Programs that count with every KVM, and the kernel's trace points at which they run.
const COUNTING: [(&str, &str); 2] = [("switched", "sched_switch"), ("returned", "kvm_userspace_exit")];
/// The same of a KVM that has trace points for entries and exits.
const COUNTING_EXITS: [(&str, &str); 2] = [("left", "kvm_exit"), ("entered", "kvm_entry")];
/// The same of one that has none: the next entry after a return is that of KVM_RUN.
const COUNTING_RUNS: [(&str, &str); 1] = [("loaded", "kvm_fpu")];

/// Programs in the kernel. They end with this process, or when this is dropped.
pub(crate) struct KernelPrograms {
    tick: ProgramFd,
    peek: ProgramFd,
    /// Programs at trace points, which run until these are dropped.
    attached: Vec<RawTracePointLink>,
    cached: Option<TracePointLink>,
    unloaded: Option<UnloadedPrograms>,
    targets: Mutex<Array<MapData, RawTarget>>,
    records: ArrayMapping<RawRecord>,
    peeked: Mutex<ArrayMapping<[u8; PAGE]>>,
    courses: ArrayMapping<RawCourse>,
    exits: ArrayMapping<RawExit>,
    notes: ArrayMapping<RawNotes>,
    note_rows: ArrayMapping<RawNote>,
    stacks: ArrayMapping<RawHostStacks>,
    taken: ArrayMapping<AtomicU64>,
    plans: Arc<PlanTable>,
    followed: Mutex<HashMap<MapData, u64, u32>>,
}

/// Programs that may be loaded yet, and what they use. The parsed object takes some 100 KB.
struct UnloadedPrograms {
    ebpf: Ebpf,
    _maps: [Map; 6],
}

impl fmt::Debug for KernelPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelPrograms").finish_non_exhaustive()
    }
}

/// Returns the program with this name, which is of type `P`.
fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, BpfRefusal>
where
    &'a mut P: TryFrom<&'a mut Program, Error = aya::programs::ProgramError>,
{
    let found = ebpf.program_mut(name);
    let found = found.ok_or_else(|| BpfRefusal::Program(format!("it has no {name}")))?;
    Ok(found.try_into()?)
}

impl KernelPrograms {
    /// Loads the programs. The kernel takes the memory for that many vCPUs.
    pub(crate) fn load(options: &RawOptions, vcpus: usize) -> Result<Self, BpfRefusal> {
        Self::load_object(&OBJECT.0, options, vcpus)
    }

    fn load_object(object: &[u8], options: &RawOptions, vcpus: usize) -> Result<Self, BpfRefusal> {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (elements, plans) = (number(vcpus), plans_for(vcpus));
        let options = &RawOptions { plans: number(plans), ..*options };
        // The kernel has no empty arrays.
        let count_if = |wanted: u32, count: usize| if wanted == 0 { 1 } else { count };
        let exit_rows = count_if(options.exits, vcpus.saturating_mul(EXITS));
        let note_rows = count_if(options.exits, vcpus.saturating_mul(NOTES));
        let (with_exits, with_stacks) =
            (count_if(options.exits, vcpus), count_if(options.host_stacks, vcpus));
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .override_global("options", options, true)
            .map_max_entries("targets", elements)
            .map_max_entries("records", elements)
            .map_max_entries("courses", elements)
            .map_max_entries("exits", number(exit_rows))
            .map_max_entries("notes", number(with_exits))
            .map_max_entries("note_rows", number(note_rows))
            .map_max_entries("taken", number(with_exits))
            .map_max_entries("stacks", number(with_stacks))
            .map_max_entries("followed", elements)
            .map_max_entries("plans", number(plans))
            .load(object)?;
        let mut loaded = |name: &str| {
            let program: &mut RawTracePoint = program(&mut ebpf, name)?;
            program.load()?;
            program.fd()?.try_clone().map_err(host_refusal("keep a program"))
        };
        let (tick, peek) = (loaded("tick")?, loaded("peek")?);
        let mut map =
            |name: &str| ebpf.take_map(name).ok_or_else(|| BpfRefusal::Program(format!("it has no {name}")));
        let targets = Mutex::new(Array::try_from(map("targets")?)?);
        let records = ArrayMapping::new(&map("records")?, vcpus)?;
        let peeked = Mutex::new(ArrayMapping::new(&map("peeked")?, 1)?);
        let plans = Arc::new(PlanTable::new(&map("plans")?, plans)?);
        let maps =
            [map("courses")?, map("exits")?, map("notes")?, map("note_rows")?, map("taken")?, map("stacks")?];
        let [courses, exits, notes, rows_of_notes, taken, stacks] = &maps;
        let courses = ArrayMapping::new(courses, vcpus)?;
        let exits = ArrayMapping::new(exits, exit_rows)?;
        let notes = ArrayMapping::new(notes, with_exits)?;
        let note_rows = ArrayMapping::new(rows_of_notes, note_rows)?;
        let taken = ArrayMapping::writable(taken, with_exits)?;
        let stacks = ArrayMapping::new(stacks, with_stacks)?;
        let followed = Mutex::new(HashMap::try_from(map("followed")?)?);
        Ok(Self {
            tick,
            peek,
            attached: Vec::new(),
            cached: None,
            unloaded: Some(UnloadedPrograms { ebpf, _maps: maps }),
            targets,
            records,
            peeked,
            courses,
            exits,
            notes,
            note_rows,
            stacks,
            taken,
            plans,
            followed,
        })
    }

    /// Returns what is left to load.
    fn unloaded(&mut self) -> Result<&mut Ebpf, BpfRefusal> {
        let unloaded = self.unloaded.as_mut().map(|unloaded| &mut unloaded.ebpf);
        unloaded.ok_or_else(|| BpfRefusal::Program("all that is used is loaded already".to_owned()))
    }

    /// Lets KVM read each vCPU's instruction pointer from the processor at each exit.
    pub(crate) fn cache_rip(&mut self) -> Result<(), BpfRefusal> {
        if !TRACEFS.iter().any(|directory| Path::new(directory).join("events").exists()) {
            return Err(BpfRefusal::NoTracefs);
        }
        let program: &mut TracePoint = program(self.unloaded()?, "cached")?;
        program.load()?;
        let link = program.attach("kvm", "kvm_exit")?;
        let link = program.take_link(link)?;
        self.cached = Some(link);
        Ok(())
    }

    /// Starts to count the waits of the followed threads and the exits to the VMM, and those that KVM serves
    /// itself where it shows them. No other program can be loaded from then on.
    pub(crate) fn count(&mut self, vendor: Vendor) -> Result<(), BpfRefusal> {
        let own = if vendor.shows_exits() { &COUNTING_EXITS[..] } else { &COUNTING_RUNS[..] };
        for &(name, point) in COUNTING.iter().chain(own) {
            let program: &mut RawTracePoint = program(self.unloaded()?, name)?;
            program.load()?;
            let link = program.attach(point)?;
            let link = program.take_link(link)?;
            self.attached.push(link);
        }
        self.unloaded = None;
        Ok(())
    }

    /// Lets what is counted of a thread, by the address of its task, be that of the vCPU with this index;
    /// with [`ABSENT`](super::shared::ABSENT) it is nobody's.
    pub(crate) fn follow(&self, task: u64, index: u32) -> Result<(), BpfRefusal> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(followed.insert(task, index, 0)?)
    }

    /// Returns the course of a vCPU.
    pub(crate) fn course(&self, index: usize) -> Option<CourseView<'_>> {
        CourseView::new(&self.courses, index)
    }

    /// Returns the exits of a vCPU.
    pub(crate) fn exits(&self, index: usize) -> Option<ExitsView<'_>> {
        ExitsView::new(&self.exits, index)
    }

    /// Returns the noted exits of a vCPU.
    pub(crate) fn notes(&self, index: usize) -> Option<NotesView<'_>> {
        NotesView::new(&self.notes, &self.note_rows, &self.taken, index)
    }

    /// Returns the stacks of a vCPU's thread in the host.
    pub(crate) fn host_stacks(&self, index: usize) -> Option<HostStacksView<'_>> {
        HostStacksView::new(&self.stacks, index)
    }

    /// Sets the vCPU with this index. Must not be called while it is being sampled.
    pub(crate) fn set_target(&self, index: usize, target: &RawTarget) -> Result<(), BpfRefusal> {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(targets.set(index, target, 0)?)
    }

    /// Takes a sample of a vCPU on the given CPU, or here. The record is valid until the next sample of that
    /// vCPU.
    pub(crate) fn sample(&self, index: usize, cpu: Option<u32>) -> io::Result<Option<ThreadFinding>> {
        let number = test_run::run(&self.tick, [u64::try_from(index).unwrap_or(u64::MAX), 0], cpu)?;
        Ok(ThreadFinding::from_number(number))
    }

    /// Returns the plans of copies.
    pub(crate) fn plans(&self) -> &Arc<PlanTable> {
        &self.plans
    }

    /// Returns the record of a vCPU.
    pub(crate) fn record(&self, index: usize) -> Option<RecordView<'_>> {
        RecordView::new(&self.records, index)
    }

    /// Lists the open files of the process that the options name.
    pub(crate) fn files(&mut self, iterator: FileIterator) -> Result<Vec<RawFile>, BpfRefusal> {
        let program: &mut Iter = program(self.unloaded()?, "files")?;
        program.load(FileIterator::NAME, &iterator.types()?)?;
        let link = program.attach()?;
        let link = program.take_link(link)?;
        let mut file = link.into_file().map_err(|error| BpfRefusal::Program(error.to_string()))?;
        // Large reads: between two of them the kernel leaves the process and has to find it again.
        let mut bytes = vec![0; MOST_FILES * size_of::<RawFile>()];
        let mut end = 0;
        loop {
            let read = file.read(bytes.get_mut(end..).unwrap_or_default());
            match read.map_err(host_refusal("list open files"))? {
                0 => break,
                count => end += count,
            }
        }
        bytes.truncate(end);
        let word = |row: &[u8], at: usize| {
            row.get(at..at + 8).and_then(|part| part.try_into().ok()).map(u64::from_le_bytes)
        };
        let row = |row: &[u8]| Some(RawFile { fd: word(row, 0)?, file: word(row, 8)?, task: word(row, 16)? });
        Ok(bytes.chunks_exact(size_of::<RawFile>()).filter_map(row).collect())
    }
}

impl KernelMemory for KernelPrograms {
    fn peek(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let mut at = at;
        for part in into.chunks_mut(PAGE) {
            // From here on the memory is this call's.
            let peeked = self.peeked.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes = u64::try_from(part.len()).ok()?;
            if test_run::run(&self.peek, [at, bytes], None).ok()? != PEEKED {
                return None;
            }
            let from = peeked.element(0)?.cast::<u8>();
            // SAFETY: a part has at most a page, which the mapping has; the kernel writes it at a peek only.
            unsafe {
                std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len());
            }
            at = at.checked_add(bytes)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::{VENDOR_PVM, VENDOR_SVM, VENDOR_VMX};
    use super::*;

    /// Instructions of the kernel's machine (Documentation/bpf/standardization/instruction-set.rst): `exit`,
    /// and `r0 = *(u64 *)(r9 + 0)`, whose r9 has no value.
    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
    const BAD_READ: [u8; 8] = [0x79, 0x90, 0, 0, 0, 0, 0, 0];

    #[test]
    fn a_program_that_the_verifier_refuses_is_one_sentence_with_its_verdict() {
        let mut object = Box::new(Aligned(OBJECT.0));
        let exit = object.0.chunks_exact_mut(8).find(|code| **code == EXIT).unwrap();
        exit.copy_from_slice(&BAD_READ);
        let refusal = KernelPrograms::load_object(&object.0, &RawOptions::default(), 1).unwrap_err();
        if matches!(refusal, BpfRefusal::Permission) {
            return testkit::missing("root, to load programs into the kernel");
        }
        let BpfRefusal::Verifier(verdict) = &refusal else { panic!("{refusal}") };
        assert!(!verdict.is_empty() && !verdict.starts_with("processed"), "{verdict}");
        let sentence = refusal.to_string();
        assert!(sentence.starts_with("the host's kernel refuses vprof's program: "), "{sentence}");
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
        KernelPrograms::load(&RawOptions::default(), 1).unwrap();
    }

    #[test]
    fn the_verifier_takes_all_programs_for_each_vendor() {
        let vendors = [
            (Vendor::Svm, VENDOR_SVM, 0),
            (Vendor::Pvm, VENDOR_PVM, 0),
            (Vendor::Pvm, VENDOR_PVM, 1),
            (Vendor::Vmx, VENDOR_VMX, 1),
        ];
        for (vendor, number, partial) in vendors {
            let options =
                RawOptions { vendor: number, host_stacks: 1, exits: 1, partial, ..RawOptions::default() };
            let mut programs = match KernelPrograms::load(&options, 1) {
                Err(BpfRefusal::Permission) => {
                    return testkit::missing("root, to load programs into the kernel");
                }
                programs => programs.unwrap(),
            };
            // Also the programs at trace points at which this host's KVM never comes.
            let own = COUNTING.iter().chain(&COUNTING_EXITS).chain(&COUNTING_RUNS);
            for (name, _) in own {
                let program: &mut RawTracePoint = program(programs.unloaded().unwrap(), name).unwrap();
                program.load().unwrap_or_else(|error| panic!("{name}, {vendor:?}: {error}"));
            }
            let program: &mut TracePoint = program(programs.unloaded().unwrap(), "cached").unwrap();
            program.load().unwrap_or_else(|error| panic!("cached, {vendor:?}: {error}"));
        }
    }
}
