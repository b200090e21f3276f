//! Unmodified Debian guests, end to end: `vprof run` on whatever KVM there is, the portable host's where the
//! machine's own cannot run a kernel.

mod accounting;
mod attach;
mod attach_kvm;
mod attribution;
mod bad_moments;
mod boot;
mod busy_host;
mod conditions;
mod control;
mod corpus;
mod devices;
mod distribution;
mod exact;
mod exact_accounting;
mod exact_changes;
mod exact_parts;
mod generated;
mod hostile;
mod initrd;
mod jit;
mod kernels;
mod lifecycle;
mod managed;
mod mem;
mod microstates;
mod names;
mod network;
mod output;
mod qcow2;
mod selftest;
mod stacks;
mod startup;
mod states;
mod tcg;
mod vsock;
