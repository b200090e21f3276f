//! Recognition of guests of the guest.

use std::ptr::NonNull;

use kvm_bindings::nested::KvmNestedStateBuffer;
use kvm_bindings::{KVM_RUN_X86_GUEST_MODE, KVM_STATE_NESTED_GUEST_MODE, kvm_run};
use kvm_ioctls::VcpuFd;

use crate::config::CpuFeatures;
use crate::kvm::Capabilities;
use crate::observer::{Activity, ActivitySource};

/// Way to find out whether a vCPU executed a guest of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NestedQuery {
    /// The guest cannot be a host.
    Never,
    /// The run page has a flag for it.
    RunPage,
    /// KVM_GET_NESTED_STATE: an ioctl that copies up to 8 KiB.
    State,
}

impl NestedQuery {
    pub(crate) fn new(features: CpuFeatures, capabilities: &Capabilities) -> Self {
        match features.nested {
            true if capabilities.nested_in_run_page => Self::RunPage,
            true if capabilities.nested_state => Self::State,
            // A KVM that reports nothing of nested guests (before Linux 4.20) does not distinguish them.
            _ => Self::Never,
        }
    }
}

/// An own vCPU at a tick.
#[derive(Debug)]
pub(crate) struct OwnVcpu<'a> {
    pub fd: &'a VcpuFd,
    pub page: NonNull<kvm_run>,
    pub nested: NestedQuery,
}

impl ActivitySource for OwnVcpu<'_> {
    fn activity(&self) -> Option<Activity> {
        self.fd.activity()
    }

    fn in_nested_guest(&self) -> bool {
        match self.nested {
            NestedQuery::Never => false,
            NestedQuery::RunPage => {
                // SAFETY: the page is mapped as long as `fd`. KVM wrote the flags when KVM_RUN returned.
                let flags = unsafe { (&raw const (*self.page.as_ptr()).flags).read() };
                u32::from(flags) & KVM_RUN_X86_GUEST_MODE != 0
            }
            NestedQuery::State => {
                let mut state = KvmNestedStateBuffer::empty();
                let read = self.fd.nested_state(&mut state);
                read.is_ok() && u32::from(state.flags) & KVM_STATE_NESTED_GUEST_MODE != 0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_that_may_be_a_host_is_asked_for() {
        let kvm = match crate::kvm::open() {
            Ok(kvm) => kvm,
            Err(error) => return testkit::missing(&format!("/dev/kvm ({error})")),
        };
        let capabilities = crate::kvm::capabilities(&kvm);
        let nested = CpuFeatures { nested: true, ..CpuFeatures::default() };
        let query = |features, nested_in_run_page, nested_state| {
            NestedQuery::new(features, &Capabilities { nested_in_run_page, nested_state, ..capabilities })
        };
        assert_eq!(query(CpuFeatures::default(), true, true), NestedQuery::Never);
        assert_eq!(query(nested, true, true), NestedQuery::RunPage);
        assert_eq!(query(nested, false, true), NestedQuery::State);
        assert_eq!(query(nested, false, false), NestedQuery::Never);
        let vm = kvm.create_vm().unwrap();
        let mut fd = vm.create_vcpu(0).unwrap();
        let mut page = NonNull::from(fd.get_kvm_run());
        for nested in [NestedQuery::Never, NestedQuery::RunPage, NestedQuery::State] {
            assert!(!OwnVcpu { fd: &fd, page, nested }.in_nested_guest());
        }
        // SAFETY: the page is mapped as long as `fd`, and nothing else uses it.
        unsafe { page.as_mut() }.flags = 4;
        assert!(OwnVcpu { fd: &fd, page, nested: NestedQuery::RunPage }.in_nested_guest());
        assert!(!OwnVcpu { fd: &fd, page, nested: NestedQuery::Never }.in_nested_guest());
    }
}
