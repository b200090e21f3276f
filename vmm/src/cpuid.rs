//! Answers of the guest's CPUID instruction.
//!
//! `KVM_GET_SUPPORTED_CPUID` describes the host. Facts of this machine are replaced: the presence of a
//! hypervisor, the TSC deadline mode of the APIC timer, and the topology. That is one package of
//! single-threaded cores, core id = APIC id = vCPU id. Features that a machine has on request only
//! ([`CpuFeatures`]) are hidden; KVM then refuses the model-specific registers that belong to them.

use std::arch::x86_64::__cpuid;

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::Kvm;

use crate::config::CpuFeatures;
use crate::error::StartError;

/// Leaf 1 ECX: the local APIC timer supports TSC deadline mode (Intel SDM vol. 2, CPUID).
const TSC_DEADLINE: u32 = 1 << 24;
/// Leaf 1 ECX: running under a hypervisor; Linux looks for kvm-clock only with it.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1 EDX: more than one logical processor in the package.
const HTT: u32 = 1 << 28;
/// Leaf 1 ECX: virtual machine extensions (VMX).
const VMX: u32 = 1 << 5;
/// Leaf 1 ECX: IA32_PERF_CAPABILITIES, IA32_DEBUGCTL.
const PDCM: u32 = 1 << 15;
/// Leaf 1 ECX: 64-bit layout of the debug store, and its branch traces with the privilege level as a filter.
const DEBUG_STORE_ECX: u32 = 1 << 2 | 1 << 4;
/// Leaf 1 EDX: debug store.
const DEBUG_STORE: u32 = 1 << 21;
/// Leaf 7 EDX: architectural last branch records.
const ARCH_LBR: u32 = 1 << 19;
/// Leaf 0x80000001 ECX: secure virtual machine (SVM; APM vol. 3, E.4.2).
const SVM: u32 = 1 << 2;
/// Leaf 0x80000001 ECX: six counters of the core, counters of the northbridge and of the last-level cache.
const PERFCTR: u32 = 1 << 23 | 1 << 24 | 1 << 28;
/// Leaf 0xb/0x1f ECX: level type of a subleaf.
const LEVEL_SMT: u32 = 1 << 8;
/// See [`LEVEL_SMT`].
const LEVEL_CORE: u32 = 2 << 8;

/// Topology of the machine, as CPUID reports it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Topology {
    /// Number of vCPUs, at least 1.
    pub vcpus: u8,
}

impl Topology {
    /// Returns the number of bits of the APIC id that distinguish the cores of the package.
    fn id_bits(self) -> u32 {
        u32::from(self.vcpus).next_power_of_two().trailing_zeros()
    }

    /// Returns the largest number of cores that these bits can distinguish, minus one.
    fn last_addressable(self) -> u32 {
        (1 << self.id_bits()) - 1
    }
}

/// Returns the CPUID that KVM supports, from which [`for_vcpu`] starts.
pub(crate) fn supported(kvm: &Kvm) -> Result<CpuId, StartError> {
    kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(StartError::kvm("report the supported CPUID"))
}

/// Returns true if the processor is Intel's, by the vendor string in leaf 0.
pub(crate) fn is_intel(cpuid: &CpuId) -> bool {
    cpuid.as_slice().iter().any(|leaf| {
        leaf.function == 0 && (leaf.ebx, leaf.edx, leaf.ecx) == (0x756e_6547, 0x4965_6e69, 0x6c65_746e)
    })
}

/// Returns the answers for one vCPU.
pub(crate) fn for_vcpu(
    supported: &CpuId,
    topology: Topology,
    id: u8,
    tsc_deadline: bool,
    features: CpuFeatures,
) -> Result<CpuId, StartError> {
    let mut leaves: Vec<kvm_cpuid_entry2> = supported.as_slice().to_vec();
    let highest = |from: u32| {
        let found = supported.as_slice().iter().find(|leaf| leaf.function == from);
        found.map_or(0, |leaf| leaf.eax)
    };
    for function in [0xb, 0x1f] {
        let present = leaves.iter().any(|leaf| leaf.function == function);
        leaves.retain(|leaf| leaf.function != function);
        // Leaf 0xb exists wherever leaf 0 says so; 0x1f is its newer copy.
        if highest(0) >= function && (present || function == 0xb) {
            leaves.extend(extended_topology(function, topology, id));
        }
    }
    add_brand(&mut leaves, host_brand());
    let intel = is_intel(supported);
    for leaf in &mut leaves {
        // The leaf's ECX is reserved on Intel.
        if !(intel && leaf.function == 0x8000_0008) {
            adjust(leaf, topology, id, tsc_deadline);
        }
        if !features.nested {
            hide_nested(leaf);
        }
        if !features.pmu {
            hide_pmu(leaf);
        }
    }
    CpuId::from_entries(&leaves).map_err(|_| StartError::KvmStep {
        what: "take that many CPUID leaves",
        source: vmm_sys_util::errno::Error::new(libc::E2BIG),
    })
}

/// Makes one leaf true for this machine.
fn adjust(leaf: &mut kvm_cpuid_entry2, topology: Topology, id: u8, tsc_deadline: bool) {
    let count = u32::from(topology.vcpus);
    let apic_id = u32::from(id);
    match leaf.function {
        1 => {
            leaf.ebx = (leaf.ebx & 0x0000_ffff) | (count << 16) | (apic_id << 24);
            leaf.ecx |= HYPERVISOR;
            if tsc_deadline {
                leaf.ecx |= TSC_DEADLINE;
            }
            set(&mut leaf.edx, HTT, count > 1);
        }
        // Caches (Intel 4, AMD 0x8000001d), EAX: type in 4:0, level in 7:5, addressable sharers
        // minus one in 25:14; Intel has the package's cores minus one in 31:26.
        4 | 0x8000_001d if leaf.eax & 0x1f != 0 => {
            let level = (leaf.eax >> 5) & 7;
            let sharers = if level >= 3 { topology.last_addressable() } else { 0 };
            leaf.eax = (leaf.eax & !(0xfff << 14)) | (sharers << 14);
            if leaf.function == 4 {
                leaf.eax = (leaf.eax & !(0x3f << 26)) | (topology.last_addressable().min(0x3f) << 26);
            }
        }
        // AMD: cores minus one in ECX 7:0, APIC id bits in 15:12 (APM vol. 3, E.4.7).
        0x8000_0008 => {
            leaf.ecx = (leaf.ecx & !0xf0ff) | (count - 1) | (topology.id_bits() << 12);
        }
        // AMD: extended APIC id; core id with one thread per core; one node (APM vol. 3, E.4.18).
        0x8000_001e => {
            leaf.eax = apic_id;
            leaf.ebx = apic_id;
            leaf.ecx = 0;
        }
        _ => {}
    }
}

/// Leaves of the processor's name (Intel SDM vol. 2, CPUID; APM vol. 3, E.4.3).
const BRAND: [u32; 3] = [0x8000_0002, 0x8000_0003, 0x8000_0004];

/// Returns the host's own answers for [`BRAND`].
fn host_brand() -> [[u32; 4]; 3] {
    BRAND.map(|function| {
        let found = __cpuid(function);
        [found.eax, found.ebx, found.ecx, found.edx]
    })
}

/// Adds the processor's name, which KVM does not report: `/proc/cpuinfo` of the guest would have none.
fn add_brand(leaves: &mut Vec<kvm_cpuid_entry2>, brand: [[u32; 4]; 3]) {
    let highest = leaves.iter().find(|leaf| leaf.function == 0x8000_0000).map_or(0, |leaf| leaf.eax);
    for (function, [eax, ebx, ecx, edx]) in BRAND.into_iter().zip(brand) {
        let named =
            |leaf: &kvm_cpuid_entry2| leaf.function == function && leaf.eax | leaf.ebx | leaf.ecx != 0;
        if function <= highest && !leaves.iter().any(named) {
            leaves.retain(|leaf| leaf.function != function);
            leaves.push(kvm_cpuid_entry2 { function, eax, ebx, ecx, edx, ..Default::default() });
        }
    }
}

/// Hides virtualization from the guest: it cannot be a host itself.
fn hide_nested(leaf: &mut kvm_cpuid_entry2) {
    match leaf.function {
        1 => leaf.ecx &= !VMX,
        0x8000_0001 => leaf.ecx &= !SVM,
        // SVM's revision and features.
        0x8000_000a => clear(leaf),
        _ => {}
    }
}

/// Hides performance counters from the guest.
fn hide_pmu(leaf: &mut kvm_cpuid_entry2) {
    match leaf.function {
        1 => {
            leaf.ecx &= !(PDCM | DEBUG_STORE_ECX);
            leaf.edx &= !DEBUG_STORE;
        }
        7 if leaf.index == 0 => leaf.edx &= !ARCH_LBR,
        0x8000_0001 => leaf.ecx &= !PERFCTR,
        // Intel: counters, their newer description, last branch records. AMD: counters and branch records.
        0xa | 0x1c | 0x23 | 0x8000_0022 => clear(leaf),
        _ => {}
    }
}

/// Makes a leaf one that reports nothing.
fn clear(leaf: &mut kvm_cpuid_entry2) {
    (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx) = (0, 0, 0, 0);
}

/// Returns the subleaves of leaf 0xb or 0x1f: threads of a core, cores of the package, end.
fn extended_topology(function: u32, topology: Topology, id: u8) -> [kvm_cpuid_entry2; 3] {
    let level = |index: u32, shift: u32, count: u32, kind: u32| kvm_cpuid_entry2 {
        function,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: count,
        ecx: index | kind,
        edx: u32::from(id),
        ..Default::default()
    };
    [
        level(0, 0, 1, LEVEL_SMT),
        level(1, topology.id_bits(), u32::from(topology.vcpus), LEVEL_CORE),
        level(2, 0, 0, 0),
    ]
}

/// Sets or clears a bit.
fn set(register: &mut u32, bit: u32, on: bool) {
    if on {
        *register |= bit;
    } else {
        *register &= !bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, index: u32, registers: [u32; 4]) -> kvm_cpuid_entry2 {
        let [eax, ebx, ecx, edx] = registers;
        kvm_cpuid_entry2 { function, index, eax, ebx, ecx, edx, ..Default::default() }
    }

    fn host() -> CpuId {
        CpuId::from_entries(&[
            leaf(0, 0, [0xd, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            leaf(1, 0, [0x306f2, 0x0904_0800, 0, HTT]),
            leaf(4, 0, [0xfc01_c121, 0, 0, 0]),
            leaf(4, 3, [0xfc01_c163, 0, 0, 0]),
            leaf(0xb, 0, [1, 2, 0x100, 9]),
            leaf(0xb, 1, [4, 16, 0x201, 9]),
            leaf(0x8000_0000, 0, [0x8000_001e, 0, 0, 0]),
            leaf(0x8000_0008, 0, [0x3030, 0, 0x500f, 0]),
            leaf(0x8000_001e, 0, [9, 0x0104, 0x0300, 0]),
        ])
        .unwrap()
    }

    fn find(cpuid: &CpuId, function: u32, index: u32) -> kvm_cpuid_entry2 {
        let all = cpuid.as_slice();
        *all.iter().find(|leaf| (leaf.function, leaf.index) == (function, index)).unwrap()
    }

    /// The same host, AMD's.
    fn amd() -> CpuId {
        let mut host = host();
        let vendor = &mut host.as_mut_slice()[0];
        (vendor.ebx, vendor.ecx, vendor.edx) = (0x6874_7541, 0x444d_4163, 0x6974_6e65);
        host
    }

    #[test]
    fn the_processor_has_its_name_and_intels_reserved_bits_are_clear() {
        let cpuid = for_vcpu(&host(), Topology { vcpus: 4 }, 0, true, CpuFeatures::default()).unwrap();
        assert_eq!(
            find(&cpuid, 0x8000_0008, 0),
            leaf(0x8000_0008, 0, [0x3030, 0, 0x500f, 0]),
            "as KVM has it"
        );
        let name: Vec<u8> = BRAND
            .iter()
            .map(|&function| find(&cpuid, function, 0))
            .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
            .flat_map(u32::to_le_bytes)
            .collect();
        assert!(name.iter().any(u8::is_ascii_alphabetic), "{name:?}");
        let mut named = vec![leaf(0x8000_0000, 0, [0x8000_001e, 0, 0, 0]), leaf(BRAND[0], 0, [1, 2, 3, 4])];
        add_brand(&mut named, [[9; 4]; 3]);
        assert_eq!(named[1].eax, 1, "a name of KVM's stays");
        assert_eq!(named.len(), 4);
    }

    #[test]
    fn leaf_1_tells_hypervisor_deadline_timer_and_apic_id() {
        let cpuid = for_vcpu(&host(), Topology { vcpus: 4 }, 3, true, CpuFeatures::default()).unwrap();
        let one = find(&cpuid, 1, 0);
        assert_eq!(one.ebx, 0x0304_0800);
        assert_eq!(one.ecx & (HYPERVISOR | TSC_DEADLINE), HYPERVISOR | TSC_DEADLINE);
        assert_eq!(one.edx & HTT, HTT);
    }

    #[test]
    fn a_single_vcpu_has_no_siblings() {
        let cpuid = for_vcpu(&amd(), Topology { vcpus: 1 }, 0, false, CpuFeatures::default()).unwrap();
        let one = find(&cpuid, 1, 0);
        assert_eq!(one.edx & HTT, 0);
        assert_eq!(one.ecx & TSC_DEADLINE, 0);
        assert_eq!(find(&cpuid, 0x8000_0008, 0).ecx, 0);
        assert_eq!((find(&cpuid, 4, 3).eax >> 14) & 0xfff, 0);
    }

    #[test]
    fn the_hosts_topology_does_not_show() {
        let cpuid = for_vcpu(&amd(), Topology { vcpus: 5 }, 4, true, CpuFeatures::default()).unwrap();
        assert_eq!((find(&cpuid, 0xb, 0).eax, find(&cpuid, 0xb, 0).ebx), (0, 1));
        let cores = find(&cpuid, 0xb, 1);
        assert_eq!((cores.eax, cores.ebx, cores.ecx, cores.edx), (3, 5, 0x201, 4));
        assert_eq!(find(&cpuid, 0xb, 2).ebx, 0);
        assert_eq!(find(&cpuid, 0x8000_0008, 0).ecx, 0x3004);
        let extended = find(&cpuid, 0x8000_001e, 0);
        assert_eq!((extended.eax, extended.ebx, extended.ecx), (4, 4, 0));
        // Leaf 0x1f is absent: leaf 0 ends at 0xd.
        assert!(cpuid.as_slice().iter().all(|leaf| leaf.function != 0x1f));
    }

    #[test]
    fn many_vcpus_have_ids_of_their_own() {
        for (vcpus, bits) in [(17, 5), (32, 5), (33, 6), (64, 6)] {
            let last = vcpus - 1;
            let cpuid = for_vcpu(&amd(), Topology { vcpus }, last, true, CpuFeatures::default()).unwrap();
            let [vcpus, last] = [vcpus, last].map(u32::from);
            assert_eq!(find(&cpuid, 1, 0).ebx >> 16, last << 8 | vcpus);
            let cores = find(&cpuid, 0xb, 1);
            assert_eq!((cores.eax, cores.ebx, cores.edx), (bits, vcpus, last));
            assert_eq!(find(&cpuid, 0x8000_0008, 0).ecx, bits << 12 | last);
            assert_eq!(find(&cpuid, 0x8000_001e, 0).eax, last);
            assert_eq!((find(&cpuid, 4, 3).eax >> 14) & 0xfff, (1 << bits) - 1);
        }
    }

    #[test]
    fn only_the_last_level_cache_is_shared() {
        let cpuid = for_vcpu(&host(), Topology { vcpus: 4 }, 0, true, CpuFeatures::default()).unwrap();
        assert_eq!((find(&cpuid, 4, 0).eax >> 14) & 0xfff, 0);
        assert_eq!((find(&cpuid, 4, 3).eax >> 14) & 0xfff, 3);
        assert_eq!(find(&cpuid, 4, 3).eax >> 26, 3);
    }

    /// Returns what a machine with `features` reports in a leaf of a host that has every bit set.
    fn of_all(features: CpuFeatures, function: u32) -> [u32; 4] {
        let functions = [0, 1, 7, 0xa, 0x1c, 0x23, 0x8000_0001, 0x8000_000a, 0x8000_0022];
        let leaves = functions.map(|function| leaf(function, 0, [u32::MAX; 4]));
        let host = CpuId::from_entries(&leaves).unwrap();
        let cpuid = for_vcpu(&host, Topology { vcpus: 1 }, 0, true, features).unwrap();
        let leaf = find(&cpuid, function, 0);
        [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]
    }

    #[test]
    fn a_guest_is_a_host_only_on_request() {
        let nested = CpuFeatures { nested: true, ..CpuFeatures::default() };
        for (features, there) in [(CpuFeatures::default(), false), (nested, true)] {
            assert_eq!(of_all(features, 1)[2] & 1 << 5 != 0, there, "VMX");
            assert_eq!(of_all(features, 0x8000_0001)[2] & 1 << 2 != 0, there, "SVM");
            assert_eq!(of_all(features, 0x8000_000a), if there { [u32::MAX; 4] } else { [0; 4] });
            assert_eq!(of_all(features, 0xa), [0; 4]);
        }
    }

    #[test]
    fn a_guest_has_performance_counters_only_on_request() {
        let pmu = CpuFeatures { pmu: true, ..CpuFeatures::default() };
        for (features, there) in [(CpuFeatures::default(), false), (pmu, true)] {
            for function in [0xa, 0x1c, 0x23, 0x8000_0022] {
                assert_eq!(of_all(features, function), if there { [u32::MAX; 4] } else { [0; 4] });
            }
            for bit in [23, 24, 28] {
                assert_eq!(of_all(features, 0x8000_0001)[2] >> bit & 1, u32::from(there), "bit {bit}");
            }
            assert_eq!(of_all(features, 1)[2] >> 15 & 1, u32::from(there), "PDCM");
            assert_eq!(of_all(features, 1)[3] >> 21 & 1, u32::from(there), "debug store");
            assert_eq!(of_all(features, 7)[3] >> 19 & 1, u32::from(there), "last branch records");
            assert_eq!(of_all(features, 1)[2] >> 5 & 1, 0, "VMX");
        }
    }

    #[test]
    fn vendors_are_told_apart() {
        assert!(is_intel(&host()));
        let amd = CpuId::from_entries(&[leaf(0, 0, [0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65])]);
        assert!(!is_intel(&amd.unwrap()));
    }
}
