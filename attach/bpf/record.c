// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Programs that vprof runs in the kernel of the host. `cargo xtask bpf` compiles them into record.o.
//
//   tick      takes a sample of one vCPU. It runs in an interrupt on the CPU where the vCPU's thread is.
//   peek      copies bytes of the kernel's memory.
//   files     lists the open files of one process.
//   left      counts exits from the guest, and notes the guest's code of some: at the trace point kvm_exit
//   entered   at kvm_entry
//   returned  counts returns of KVM_RUN to the VMM: at kvm_userspace_exit
//   loaded    notes the begin of the next KVM_RUN, of a KVM without kvm_entry: at kvm_fpu
//   switched  counts waits of vCPUs' threads for a CPU, and copies their stacks: at sched_switch
//   cached    makes KVM read the guest's instruction pointer: at the classic trace point kvm_exit
//
// The first two run when vprof asks for it (BPF_PROG_TEST_RUN), the third one when vprof reads an iterator. The kernel
// detaches the others when vprof ends. All offsets in the kernel's structures come from vprof (struct options), which takes them
// from the kernel's BTF. All structures below have the same layout in attach/src/bpf/shared.rs.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
#define NO_UNROLL _Pragma("clang loop unroll(disable)")

// Numbers of helpers and of map types (include/uapi/linux/bpf.h).
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*ktime_get_ns)(void) = (void *)5;
static u32 (*get_prandom_u32)(void) = (void *)7;
static u32 (*get_smp_processor_id)(void) = (void *)8;
static u64 (*get_current_task)(void) = (void *)35;
static long (*get_stack)(void *context, void *into, u32 bytes, u64 flags) = (void *)67;
static long (*get_task_stack)(void *task, void *into, u32 bytes, u64 flags) = (void *)141;
static void *(*get_current_task_btf)(void) = (void *)158;
static void *(*task_pt_regs)(void *task) = (void *)175;
static long (*probe_read_user)(void *into, u32 bytes, u64 from) = (void *)112;
static long (*probe_read_kernel)(void *into, u32 bytes, u64 from) = (void *)113;
static long (*seq_write)(void *seq, const void *data, u32 bytes) = (void *)127;
#define MAP_TYPE_HASH 1
#define MAP_TYPE_ARRAY 2
#define MAP_MMAPABLE (1u << 10)

struct bpf_map_def {
	u32 type;
	u32 key_size;
	u32 value_size;
	u32 max_entries;
	u32 map_flags;
};

// Flag of a thread whose CPU an interrupt has just taken out of the guest (PF_VCPU, include/linux/sched.h).
#define IN_GUEST 1

// Bit of the first word of intercepts (enum INTERCEPT_CR0_WRITE, arch/x86/include/asm/svm.h).
#define INTERCEPT_CR0_WRITE (1u << 16)

// Bits 12 to 51 of an entry of a page table: a physical address (Intel SDM vol. 3, 4.5).
#define ADDRESS 0x000ffffffffff000ull
#define PRESENT 1ull
#define LARGE (1ull << 7)
// Value for no physical address.
#define NOTHING (~0ull)

#define PAGE 4096ull
// Bits of an address below those that one page table of the lowest level maps alike.
#define PART ((1ull << 21) - 1)
// Bytes of struct pt_regs, and offsets in it (arch/x86/include/asm/ptrace.h).
#define PT_REGS 168
#define PT_REGS_ORIG_AX 120
#define PT_REGS_IP 128
#define PT_REGS_SP 152
// Bytes below RSP that a function may use (System V ABI, AMD64 supplement 1.0, 3.2.2).
#define RED_ZONE 128
// Bytes below RSP in the kernel's entry code that a sample needs (guest-linux/src/stack/reader.rs, BELOW_RSP).
#define BELOW_KERNEL_RSP 136
// Kernel stacks that have interrupted each other.
#define STACKS 3
// Pages of a range that is copied: 40 KiB that do not begin with a page.
#define RANGE_PAGES 11

#define SLOTS 32
#define SPANS 8
#define WORDS 768
#define PIECES 1072
#define PAGES 24
#define SMALL 512
#define SMALLS 16
// Translations that are remembered: page tables of the lowest level, and pages of the process whose frames are copied.
// Powers of two.
#define TABLES 8
#define NEAR_PAGES 16
// Plans of copies that are searched for one process.
#define PLAN_PROBES 8
// Steps of a plan, a power of two; words that a step loads, and registers (runtimes/src/copies.rs).
#define STEPS 16
#define LOADS 4
#define REGISTERS 8
// Steps that are executed at a sample, and bytes that they copy, at most. The words and pieces are those of as many steps.
#define MOST_STEPS 1536
#define HEAP (64 * 1024)
// Words of a vCPU's registers that are copied at once: those of general and control registers (struct kvm_vcpu_arch,
// Linux 5.10 to 6.18), as far as a kernel has them there.
#define BLOCK 48

// Distinct reasons of exits, a power of two; the further ones share the last row. Steps of the search for one.
#define EXITS 128
#define EXIT_STEPS 16
// Durations are counted in buckets of equal ratio, as in profile/src/histogram.rs.
#define BUCKETS 242
#define LEAST_BITS 6
#define MOST_BITS 36
// Processes that have had a CPU instead of a vCPU; the further ones share the last row.
#define TAKERS 32
#define COMM 16
// Notes of a vCPU that vprof has not read yet, a power of two.
#define NOTES 128
// Parts of the guest's memory that a note has, and bytes of a part, and of all before the last one, at most.
#define NOTE_PARTS 12
#define NOTE_PART 256
#define NOTE_BYTES 256
// Notes of a vCPU in a second, at most: beyond that a note is for twice as many exits. In the second in which that
// happens, half as many follow for each time.
#define NOTE_LIMIT 1024
// Exits that a note is for, at most: 2 to the power of this.
#define NOTE_SHIFT 20
#define SECOND 1000000000ull

// Functions on a stack of the host, at most: as many as the kernel walks (kernel.perf_event_max_stack by default).
#define HOST_FRAMES 127
// Bytes of the VMM's stack that are copied, at most.
#define HOST_BYTES 8192

// Kinds of KVM.
#define VENDOR_SVM 1
#define VENDOR_PVM 2
#define VENDOR_VMX 3

// Offset of a member that this kernel does not have.
#define ABSENT (~0u)

// Offsets in the kernel's structures, and two processes: the one whose files are listed, and vprof.
struct options {
	u32 process;
	u32 vendor;
	u32 vcpu_notifier;
	u32 vcpu_regs;
	u32 vcpu_rip;
	u32 vcpu_cr0;
	u32 vcpu_cr2;
	u32 vcpu_cr3;
	u32 vcpu_cr4;
	u32 vcpu_efer;
	u32 vcpu_mp_state;
	u32 vcpu_nested;
	u32 svm_vmcb;
	u32 vmcb_nested_paging;
	u32 vmcb_cs;
	u32 vmcb_cpl;
	u32 vmcb_cr0;
	u32 vmcb_cr3;
	u32 vmcb_rflags;
	u32 vmcb_intercepts;
	u32 vmcb_exit_code;
	u32 vmcb_fs_base;
	u32 vcpu_run;
	u32 pvm_segments;
	u32 pvm_cpl;
	u32 pvm_rflags;
	u32 task_flags;
	u32 task_state;
	u32 task_on_cpu;
	u32 task_cpu;
	u32 task_pid;
	u32 task_tgid;
	u32 task_start;
	u32 task_exit;
	u32 task_notifiers;
	u32 task_queued;
	u32 task_arrived;
	u32 task_delay;
	u32 task_comm;
	// The process that asks for samples.
	u32 asker;
	// 1 to copy the stacks of vCPUs' threads.
	u32 host_stacks;
	// 1 to count exits by their reasons, and to note some.
	u32 exits;
	// 1 if KVM has only some of the registers in its memory.
	u32 partial;
	// Which registers those are, and the bit of the instruction pointer.
	u32 vcpu_available;
	u32 rip_available;
	// Number of plans of copies, a power of two.
	u32 plans;
};

// Registers that a record has.
enum registers {
	ALL_REGISTERS = 0,
	// All of the general ones but RSP, and of the others those that KVM never leaves to the processor alone.
	PARTIAL = 1,
	// The same without RIP.
	NO_RIP = 2,
};

// Range of the guest's memory in the address space of its VMM.
struct slot {
	u64 guest;
	u64 bytes;
	u64 host;
};

struct span {
	u32 offset;
	u32 bytes;
};

// Addresses and offsets in the guest's kernel, once they are known.
struct guest {
	u32 known;
	u32 five_level;
	u64 kernel_root;
	u64 identity;
	// Address of the APIC id of a vCPU that was plugged in later; 0 for others.
	u64 apic_id;
	u64 preempt_count;
	u64 current_task;
	u64 irq_stack;
	u64 tss;
	u64 direct_map;
	u64 init_task;
	u64 init_task_phys;
	u32 task_leader;
	u32 task_stack;
	u32 task_mm;
	u32 mm_pgd;
	u32 stack_bytes;
	u32 irq_stack_bytes;
	u32 padding;
	u32 user_bytes;
	u32 task_spans;
	u32 leader_spans;
	struct span task[SPANS];
	struct span leader[SPANS];
};

// A vCPU to sample.
struct target {
	// Equal to the last word unless this is being changed.
	u64 version;
	u64 vcpu;
	u64 task;
	u64 start;
	u64 slots;
	struct slot slot[SLOTS];
	struct guest guest;
	u64 end_version;
};

struct word {
	u64 phys;
	u64 value;
};

struct piece {
	u64 phys;
	u32 bytes;
	// Offset in struct record.
	u32 at;
};

// State of a vCPU's thread. The values are those of attach/src/bpf/shared.rs.
enum outcome {
	// An interrupt has just taken the CPU out of the guest.
	GUEST = 1,
	// On this CPU, in KVM, between two stays in the guest.
	KVM = 2,
	// On this CPU, in the VMM.
	VMM = 3,
	// On another CPU.
	ELSEWHERE = 4,
	// Waits for a CPU.
	QUEUED = 5,
	// Blocked.
	BLOCKED = 6,
	// The thread is no longer that of the vCPU.
	GONE = 7,
	// This CPU is taking another sample.
	BUSY = 8,
};

// Translation of addresses whose bits from 21 up are `part`: the address of the page table of the lowest level. Where a
// large page maps them there is none; then it is the physical address plus 1. 0 for none.
struct cached_table {
	u64 root;
	u64 part;
	u64 table;
};

// Word of the bytes of a step that is loaded into a register.
struct load {
	u8 used;
	u8 into;
	u8 shift;
	// It is added to the register's value.
	u8 adds;
	// Words from the first byte.
	u32 at;
};

// Step of a plan (runtimes/src/copies.rs).
struct step {
	u64 offset;
	u32 bytes;
	// Register with the address of the structure; REGISTERS for none.
	u8 base;
	u8 advance;
	// Registers that are compared.
	u8 left;
	u8 right;
	u8 equal;
	u8 other;
	u8 missing;
	u8 unused[5];
	struct load load[LOADS];
};

// Plan of the copies of one process, by its page tables.
struct plan {
	u64 root;
	struct step step[STEPS];
};

// State of the copies of a process, and the plan.
struct copier {
	u64 registers[REGISTERS];
	// Bytes of the heap in use, and the start of those of the last step.
	u64 used;
	u64 last;
	// Number of a page of the process, and its address.
	struct {
		u64 number;
		u64 phys;
	} page[NEAR_PAGES];
	struct step step[STEPS];
	// A page more than is used, as above.
	u64 heap[(HEAP + PAGE) / 8];
};

struct record {
	u64 time_ns;
	s32 cpu;
	u32 mp_state;
	u32 in_run;
	u32 nested;
	// The process that asks has taken the CPU from the vCPU's thread.
	u32 preempted;
	u32 cpl;
	u32 code_64_bit;
	// Number of reads of memory that the host does not have in its own: it was swapped out, or never used.
	u32 missing;
	// Reason for which KVM_RUN has returned to a VMM that is blocked now; 0 otherwise.
	u32 exit_reason;
	// One of enum registers.
	u32 registers;
	u64 gpr[16];
	u64 rip;
	u64 rflags;
	u64 cr0;
	u64 cr2;
	u64 cr3;
	u64 cr4;
	u64 efer;
	u64 code_base;
	// 0 where the kernel does not show it.
	u64 fs_base;
	u32 words;
	u32 pieces;
	u32 smalls;
	u32 pages;
	// Root of the page tables of the current process; 0 if they are not known.
	u64 process_root;
	struct cached_table table[TABLES];
	struct word word[WORDS];
	struct piece piece[PIECES];
	u64 block[BLOCK];
	u8 small[SMALLS * SMALL];
	// One page more than is used: a copy starts and ends within a page, which the verifier does not see.
	u8 page[(PAGES + 1) * PAGE];
	struct copier copier;
};

// Exits of a vCPU for one reason. Written like its course, and apart from it: many kernels count no exits.
struct exit_row {
	// Reason and address (sampler/src/microstate/exits.rs); 0 for a free row.
	u64 key;
	u64 count;
	u64 total_ns;
	u64 max_ns;
	// Exits that were to be noted, for which there was no room, each with its weight.
	u64 unnoted;
	u64 unnoted_ns;
	u64 times[BUCKETS];
};

// Waits of a vCPU's thread for a CPU that a process had.
struct taker {
	u32 tgid;
	// 0 for a free row.
	u32 used;
	char comm[COMM];
	u64 count;
	u64 total_ns;
};

// Course of a vCPU's thread. Only code on the CPU where the thread is writes it.
struct course {
	// Exits from the guest, and returns of KVM_RUN.
	u64 exits;
	u64 returns;
	// Time and reason of the last exit; 0 in the guest.
	u64 left_ns;
	u64 left_key;
	// The same of the last return; 0 in KVM_RUN.
	u64 returned_ns;
	u64 returned_key;
	// Time from returns to the next entries of the guest, and the part of it without a CPU.
	u64 vmm_ns;
	u64 vmm_off_ns;
	// Part of the latter that the thread waited for a CPU.
	u64 vmm_waited_ns;
	// Time blocked in KVM_RUN with a guest that is not halted.
	u64 page_ns;
	// Time at which the thread has left its CPU; 0 on a CPU.
	u64 off_ns;
	u32 off;
	// Row of the process that has the CPU that the thread waits for, plus 1.
	u32 taker;
	// Time waited so far, by the scheduler.
	u64 delay_ns;
	// Begin of the KVM_RUN after the last return; 0 before.
	u64 loaded_ns;
	struct taker takers[TAKERS + 1];
};

// An exit that was noted, with the guest's code that it interrupted.
struct note {
	// As the exit's row has it.
	u64 key;
	u64 time_ns;
	u64 ns;
	u64 rip;
	u64 cr3;
	u64 code_base;
	u64 efer;
	// Number of exits that it is for.
	u32 weight;
	u32 cpl;
	u32 code_64_bit;
	u32 nested;
	u32 parts;
	u32 bytes;
	struct piece part[NOTE_PARTS];
	u8 data[NOTE_BYTES + NOTE_PART];
};

// Notes of a vCPU, without the notes. Written like its course.
struct notes {
	// Number of notes that are complete; the next one is being written. Note n is row n % NOTES of the vCPU.
	u64 written;
	// Begin of the present second, notes in it, and logarithm of the number of exits that each is for.
	u64 window_ns;
	u32 in_window;
	u32 shift;
	// The exit that is being served was decided upon, and its note's number of exits: 0 for no note.
	u32 decided;
	u32 weight;
	// There was no room for its note.
	u32 lost;
	u32 unused;
};

// Stack of a vCPU's thread in the host: addresses, the innermost one first.
struct host_stack {
	// Odd while it is being written.
	u64 version;
	// Time at which it was taken; 0 for none.
	u64 time_ns;
	// Bytes of the addresses in the kernel; below 0 for an error of the kernel.
	s32 kernel_bytes;
	u32 user_bytes;
	u64 kernel[HOST_FRAMES];
	// Registers of the user code (struct pt_regs), and the stack from the red zone below its RSP on.
	u64 registers[PT_REGS / 8];
	u8 user[HOST_BYTES + PAGE];
};

// Stacks of a vCPU's thread: at the last tick that has found it on its CPU, and when it left its CPU last.
struct host_stacks {
	struct host_stack ticked;
	struct host_stack left;
};

// Activities of a thread without a CPU.
enum off {
	OFF_KVM = 0,
	OFF_VMM = 1,
	OFF_PAGE = 2,
	// Flag: it was blocked, and then may have waited.
	OFF_BLOCKED = 4,
};

// Codes of reasons, in the highest byte of a key.
#define KEY(code, address) ((u64)(code) << 56 | ((address) & ((1ull << 56) - 1)))
#define KEY_PORT_READ 1
#define KEY_PORT_WRITE 2
#define KEY_MEMORY_READ 3
#define KEY_MEMORY_WRITE 4
#define KEY_INTERRUPTED 5
#define KEY_HALT 6
#define KEY_SHUTDOWN 7
#define KEY_OTHER 8
#define KEY_KVM 9

// struct kvm_run, and numbers of reasons (include/uapi/linux/kvm.h).
#define RUN_EXIT_REASON 8
#define RUN_IO_DIRECTION 32
#define RUN_IO_PORT 34
#define RUN_MMIO_ADDRESS 32
#define RUN_MMIO_IS_WRITE 52
#define KVM_EXIT_IO 2
#define KVM_EXIT_HLT 5
#define KVM_EXIT_MMIO 6
#define KVM_EXIT_SHUTDOWN 8
#define KVM_EXIT_INTR 10
#define EINTR 4

SEC("license") char LICENSE[] = "Dual MIT/GPL";

SEC(".rodata") const volatile struct options options = {};

SEC("maps") struct bpf_map_def targets = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct target),
	.max_entries = 1,
};

SEC("maps") struct bpf_map_def records = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct record),
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

SEC("maps") struct bpf_map_def plans = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct plan),
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

SEC("maps") struct bpf_map_def peeked = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = PAGE,
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

// Indices of the vCPUs, by the addresses of their threads.
SEC("maps") struct bpf_map_def followed = {
	.type = MAP_TYPE_HASH,
	.key_size = 8,
	.value_size = 4,
	.max_entries = 1,
};

SEC("maps") struct bpf_map_def courses = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct course),
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

// Rows of all vCPUs, EXITS and one for all other reasons for each.
SEC("maps") struct bpf_map_def exits = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct exit_row),
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

SEC("maps") struct bpf_map_def notes = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct notes),
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

// NOTES rows for each vCPU.
SEC("maps") struct bpf_map_def note_rows = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct note),
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

SEC("maps") struct bpf_map_def stacks = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = sizeof(struct host_stacks),
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

// Number of notes of each vCPU that vprof has read, plus 1; 0 before it reads any.
SEC("maps") struct bpf_map_def taken = {
	.type = MAP_TYPE_ARRAY,
	.key_size = 4,
	.value_size = 8,
	.max_entries = 1,
	.map_flags = MAP_MMAPABLE,
};

// Hides a value from the compiler, which otherwise compares another register than the one that is used, and the
// verifier knows no bounds of that one.
#define HIDE(value) asm volatile("" : "+r"(value))

INLINE u64 kernel_u64(u64 at)
{
	u64 value = 0;
	probe_read_kernel(&value, sizeof(value), at);
	return value;
}

INLINE u32 kernel_u32(u64 at)
{
	u32 value = 0;
	probe_read_kernel(&value, sizeof(value), at);
	return value;
}

INLINE u8 kernel_u8(u64 at)
{
	u8 value = 0;
	probe_read_kernel(&value, sizeof(value), at);
	return value;
}

// Returns the address in the VMM of guest physical memory; 0 if it is not in one slot.
INLINE u64 host_address(struct target *target, u64 phys, u64 bytes)
{
	NO_UNROLL
	for (u32 i = 0; i < SLOTS; i++) {
		if (i >= target->slots)
			break;
		struct slot *slot = &target->slot[i];
		u64 offset = phys - slot->guest;
		if (offset < slot->bytes && slot->bytes - offset >= bytes)
			return slot->host + offset;
	}
	return 0;
}

// The functions that follow are global, so that the verifier looks at each of them once: with all calls together it
// gives up. Such functions have numbers as arguments, so each finds the vCPU's structures by its index.
#define GLOBAL __attribute__((noinline))
#define FIND(result)                                                                                                   \
	struct target *target = map_lookup(&targets, &index);                                                          \
	struct record *record = map_lookup(&records, &index);                                                          \
	if (!target || !record)                                                                                        \
	return result

INLINE void record_piece(struct record *record, u64 phys, u32 bytes, u32 at)
{
	u64 index = record->pieces;
	HIDE(index);
	if (index >= PIECES)
		return;
	record->piece[index].phys = phys;
	record->piece[index].bytes = bytes;
	record->piece[index].at = at;
	record->pieces = index + 1;
}

// Reads a word of guest physical memory, and records it. Returns 0 if it is not in memory.
GLOBAL u64 guest_word(u32 index, u64 phys)
{
	FIND(0);
	u64 value = 0;
	u64 from = host_address(target, phys, sizeof(value));
	u64 words = record->words;
	HIDE(words);
	if (!from || words >= WORDS)
		return 0;
	if (probe_read_user(&value, sizeof(value), from)) {
		record->missing++;
		return 0;
	}
	record->word[words].phys = phys;
	record->word[words].value = value;
	record->words = words + 1;
	return value;
}

// Copies some bytes of guest physical memory, at most SMALL.
GLOBAL u64 copy_small(u32 index, u64 phys, u64 bytes)
{
	FIND(0);
	u64 from = host_address(target, phys, bytes);
	u64 smalls = record->smalls;
	HIDE(bytes);
	HIDE(smalls);
	if (!from || smalls >= SMALLS || bytes == 0 || bytes > SMALL)
		return 0;
	if (probe_read_user(record->small + smalls * SMALL, bytes, from)) {
		record->missing++;
		return 0;
	}
	record->smalls = smalls + 1;
	record_piece(record, phys, bytes, __builtin_offsetof(struct record, small) + smalls * SMALL);
	return 1;
}

// Copies a part of a page of guest physical memory: from `phys` on, within the page.
GLOBAL u64 copy_page(u32 index, u64 phys, u64 bytes)
{
	FIND(0);
	u64 pages = record->pages;
	u64 offset = phys & (PAGE - 1);
	u64 from = host_address(target, phys, bytes);
	HIDE(bytes);
	HIDE(pages);
	HIDE(offset);
	offset &= PAGE - 1;
	if (!from || pages >= PAGES || bytes == 0 || bytes > PAGE)
		return 0;
	if (probe_read_user(record->page + pages * PAGE + offset, bytes, from)) {
		record->missing++;
		return 0;
	}
	record->pages = pages + 1;
	record_piece(record, phys, bytes, __builtin_offsetof(struct record, page) + pages * PAGE + offset);
	return 1;
}

// Walks the guest's page tables; returns NOTHING where nothing is mapped.
GLOBAL u64 translate(u32 index, u64 root, u64 virt)
{
	FIND(NOTHING);
	u64 table = root & ADDRESS;
	// CR4.LA57.
	u32 shift = record->cr4 & (1 << 12) ? 48 : 39;
	u64 slot = virt >> 21 & (TABLES - 1);
	HIDE(slot);
	struct cached_table *cached = &record->table[slot & (TABLES - 1)];
	if (cached->table && cached->root == table && cached->part == virt >> 21) {
		if (cached->table & 1)
			return (cached->table - 1) | (virt & PART);
		u64 entry = guest_word(index, cached->table + (virt >> 12 & 511) * 8);
		return entry & PRESENT ? (entry & ADDRESS) | (virt & (PAGE - 1)) : NOTHING;
	}
	root = table;
	NO_UNROLL
	for (u32 level = 0; level < 5; level++) {
		u64 entry = guest_word(index, table + (virt >> shift & 511) * 8);
		if (!(entry & PRESENT))
			return NOTHING;
		if (shift == 12) {
			cached->root = root;
			cached->part = virt >> 21;
			cached->table = table;
			return (entry & ADDRESS) | (virt & (PAGE - 1));
		}
		if (entry & LARGE) {
			u64 mask = (1ull << shift) - 1;
			if (shift > 30)
				return NOTHING;
			u64 phys = (entry & ADDRESS & ~mask) | (virt & mask);
			cached->root = root;
			cached->part = virt >> 21;
			cached->table = (phys & ~PART) + 1;
			return phys;
		}
		table = entry & ADDRESS;
		shift -= 9;
	}
	return NOTHING;
}

// Copies a range page by page, at most `most` pages. Returns the address of the first page that is not there, or `to`.
// With `holes`, pages that are not there are left out.
GLOBAL u64 copy_range(u32 index, u64 root, u64 from, u64 to, u32 holes)
{
	FIND(from);
	NO_UNROLL
	for (u32 i = 0; i < RANGE_PAGES; i++) {
		if (from >= to)
			return to;
		u64 next = (from | (PAGE - 1)) + 1;
		u64 phys = translate(index, root, from);
		if (phys == NOTHING) {
			if (!holes)
				return from;
		} else if (!copy_page(index, phys, (next < to ? next : to) - from) && !holes) {
			return from;
		}
		from = next;
	}
	return from;
}

INLINE int is_kernel(u64 address)
{
	return address >> 63;
}

// Returns the guest physical address of an address in the guest's direct map.
INLINE u64 direct(struct guest *guest, u64 virt)
{
	return virt == guest->init_task ? guest->init_task_phys : virt - guest->direct_map;
}

// Copies the parts of the current task, and of its process's leader, that a sample needs. Returns the task, 0 for none.
GLOBAL u64 copy_task(u32 index)
{
	FIND(0);
	struct guest *guest = &target->guest;
	guest_word(index, guest->preempt_count & ~7ull);
	if (guest->apic_id)
		guest_word(index, guest->apic_id & ~7ull);
	u64 task = guest_word(index, guest->current_task);
	if (!is_kernel(task))
		return 0;
	u64 phys = direct(guest, task);
	NO_UNROLL
	for (u32 i = 0; i < SPANS; i++) {
		if (i >= guest->task_spans)
			break;
		copy_small(index, phys + guest->task[i].offset, guest->task[i].bytes);
	}
	u64 leader = guest_word(index, phys + guest->task_leader);
	if (!is_kernel(leader))
		return task;
	phys = direct(guest, leader);
	NO_UNROLL
	for (u32 i = 0; i < SPANS; i++) {
		if (i >= guest->leader_spans)
			break;
		copy_small(index, phys + guest->leader[i].offset, guest->leader[i].bytes);
	}
	return task;
}

// Returns the word at a virtual address of the guest.
INLINE u64 virtual_word(u32 index, u64 root, u64 virt)
{
	u64 phys = translate(index, root, virt);
	return phys == NOTHING ? 0 : guest_word(index, phys);
}

// Copies the kernel stacks that the vCPU is on. Returns the RSP of the user code below them, 0 if there is none.
GLOBAL u64 copy_kernel_stacks(u32 index, u64 task)
{
	FIND(0);
	struct guest *guest = &target->guest;
	u64 root = guest->kernel_root;
	u64 at = record->gpr[4];
	u64 own = guest_word(index, direct(guest, task) + guest->task_stack);
	u64 own_top = own + guest->stack_bytes;
	u64 irq_top = guest->irq_stack ? (guest_word(index, guest->irq_stack) + 8) & ~(PAGE - 1) : 0;
	u64 user = 0;
	u64 top = own_top;
	copy_small(index, guest->tss, 104);
	NO_UNROLL
	for (u32 i = 0; i < STACKS; i++) {
		if (!is_kernel(at)) {
			user = at;
			break;
		}
		u64 below = at & (PAGE - 1);
		u64 from = at - (i || below < BELOW_KERNEL_RSP ? 0 : BELOW_KERNEL_RSP);
		int is_irq = irq_top && at - (irq_top - guest->irq_stack_bytes) < guest->irq_stack_bytes;
		int is_own = at - own < guest->stack_bytes;
		// A stack of a task is aligned to its size.
		u64 end = is_own ? own_top : is_irq ? irq_top : (at | (guest->stack_bytes - 1)) + 1;
		u64 reached = copy_range(index, root, from, end, 0);
		if (is_own)
			break;
		if (is_irq) {
			at = virtual_word(index, root, irq_top - 8);
			continue;
		}
		top = end;
		// An exception's stack ends where a page is missing, with the frame that the processor has stored.
		if (reached >= end)
			break;
		at = virtual_word(index, root, reached - (PT_REGS - PT_REGS_SP));
		top = own_top;
	}
	// The registers that are saved at the top: those of the user code, also where the stack was left early.
	u64 saved = top - guest->padding - PT_REGS;
	u64 saved_sp = virtual_word(index, root, saved + PT_REGS_SP);
	u64 phys = translate(index, root, saved - 8);
	if (phys != NOTHING && (phys & (PAGE - 1)) <= PAGE - PT_REGS - 8)
		copy_small(index, phys, PT_REGS + 8);
	user = user ? user : saved_sp;
	return is_kernel(user) ? 0 : user;
}

// Returns the root of the page tables of a task's process; 0 if it has none.
GLOBAL u64 user_root(u32 index, u64 task)
{
	FIND(0);
	struct guest *guest = &target->guest;
	if (guest->task_mm == ABSENT)
		return 0;
	u64 mm = guest_word(index, direct(guest, task) + guest->task_mm);
	u64 pgd = is_kernel(mm) ? guest_word(index, direct(guest, mm) + guest->mm_pgd) : 0;
	return is_kernel(pgd) ? direct(guest, pgd) : 0;
}

// Walks to the instruction that user code was interrupted at by an exception: its page may be what is missing.
GLOBAL u64 walk_to_fault(u32 index, u64 task, u64 root)
{
	FIND(0);
	struct guest *guest = &target->guest;
	u64 saved = guest_word(index, direct(guest, task) + guest->task_stack);
	saved += guest->stack_bytes - guest->padding - PT_REGS;
	u64 ip = virtual_word(index, guest->kernel_root, saved + PT_REGS_IP);
	if (virtual_word(index, guest->kernel_root, saved + PT_REGS_ORIG_AX) == ~0ull && !is_kernel(ip))
		translate(index, root, ip);
	return 0;
}

// Copies the memory that a sample reads.
GLOBAL u64 copy_memory(u32 index)
{
	FIND(0);
	struct guest *guest = &target->guest;
	u64 root = record->cr3;
	u64 user = record->gpr[4];
	// EFER.LMA.
	if (!guest->known || !(record->efer & (1 << 10)))
		return 0;
	u64 task = copy_task(index);
	if (record->nested || !task)
		return 0;
	record->process_root = 0;
	if (record->registers != ALL_REGISTERS) {
		// User code is where the page tables of its process lead to memory.
		u64 own = user_root(index, task);
		if (own && record->registers == PARTIAL && !is_kernel(record->rip))
			translate(index, own, record->rip);
		return 1;
	}
	record->process_root = record->cpl == 3 ? root : 0;
	if (record->cpl != 3) {
		// The instruction before: a HLT?
		u64 code = translate(index, root, record->rip - 1);
		if (code != NOTHING)
			guest_word(index, code & ~7ull);
		translate(index, root, guest->identity);
		// The kernel's own tables, where those of the program are other ones (PTI).
		if (root & 0x1000)
			translate(index, root & ~0x1000ull, guest->identity);
		user = copy_kernel_stacks(index, task);
		u64 own = user_root(index, task);
		record->process_root = own;
		root = own ? own : root;
		if (user)
			walk_to_fault(index, task, root);
	}
	if (user && !is_kernel(user)) {
		u64 from = user < RED_ZONE ? user : user - RED_ZONE;
		copy_range(index, root, from, from + guest->user_bytes, 1);
	}
	return 1;
}

// Copies bytes of the current process, at most a page; returns 1 if all of them are there. They are in the heap then, from
// `last` on.
GLOBAL u64 copy_structure(u32 index, u64 virt, u64 bytes)
{
	FIND(0);
	struct copier *copier = &record->copier;
	u64 start = (copier->used + 7) & ~7ull;
	u64 done = 0;
	NO_UNROLL
	for (u32 i = 0; i < 2; i++) {
		u64 number = (virt + done) >> 12;
		u64 slot = number & (NEAR_PAGES - 1);
		HIDE(slot);
		slot &= NEAR_PAGES - 1;
		if (copier->page[slot].number != number) {
			u64 page = translate(index, record->process_root, number << 12);
			if (page == NOTHING)
				return 0;
			copier->page[slot].number = number;
			copier->page[slot].phys = page;
		}
		u64 offset = (virt + done) & (PAGE - 1);
		u64 part = PAGE - offset < bytes - done ? PAGE - offset : bytes - done;
		u64 phys = copier->page[slot].phys + offset;
		u64 from = host_address(target, phys, part);
		u64 at = start + done;
		HIDE(part);
		HIDE(at);
		if (!from || record->pieces >= PIECES || at > HEAP || part == 0 || part > PAGE)
			return 0;
		if (probe_read_user((u8 *)copier->heap + at, part, from)) {
			record->missing++;
			return 0;
		}
		record_piece(record, phys, part, __builtin_offsetof(struct record, copier.heap) + at);
		done += part;
		// Also if the rest is missing: the piece stays.
		copier->used = start + done;
		if (done >= bytes) {
			copier->last = start;
			return 1;
		}
	}
	return 0;
}

// Loads a word of the bytes that the last step has copied.
INLINE void load_word(struct copier *copier, struct load *load)
{
	u64 at = copier->last / 8 + load->at;
	u64 into = load->into;
	HIDE(at);
	HIDE(into);
	if (!load->used || at >= HEAP / 8)
		return;
	u64 value = copier->heap[at] << (load->shift & 63);
	into &= REGISTERS - 1;
	copier->registers[into] = load->adds ? copier->registers[into] + value : value;
}

// Executes a step of the plan; returns the number of the next one.
GLOBAL u64 execute_step(u32 index, u64 number)
{
	FIND(STEPS);
	struct copier *copier = &record->copier;
	HIDE(number);
	struct step *step = &copier->step[number & (STEPS - 1)];
	u64 base = step->base;
	u64 at = 0;
	HIDE(base);
	if (base < REGISTERS) {
		at = copier->registers[base] & ~7ull;
		if (!at)
			return step->missing;
		copier->registers[base] += step->advance;
	}
	at += step->offset;
	if (step->bytes) {
		if (at < PAGE || is_kernel(at) || !copy_structure(index, at, step->bytes))
			return step->missing;
		NO_UNROLL
		for (u32 i = 0; i < LOADS; i++)
			load_word(copier, &step->load[i]);
	}
	u64 left = step->left;
	u64 right = step->right;
	HIDE(left);
	HIDE(right);
	left &= REGISTERS - 1;
	right &= REGISTERS - 1;
	return copier->registers[left] == copier->registers[right] ? step->equal : step->other;
}

// Copies what shows the frames of a managed language in the current process, if there is a plan for it. What is copied is
// the guest's memory, whatever the plan: a plan that is changed meanwhile leads to other memory, at worst.
GLOBAL u64 copy_frames(u32 index)
{
	FIND(0);
	struct copier *copier = &record->copier;
	// Without the bit by which page-table isolation distinguishes two tables.
	u64 root = record->process_root & ADDRESS & ~0x1000ull;
	u64 first = root * 0x9e3779b97f4a7c15ull >> 32;
	u64 found = 0;
	if (!root || !record->fs_base)
		return 0;
	NO_UNROLL
	for (u32 i = 0; i < PLAN_PROBES; i++) {
		u32 slot = (first + i) & (options.plans - 1);
		struct plan *plan = map_lookup(&plans, &slot);
		if (plan && plan->root == root) {
			found = !probe_read_kernel(copier->step, sizeof(copier->step), (u64)plan->step);
			break;
		}
	}
	if (!found)
		return 0;
	copier->used = 0;
	copier->registers[0] = record->fs_base;
	NO_UNROLL
	for (u32 i = 1; i < REGISTERS; i++)
		copier->registers[i] = 0;
	NO_UNROLL
	for (u32 i = 0; i < NEAR_PAGES; i++)
		copier->page[i].number = 0;
	u64 number = 0;
	NO_UNROLL
	for (u32 i = 0; i < MOST_STEPS; i++) {
		number = execute_step(index, number);
		if (number >= STEPS)
			break;
	}
	return 1;
}

// Returns a register: from the block that was copied, if it is in it.
INLINE u64 vcpu_register(struct record *record, u64 vcpu, u32 offset)
{
	u64 index = (u64)(offset - options.vcpu_regs) / 8;
	HIDE(index);
	return index < BLOCK ? record->block[index] : kernel_u64(vcpu + offset);
}

// Beginning of struct vmcb_seg (arch/x86/include/asm/svm.h) and of struct kvm_segment
// (arch/x86/include/uapi/asm/kvm.h).
struct vmcb_segment {
	u16 selector;
	u16 attributes;
	u32 limit;
	u64 base;
};

struct kvm_segment {
	u64 base;
	u32 limit;
	u16 selector;
	u8 type, present, dpl, db, s, l, g, avl;
};

// Privilege level, and code segment.
struct privilege {
	u32 cpl;
	u32 code_64_bit;
	u64 code_base;
};

// Reads the privilege of a vCPU. Returns the address of its VMCB, if it has one.
INLINE u64 read_privilege(u64 vcpu, struct privilege *privilege)
{
	if (options.vendor == VENDOR_SVM) {
		u64 vmcb = kernel_u64(vcpu + options.svm_vmcb);
		struct vmcb_segment code = {};
		probe_read_kernel(&code, sizeof(code), vmcb + options.vmcb_cs);
		privilege->code_64_bit = code.attributes >> 9 & 1;
		privilege->code_base = code.base;
		privilege->cpl = kernel_u8(vmcb + options.vmcb_cpl);
		return vmcb;
	}
	// CS is the second segment.
	struct kvm_segment code = {};
	probe_read_kernel(&code, sizeof(code), vcpu + options.pvm_segments + 24);
	privilege->code_64_bit = code.l;
	privilege->code_base = code.base;
	privilege->cpl = kernel_u32(vcpu + options.pvm_cpl);
	return 0;
}

// Leaves in a record the registers that KVM has in its memory although the processor keeps the guest's: those that its
// assembler code saves at each exit, those whose writes it always intercepts, and RIP where its bit is set. The bit is
// cleared at each exit, before interrupts are on, and set where KVM reads RIP from the processor
// (vmx_vcpu_enter_exit() and vmx_cache_reg(), arch/x86/kvm/vmx/vmx.c, Linux 5.15 to 6.16).
INLINE void keep_partial(struct record *record, u64 vcpu)
{
	u32 available = kernel_u32(vcpu + options.vcpu_available);
	record->registers = available & options.rip_available ? PARTIAL : NO_RIP;
	if (record->registers == NO_RIP)
		record->rip = 0;
	record->gpr[4] = 0;
	record->rflags = 0;
	record->cr3 = 0;
	record->code_base = 0;
	record->code_64_bit = 0;
	record->cpl = 0;
}

// A vCPU whose thread has just been taken out of the guest is not halted.
INLINE void copy_registers(struct target *target, struct record *record, u32 in_guest)
{
	u64 vcpu = target->vcpu;
	// Each read costs a good part of a microsecond on some processors, whatever its size.
	probe_read_kernel(record->block, sizeof(record->block), vcpu + options.vcpu_regs);
	__builtin_memcpy(record->gpr, record->block, sizeof(record->gpr));
	record->rip = vcpu_register(record, vcpu, options.vcpu_rip);
	record->cr0 = vcpu_register(record, vcpu, options.vcpu_cr0);
	record->cr2 = vcpu_register(record, vcpu, options.vcpu_cr2);
	record->cr3 = vcpu_register(record, vcpu, options.vcpu_cr3);
	record->cr4 = vcpu_register(record, vcpu, options.vcpu_cr4);
	record->efer = vcpu_register(record, vcpu, options.vcpu_efer);
	record->mp_state = in_guest ? 0 : kernel_u32(vcpu + options.vcpu_mp_state);
	record->nested = options.vcpu_nested != ABSENT && kernel_u64(vcpu + options.vcpu_nested) != 0;
	record->registers = ALL_REGISTERS;
	if (options.partial) {
		keep_partial(record, vcpu);
		return;
	}
	struct privilege privilege = {};
	u64 vmcb = read_privilege(vcpu, &privilege);
	record->code_64_bit = privilege.code_64_bit;
	record->code_base = privilege.code_base;
	record->cpl = privilege.cpl;
	if (options.vendor == VENDOR_SVM) {
		record->rflags = kernel_u64(vmcb + options.vmcb_rflags);
		record->fs_base = kernel_u64(vmcb + options.vmcb_fs_base);
		// With nested paging, KVM copies these two later.
		if (kernel_u64(vmcb + options.vmcb_nested_paging) & 1) {
			// KVM has its own idea of a CR0 whose writes it intercepts.
			if (!(kernel_u32(vmcb + options.vmcb_intercepts) & INTERCEPT_CR0_WRITE))
				record->cr0 = kernel_u64(vmcb + options.vmcb_cr0);
			record->cr3 = kernel_u64(vmcb + options.vmcb_cr3);
		}
	} else {
		record->rflags = kernel_u64(vcpu + options.pvm_rflags);
	}
}

// Copies the stack of this thread's user code, as far as its pages are present; returns the number of bytes.
INLINE u32 copy_user_stack(struct host_stack *stack)
{
	u64 from = stack->registers[PT_REGS_SP / 8] - RED_ZONE;
	u64 done = 0;
	NO_UNROLL
	for (u32 i = 0; i <= HOST_BYTES / PAGE; i++) {
		u64 bytes = PAGE - ((from + done) & (PAGE - 1));
		HIDE(bytes);
		HIDE(done);
		if (done >= HOST_BYTES || bytes == 0 || bytes > PAGE)
			break;
		if (probe_read_user(stack->user + done, bytes, from + done))
			break;
		done += bytes;
	}
	return done;
}

// Copies the stacks of this thread: the functions of the kernel, with the program that asks, and what the user code has
// below them. With an interrupt that has just taken the CPU out of the guest, the kernel has no stack for get_stack()
// (perf_guest_state() in perf_callchain_kernel(), arch/x86/events/core.c, Linux 5.17 to 6.18), but one of a task, without
// the scheduler's functions.
INLINE void take_stack(void *context, struct host_stack *stack, u32 in_guest)
{
	void *task = get_current_task_btf();
	stack->version++;
	// x86 keeps the order of stores.
	asm volatile("" ::: "memory");
	stack->time_ns = ktime_get_ns();
	if (in_guest)
		stack->kernel_bytes = get_task_stack(task, stack->kernel, sizeof(stack->kernel), 0);
	else
		stack->kernel_bytes = get_stack(context, stack->kernel, sizeof(stack->kernel), 0);
	probe_read_kernel(stack->registers, sizeof(stack->registers), (u64)task_pt_regs(task));
	stack->user_bytes = copy_user_stack(stack);
	asm volatile("" ::: "memory");
	stack->version++;
}

struct arguments {
	u64 argument[2];
};

// Takes a sample; returns its outcome.
static __attribute__((noinline)) u32 take_sample(struct arguments *arguments)
{
	u32 index = arguments->argument[0];
	struct target *target = map_lookup(&targets, &index);
	struct record *record = map_lookup(&records, &index);
	if (!target || !record)
		return 0;
	u64 task = target->task;
	u64 current_task = get_current_task();
	record->time_ns = ktime_get_ns();
	record->words = 0;
	record->pieces = 0;
	record->smalls = 0;
	record->pages = 0;
	record->missing = 0;
	record->fs_base = 0;
	record->process_root = 0;
	NO_UNROLL
	for (u32 i = 0; i < TABLES; i++)
		record->table[i].table = 0;
	record->preempted = 0;
	record->in_run = 0;
	record->exit_reason = 0;
	// Another thread may have the memory by now. Its start is another one.
	if (kernel_u64(task + options.task_start) != target->start)
		return GONE;
	// A thread is in an ioctl of a vCPU while the vCPU waits for the thread's preemptions. That proves the vCPU, too.
	u32 in_run = kernel_u64(task + options.task_notifiers) == target->vcpu + options.vcpu_notifier;
	record->in_run = in_run;
	if (current_task != task) {
		// The memory of a task that has ended stays as it was for some time.
		if (kernel_u32(task + options.task_exit))
			return GONE;
		record->cpu = kernel_u32(task + options.task_cpu);
		u64 arrived = kernel_u64(task + options.task_arrived);
		if (kernel_u8(task + options.task_on_cpu))
			return ELSEWHERE;
		u32 blocked = kernel_u32(task + options.task_state);
		copy_registers(target, record, 0);
		// It has got a CPU meanwhile: the registers may be those of two exits.
		if (kernel_u64(task + options.task_arrived) != arrived) {
			record->cpu = kernel_u32(task + options.task_cpu);
			return ELSEWHERE;
		}
		if (blocked) {
			if (!in_run)
				record->exit_reason = kernel_u32(kernel_u64(target->vcpu + options.vcpu_run) + RUN_EXIT_REASON);
			return BLOCKED;
		}
		u64 queued = kernel_u64(task + options.task_queued);
		record->preempted = queued && queued == kernel_u64(current_task + options.task_arrived) &&
				    kernel_u32(current_task + options.task_tgid) == options.asker;
		return QUEUED;
	}
	record->cpu = get_smp_processor_id();
	u32 in_guest = in_run && kernel_u32(task + options.task_flags) & IN_GUEST;
	struct host_stacks *host = options.host_stacks ? map_lookup(&stacks, &index) : 0;
	if (host)
		take_stack(arguments, &host->ticked, in_guest);
	if (!in_run)
		return VMM;
	copy_registers(target, record, in_guest);
	copy_memory(index);
	copy_frames(index);
	return in_guest ? GUEST : KVM;
}

// CPUs of a host, at most (NR_CPUS_RANGE_END, arch/x86/Kconfig, Linux 5.10 to 6.18). A power of two.
#define CPUS 8192

// CPUs that are taking a sample.
static volatile u8 busy[CPUS];

// Argument: the vCPU's index.
//
// A sample that an interrupt takes may interrupt one that is taken on the same CPU without an interrupt. Since Linux 6.13
// all runs of a program on a CPU have one stack (bpf_enable_priv_stack, kernel/bpf/verifier.c), and
// BPF_PROG_TEST_RUN does not exclude this: the first sample would go on with the other's vCPU. So this function has
// nothing on its stack, and ends before anything else has.
SEC("raw_tp") int tick(struct arguments *arguments)
{
	u32 cpu = get_smp_processor_id() & (CPUS - 1);
	if (busy[cpu])
		return BUSY;
	busy[cpu] = 1;
	u32 outcome = take_sample(arguments);
	busy[cpu] = 0;
	return outcome;
}

SEC("raw_tp") int peek(struct arguments *arguments)
{
	u32 zero = 0;
	u8 *into = map_lookup(&peeked, &zero);
	u64 bytes = arguments->argument[1];
	HIDE(bytes);
	if (!into || bytes == 0 || bytes > PAGE)
		return 2;
	// 0 is what the kernel returns if it does not run the program.
	return probe_read_kernel(into, bytes, arguments->argument[0]) ? 2 : 1;
}

// Context of the iterator over files, with its first two parts as addresses (struct bpf_iter__task_file,
// kernel/bpf/task_iter.c, 5.8).
struct file_context {
	struct {
		void *seq;
	} *meta;
	u64 task;
	u64 fd;
	u64 file;
};

struct file_row {
	u64 fd;
	u64 file;
	u64 task;
};

SEC("iter/task_file") int files(struct file_context *context)
{
	struct file_row row = {};
	// Copied as numbers, from which the verifier expects nothing.
	probe_read_kernel(&row.task, sizeof(row.task), (u64)&context->task);
	probe_read_kernel(&row.file, sizeof(row.file), (u64)&context->file);
	probe_read_kernel(&row.fd, 4, (u64)&context->fd);
	if (!row.task || !row.file || kernel_u32(row.task + options.task_tgid) != options.process)
		return 0;
	seq_write(context->meta->seq, &row, sizeof(row));
	return 0;
}

// Returns the bucket of a duration.
INLINE u32 bucket(u64 ns)
{
	u32 power = 0;
	u64 rest = ns;
	if (ns >> MOST_BITS)
		return BUCKETS - 1;
	if (ns < 1ull << LEAST_BITS)
		return 0;
	if (rest >> 32) {
		power += 32;
		rest >>= 32;
	}
	if (rest >> 16) {
		power += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		power += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		power += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		power += 2;
		rest >>= 2;
	}
	power += rest >> 1;
	return (power - LEAST_BITS) * 8 + (ns >> (power - 3) & 7) + 1;
}

// Returns the note that is being written, or comes next.
INLINE struct note *next_note(u32 index, struct notes *noted)
{
	u32 row = index * NOTES + (noted->written & (NOTES - 1));
	return map_lookup(&note_rows, &row);
}

// Ends the note of an exit that took `ns`, if it has one.
INLINE void end_note(u32 index, struct exit_row *exit, u64 ns)
{
	struct notes *noted = map_lookup(&notes, &index);
	if (!noted)
		return;
	u64 weight = noted->weight;
	noted->decided = 0;
	if (!weight)
		return;
	noted->weight = 0;
	if (noted->lost) {
		exit->unnoted += weight;
		exit->unnoted_ns += weight * ns;
		return;
	}
	struct note *note = next_note(index, noted);
	if (!note)
		return;
	note->key = exit->key;
	note->ns = ns;
	note->weight = weight;
	// vprof reads the note from here on. x86 keeps the order of stores.
	asm volatile("" ::: "memory");
	noted->written++;
}

// Counts an exit that took `ns`.
GLOBAL u64 count_exit(u32 index, u64 key, u64 ns)
{
	if (!options.exits)
		return 0;
	u64 first = key * 0x9e3779b97f4a7c15ull >> 40;
	u32 rows = index * (EXITS + 1), at = rows + EXITS;
	struct exit_row *exit = 0;
	NO_UNROLL
	for (u32 i = 0; i < EXIT_STEPS; i++) {
		u32 next = rows + ((first + i) & (EXITS - 1));
		struct exit_row *row = map_lookup(&exits, &next);
		if (!row)
			return 0;
		if (row->key == 0 || row->key == key) {
			row->key = key;
			exit = row;
			break;
		}
	}
	if (!exit) {
		exit = map_lookup(&exits, &at);
		if (!exit)
			return 0;
		exit->key = KEY(KEY_OTHER, ~0ull);
	}
	u64 part = bucket(ns);
	HIDE(part);
	if (part >= BUCKETS)
		return 0;
	exit->times[part]++;
	exit->total_ns += ns;
	if (ns > exit->max_ns)
		exit->max_ns = ns;
	exit->count++;
	end_note(index, exit, ns);
	return 1;
}

// Returns the index of the vCPU whose thread this is; ABSENT if there is none.
INLINE u32 index_of(u64 task)
{
	u32 *index = map_lookup(&followed, &task);
	return index ? *index : ABSENT;
}

// Copies a part of guest physical memory into the note that is being written. Returns its first word.
GLOBAL u64 note_part(u32 index, u64 phys, u64 bytes)
{
	struct target *target = map_lookup(&targets, &index);
	struct notes *noted = map_lookup(&notes, &index);
	struct note *note = noted ? next_note(index, noted) : 0;
	if (!target || !note)
		return 0;
	u64 from = host_address(target, phys, bytes);
	u64 parts = note->parts;
	u64 used = note->bytes;
	HIDE(bytes);
	HIDE(parts);
	HIDE(used);
	if (!from || parts >= NOTE_PARTS || used > NOTE_BYTES || bytes < 8 || bytes > NOTE_PART)
		return 0;
	if (probe_read_user(note->data + used, bytes, from))
		return 0;
	note->part[parts].phys = phys;
	note->part[parts].bytes = bytes;
	note->part[parts].at = used;
	note->parts = parts + 1;
	note->bytes = used + ((bytes + 7) & ~7ull);
	u64 first;
	__builtin_memcpy(&first, note->data + used, sizeof(first));
	return first;
}

// Copies some parts of a task into the note.
INLINE void note_spans(u32 index, u64 phys, struct span *spans, u32 count)
{
	NO_UNROLL
	for (u32 i = 0; i < SPANS; i++) {
		if (i >= count)
			break;
		// Whole words: a part has at least one.
		u64 from = phys + spans[i].offset;
		u64 end = from + spans[i].bytes;
		from &= ~7ull;
		note_part(index, from, ((end + 7) & ~7ull) - from);
	}
}

// Copies what shows the current task into the note.
GLOBAL u64 note_task(u32 index)
{
	struct target *target = map_lookup(&targets, &index);
	if (!target)
		return 0;
	struct guest *guest = &target->guest;
	note_part(index, guest->preempt_count & ~7ull, 8);
	if (guest->apic_id)
		note_part(index, guest->apic_id & ~7ull, 8);
	u64 task = note_part(index, guest->current_task, 8);
	if (!is_kernel(task))
		return 0;
	u64 phys = direct(guest, task);
	note_spans(index, phys, guest->task, guest->task_spans);
	u64 leader = note_part(index, phys + guest->task_leader, 8);
	if (is_kernel(leader))
		note_spans(index, direct(guest, leader), guest->leader, guest->leader_spans);
	return 1;
}

// Writes the guest's registers and its current task into the note that comes next.
GLOBAL u64 note_guest(u32 index, u64 now)
{
	struct target *target = map_lookup(&targets, &index);
	struct notes *noted = map_lookup(&notes, &index);
	struct note *note = noted ? next_note(index, noted) : 0;
	if (!target || !note)
		return 0;
	u64 vcpu = target->vcpu;
	note->parts = 0;
	note->bytes = 0;
	note->rip = kernel_u64(vcpu + options.vcpu_rip);
	note->efer = kernel_u64(vcpu + options.vcpu_efer);
	note->time_ns = now;
	note->nested = options.vcpu_nested != ABSENT && kernel_u64(vcpu + options.vcpu_nested) != 0;
	struct privilege privilege = {};
	u64 vmcb = read_privilege(vcpu, &privilege);
	note->cr3 = kernel_u64(options.vendor == VENDOR_SVM && kernel_u64(vmcb + options.vmcb_nested_paging) & 1 ?
				       vmcb + options.vmcb_cr3 :
				       vcpu + options.vcpu_cr3);
	note->cpl = privilege.cpl;
	note->code_64_bit = privilege.code_64_bit;
	note->code_base = privilege.code_base;
	// EFER.LMA.
	if (!target->guest.known || !(note->efer & (1 << 10)))
		return 0;
	u64 version = *(volatile u64 *)&target->end_version;
	note_task(index);
	// vprof changes the target from its beginning to its end.
	if (*(volatile u64 *)&target->version != version)
		note->parts = 0;
	return 1;
}

// Returns the number of exits that a note of this one is for: 0 if it is not to be noted. It is decided at random, so
// that the sum of these numbers is that of the exits, for each part of them.
INLINE u32 drawn_weight(struct notes *noted, u64 now)
{
	u64 elapsed = now - noted->window_ns;
	if (elapsed >= SECOND) {
		if (elapsed >= 2 * SECOND)
			noted->shift = 0;
		else if (noted->in_window < NOTE_LIMIT / 4 && noted->shift)
			noted->shift--;
		noted->window_ns = now;
		noted->in_window = 0;
	}
	u32 shift = noted->shift & 31;
	u32 weight = 1u << shift;
	if (shift && get_prandom_u32() & (weight - 1))
		return 0;
	noted->in_window++;
	if (noted->in_window >= NOTE_LIMIT) {
		noted->in_window = NOTE_LIMIT / 2;
		if (shift < NOTE_SHIFT)
			noted->shift = shift + 1;
	}
	return weight;
}

// Notes an exit, or decides not to.
INLINE void begin_note(u32 index, u64 now)
{
	struct notes *noted = options.exits ? map_lookup(&notes, &index) : 0;
	u64 *read = map_lookup(&taken, &index);
	if (!noted || !read)
		return;
	u64 next = *(volatile u64 *)read;
	// A note needs all registers.
	u32 weight = next && !options.partial ? drawn_weight(noted, now) : 0;
	noted->decided = 1;
	noted->weight = weight;
	if (!weight)
		return;
	noted->lost = noted->written - (next - 1) >= NOTES;
	if (!noted->lost)
		note_guest(index, now);
}

SEC("raw_tp") int left(struct arguments *arguments)
{
	u32 index = index_of(get_current_task());
	struct target *target = map_lookup(&targets, &index);
	struct course *course = map_lookup(&courses, &index);
	if (!target || !course)
		return 0;
	u64 vmcb = kernel_u64(target->vcpu + options.svm_vmcb);
	course->left_key = KEY(KEY_KVM, (u64)kernel_u32(vmcb + options.vmcb_exit_code));
	course->left_ns = ktime_get_ns();
	course->exits++;
	begin_note(index, course->left_ns);
	return 0;
}

// Ends the VMM's turn.
INLINE void end_turn(u32 index, struct course *course, u64 now)
{
	u64 ns = now - course->returned_ns;
	course->vmm_ns += ns;
	course->returned_ns = 0;
	count_exit(index, course->returned_key, ns);
}

SEC("raw_tp") int entered(struct arguments *arguments)
{
	u32 index = index_of(get_current_task());
	struct course *course = map_lookup(&courses, &index);
	if (!course)
		return 0;
	u64 now = ktime_get_ns();
	if (course->returned_ns)
		end_turn(index, course, now);
	else if (course->left_ns)
		count_exit(index, course->left_key, now - course->left_ns);
	course->left_ns = 0;
	return 0;
}

// Returns the key of the reason for which KVM_RUN has returned.
INLINE u64 returned_key(u64 run, s32 error)
{
	u32 reason = kernel_u32(run + RUN_EXIT_REASON);
	if (error == -EINTR || reason == KVM_EXIT_INTR)
		return KEY(KEY_INTERRUPTED, 0);
	if (reason == KVM_EXIT_IO) {
		u64 port = kernel_u32(run + RUN_IO_PORT) & 0xffff;
		return KEY(kernel_u8(run + RUN_IO_DIRECTION) ? KEY_PORT_WRITE : KEY_PORT_READ, port);
	}
	if (reason == KVM_EXIT_MMIO) {
		u64 address = kernel_u64(run + RUN_MMIO_ADDRESS);
		return KEY(kernel_u8(run + RUN_MMIO_IS_WRITE) ? KEY_MEMORY_WRITE : KEY_MEMORY_READ, address);
	}
	if (reason == KVM_EXIT_HLT)
		return KEY(KEY_HALT, 0);
	if (reason == KVM_EXIT_SHUTDOWN)
		return KEY(KEY_SHUTDOWN, 0);
	return KEY(KEY_OTHER, (u64)reason);
}

// Arguments of kvm_userspace_exit: the reason, and the result.
SEC("raw_tp") int returned(struct arguments *arguments)
{
	u32 index = index_of(get_current_task());
	struct target *target = map_lookup(&targets, &index);
	struct course *course = map_lookup(&courses, &index);
	if (!target || !course)
		return 0;
	u64 now = ktime_get_ns();
	struct notes *noted = options.exits ? map_lookup(&notes, &index) : 0;
	// A KVM_RUN that has not entered the guest, or a KVM that does not show entries.
	u64 end = options.vendor == VENDOR_SVM ? now : course->loaded_ns;
	if (course->returned_ns && end)
		end_turn(index, course, end);
	else if (course->returned_ns && noted)
		noted->decided = 0;
	course->loaded_ns = 0;
	if (noted && !noted->decided)
		begin_note(index, now);
	course->returned_key = returned_key(kernel_u64(target->vcpu + options.vcpu_run), arguments->argument[1]);
	course->returned_ns = now;
	course->left_ns = 0;
	course->returns++;
	return 0;
}

// Argument of kvm_fpu: whether the guest's registers are loaded. KVM_RUN does so at its begin, and so do other requests
// of the VMM: the last time before a return is that of KVM_RUN.
SEC("raw_tp") int loaded(struct arguments *arguments)
{
	u32 index = index_of(get_current_task());
	struct course *course = map_lookup(&courses, &index);
	if (course && (u32)arguments->argument[0] && course->returned_ns)
		course->loaded_ns = ktime_get_ns();
	return 0;
}

// Counts what a vCPU's thread has waited since the last time for the process that had the CPU.
INLINE void settle(struct course *course, u64 task)
{
	u64 delay = kernel_u64(task + options.task_delay);
	u64 waited = delay - course->delay_ns;
	course->delay_ns = delay;
	if (course->off & OFF_VMM)
		course->vmm_waited_ns += waited;
	u64 row = course->taker;
	HIDE(row);
	if (row == 0 || row > TAKERS + 1 || waited == 0)
		return;
	course->takers[row - 1].count++;
	course->takers[row - 1].total_ns += waited;
	course->taker = 0;
}

// Notes the process that has the CPU instead of a vCPU's thread.
GLOBAL u64 note_taker(u32 index, u64 task)
{
	struct course *course = map_lookup(&courses, &index);
	if (!course)
		return 0;
	u32 tgid = kernel_u32(task + options.task_tgid);
	u64 row = TAKERS;
	course->taker = 0;
	// The idle task is no process.
	if (tgid == 0)
		return 0;
	NO_UNROLL
	for (u32 i = 0; i < TAKERS; i++) {
		if (!course->takers[i].used || course->takers[i].tgid == tgid) {
			row = i;
			break;
		}
	}
	HIDE(row);
	if (row > TAKERS)
		return 0;
	struct taker *taker = &course->takers[row];
	// The main thread has the name of the process, which execve changes.
	if (row != TAKERS && (!taker->used || kernel_u32(task + options.task_pid) == tgid))
		probe_read_kernel(taker->comm, sizeof(taker->comm), task + options.task_comm);
	if (!taker->used) {
		taker->tgid = row == TAKERS ? 0 : tgid;
		taker->used = 1;
	}
	course->taker = row + 1;
	return 1;
}

GLOBAL u64 left_cpu(u32 index, u64 task, u64 next, u64 preempted)
{
	struct target *target = map_lookup(&targets, &index);
	struct course *course = map_lookup(&courses, &index);
	if (!target || !course)
		return 0;
	settle(course, task);
	u32 blocked = !preempted && kernel_u32(task + options.task_state) != 0;
	u32 in_run = kernel_u64(task + options.task_notifiers) == target->vcpu + options.vcpu_notifier;
	// A vCPU that KVM has blocked is halted, or was not started.
	u32 halted = kernel_u32(target->vcpu + options.vcpu_mp_state) != 0;
	course->off = (in_run ? (blocked && !halted ? OFF_PAGE : OFF_KVM) : OFF_VMM) | (blocked ? OFF_BLOCKED : 0);
	course->off_ns = ktime_get_ns();
	course->taker = 0;
	if (!blocked)
		note_taker(index, next);
	return 1;
}

GLOBAL u64 got_cpu(u32 index, u64 previous)
{
	struct course *course = map_lookup(&courses, &index);
	if (!course || !course->off_ns)
		return 0;
	u64 ns = ktime_get_ns() - course->off_ns;
	if (course->off & OFF_VMM)
		course->vmm_off_ns += ns;
	if (course->off & OFF_PAGE)
		course->page_ns += ns;
	course->off_ns = 0;
	// It may have waited since it was woken.
	if (course->off & OFF_BLOCKED)
		note_taker(index, previous);
	return 1;
}

// Arguments of sched_switch: whether it is a preemption, the task that leaves the CPU, the next one.
struct switch_arguments {
	u64 preempted;
	u64 previous;
	u64 next;
};

SEC("raw_tp") int switched(struct switch_arguments *arguments)
{
	u64 previous = arguments->previous;
	u64 next = arguments->next;
	u32 index = index_of(previous);
	if (index != ABSENT) {
		left_cpu(index, previous, next, arguments->preempted & 1);
		struct host_stacks *host = options.host_stacks ? map_lookup(&stacks, &index) : 0;
		if (host)
			take_stack(arguments, &host->left, 0);
	}
	index = index_of(next);
	if (index != ABSENT)
		got_cpu(index, previous);
	return 0;
}

// The kernel fills a trace point's record before this runs, if a program is attached to it on some CPU: KVM reads RIP
// from the processor for that (kvm_exit, arch/x86/kvm/trace.h, with interrupts off). 0 drops the record.
SEC("tracepoint/kvm/kvm_exit") int cached(void *context)
{
	return 0;
}
