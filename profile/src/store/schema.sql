-- Schema 11 of a vprof profile. Described for users in docs/profile.md.
--
-- Addresses, CR3 and the stack pointer are unsigned 64-bit numbers in SQLite's signed integers: an address of the
-- kernel's half is negative; printf('%x', address) shows it as is. Times are nanoseconds.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,     -- what docs/profile.md lists; anything else is the command line's
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Virtual machines of a merged profile: one for each profile that was merged. Empty in a profile that is not merged.
CREATE TABLE vm (
    id        INTEGER PRIMARY KEY,  -- 1 and up, in the order of their runs' starts
    name      TEXT NOT NULL,
    host      TEXT,                 -- name of the host; NULL: not known
    profile   TEXT NOT NULL,        -- file name of the profile
    from_ns   INTEGER NOT NULL,     -- start of its run, since the start of the first one
    to_ns     INTEGER NOT NULL,     -- its end
    rate_hz   REAL NOT NULL,        -- as in meta, of its run
    clock     TEXT NOT NULL,        -- the same
    one_clock INTEGER NOT NULL      -- 1: one clock ticks all its vCPUs
);

-- Table meta of each profile that was merged.
CREATE TABLE vm_meta (
    vm    INTEGER NOT NULL,  -- vm.id
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (vm, key)
) WITHOUT ROWID;

-- The whole run up to now. The seven times add up to the vCPU's wall time.
CREATE TABLE vcpu (
    id         INTEGER PRIMARY KEY,  -- 0 and up
    vm         INTEGER,              -- vm.id; NULL: the profile is not merged
    number     INTEGER NOT NULL,     -- its number in its virtual machine, 0 and up
    samples    INTEGER NOT NULL,     -- recorded
    lost       INTEGER NOT NULL,     -- not recorded: the ring was full
    exits      INTEGER NOT NULL,     -- returns of KVM_RUN
    guest_ns   INTEGER NOT NULL,     -- executing the guest
    halted_ns  INTEGER NOT NULL,     -- the guest has executed HLT, or waits for its start
    waiting_ns INTEGER NOT NULL,     -- ready to run, without a CPU of the host
    kvm_ns     INTEGER NOT NULL,     -- entering and leaving KVM_RUN with a halted guest
    vmm_ns     INTEGER NOT NULL,     -- serving exits
    sampler_ns INTEGER NOT NULL,     -- reading samples, from the exit to the next entry
    paused_ns  INTEGER NOT NULL      -- held by vprof
);

-- The same times in segments of about a fifth of a second.
CREATE TABLE microstate (
    vcpu       INTEGER NOT NULL,  -- vcpu.id
    time_ns    INTEGER NOT NULL,  -- end of the segment, since the run's start
    guest_ns   INTEGER NOT NULL,
    halted_ns  INTEGER NOT NULL,
    waiting_ns INTEGER NOT NULL,
    kvm_ns     INTEGER NOT NULL,
    vmm_ns     INTEGER NOT NULL,
    sampler_ns INTEGER NOT NULL,
    paused_ns  INTEGER NOT NULL,
    PRIMARY KEY (vcpu, time_ns)
) WITHOUT ROWID;

-- Changes of the sampling rate during the run; before the first it was meta.rate_hz.
CREATE TABLE rate (
    vcpu    INTEGER NOT NULL,  -- vcpu.id
    time_ns INTEGER NOT NULL,  -- since when, since the run's start
    rate_hz REAL NOT NULL,     -- mean ticks per second; 0: not sampled
    PRIMARY KEY (vcpu, time_ns)
) WITHOUT ROWID;

-- Exits to vprof by reason and address, from the exit to the next entry.
CREATE TABLE exit (
    id       INTEGER PRIMARY KEY,  -- 1 and up
    vcpu     INTEGER NOT NULL,     -- vcpu.id
    reason   TEXT NOT NULL,        -- like port write
    address  INTEGER,              -- port, guest physical address, or number of another reason
    device   TEXT,                 -- what answers there
    count    INTEGER NOT NULL,
    total_ns INTEGER NOT NULL,
    max_ns   INTEGER NOT NULL,
    p50_ns   INTEGER NOT NULL,     -- median
    p99_ns   INTEGER NOT NULL,     -- 99th percentile
    times    TEXT NOT NULL         -- JSON: [shortest time of a bucket in ns, how many], rising
);

-- Exits of an attached vCPU by the guest's code that they interrupted.
CREATE TABLE exit_site (
    "exit"         INTEGER NOT NULL,  -- exit.id
    mode           INTEGER NOT NULL,  -- mode.id
    instance       INTEGER NOT NULL,  -- instance.id; 0: not known
    frame          INTEGER NOT NULL,  -- frame.id; 0: exits without a place, which share a row
    noted          INTEGER NOT NULL,  -- exits whose place was noted
    count          INTEGER NOT NULL,  -- exits that these are for
    total_ns       INTEGER NOT NULL,  -- their time, from the exit to the next entry
    count_error    REAL NOT NULL,     -- standard error of count; 0: all were noted
    total_error_ns REAL NOT NULL,     -- standard error of total_ns
    PRIMARY KEY ("exit", mode, instance, frame)
) WITHOUT ROWID;

-- KVM's own counters of a vCPU, at the end.
CREATE TABLE kvm_counter (
    vcpu  INTEGER NOT NULL,  -- vcpu.id
    name  TEXT NOT NULL,     -- KVM's name
    value INTEGER NOT NULL,  -- ns where the name ends in _ns
    grows INTEGER NOT NULL,  -- 1: only grows; 0: a present value or a peak
    PRIMARY KEY (vcpu, name)
) WITHOUT ROWID;

-- Waits of the thread of an attached vCPU for a CPU, by the process of the host that had it.
CREATE TABLE host_wait (
    vcpu     INTEGER NOT NULL,  -- vcpu.id
    pid      INTEGER NOT NULL,  -- process of the host; 0: all that have no row of their own
    name     TEXT NOT NULL,     -- its name
    count    INTEGER NOT NULL,
    total_ns INTEGER NOT NULL,
    PRIMARY KEY (vcpu, pid)
) WITHOUT ROWID;

-- Interrupts that devices have raised.
CREATE TABLE injected (
    device TEXT NOT NULL,
    vector INTEGER,           -- the guest's interrupt vector; NULL: a line of the I/O APIC
    count  INTEGER NOT NULL
);

-- CPU accounting of each process by the guest's kernel, at the first and the last reading.
CREATE TABLE rusage (
    instance       INTEGER NOT NULL,  -- instance.id
    first          INTEGER NOT NULL,  -- 1: as the first reading found it, of what was there then; 0: as the last one
    time_ns        INTEGER NOT NULL,  -- when it was read, since the run's start
    user_ns        INTEGER NOT NULL,  -- as getrusage and /proc/PID/stat report it
    system_ns      INTEGER NOT NULL,
    tick_user_ns   INTEGER NOT NULL,  -- utime of all threads
    tick_system_ns INTEGER NOT NULL,  -- stime of all threads
    runtime_ns     INTEGER NOT NULL,  -- sum_exec_runtime of all threads
    run_delay_ns   INTEGER NOT NULL,  -- living threads on the guest's run queues
    voluntary      INTEGER NOT NULL,  -- context switches
    involuntary    INTEGER NOT NULL,
    -- Children that it has waited for, and theirs: getrusage(RUSAGE_CHILDREN)
    children_user_ns      INTEGER NOT NULL,
    children_system_ns    INTEGER NOT NULL,
    children_voluntary    INTEGER NOT NULL,
    children_involuntary  INTEGER NOT NULL,
    children_minor_faults INTEGER NOT NULL,
    children_major_faults INTEGER NOT NULL,
    PRIMARY KEY (instance, first)
) WITHOUT ROWID;

-- The same of the threads of processes with several, and first of all threads.
CREATE TABLE thread_time (
    instance       INTEGER NOT NULL,  -- instance.id
    tid            INTEGER NOT NULL,
    first          INTEGER NOT NULL,  -- as in rusage
    time_ns        INTEGER NOT NULL,
    tick_user_ns   INTEGER NOT NULL,
    tick_system_ns INTEGER NOT NULL,
    runtime_ns     INTEGER NOT NULL,
    PRIMARY KEY (instance, tid, first)
) WITHOUT ROWID;

-- CPU accounting of each CPU by the guest's kernel, as in /proc/stat.
CREATE TABLE cpu_time (
    cpu        INTEGER NOT NULL,  -- the guest's number
    first      INTEGER NOT NULL,  -- as in rusage
    time_ns    INTEGER NOT NULL,  -- when it was read, since the run's start
    user_ns    INTEGER NOT NULL,
    nice_ns    INTEGER NOT NULL,
    system_ns  INTEGER NOT NULL,
    softirq_ns INTEGER NOT NULL,
    irq_ns     INTEGER NOT NULL,
    idle_ns    INTEGER NOT NULL,
    iowait_ns  INTEGER NOT NULL,
    steal_ns   INTEGER NOT NULL,
    PRIMARY KEY (cpu, first)
) WITHOUT ROWID;

CREATE TABLE instance (
    id            INTEGER PRIMARY KEY,  -- 1 and up
    vm            INTEGER,              -- vm.id; NULL: the profile is not merged
    pid           INTEGER NOT NULL,     -- thread group id, initial pid namespace
    start_ns      INTEGER NOT NULL,     -- start since guest boot
    comm          TEXT NOT NULL,        -- program name (the last one, where an exec changed it)
    number        INTEGER NOT NULL,     -- 0, 1, 2 ... per comm, never reused
    kernel_thread INTEGER NOT NULL,     -- 1: kernel thread or idle task
    parent_pid    INTEGER,              -- the parent's process id; NULL: not read
    command       TEXT,                 -- command line, arguments separated by blanks; NULL: not read
    exe           INTEGER,              -- file.id of the program
    cgroup        INTEGER               -- cgroup.id
);

CREATE TABLE thread (
    instance INTEGER NOT NULL,  -- instance.id
    tid      INTEGER NOT NULL,  -- initial pid namespace
    comm     TEXT NOT NULL,     -- the thread's own name (the last one)
    PRIMARY KEY (instance, tid)
) WITHOUT ROWID;

CREATE TABLE cgroup (
    id        INTEGER PRIMARY KEY,  -- 1 and up
    path      TEXT NOT NULL,        -- from the root of the hierarchy
    unit      TEXT,                 -- systemd unit in the path
    container TEXT                  -- container in the path: id or name
);

CREATE TABLE file (
    id         INTEGER PRIMARY KEY,  -- 1 and up
    path       TEXT NOT NULL,        -- in the guest
    device     INTEGER NOT NULL,     -- major << 20 | minor
    inode      INTEGER NOT NULL,
    filesystem TEXT NOT NULL,        -- like ext4
    deleted    INTEGER NOT NULL,     -- 1: removed, without a name
    build_id   TEXT,                 -- hexadecimal
    read_from  TEXT,                 -- where its bytes were found, or why not
    named_by   TEXT                  -- what names its functions
);

-- Executable memory of processes.
CREATE TABLE mapping (
    instance    INTEGER NOT NULL,  -- instance.id
    start       INTEGER NOT NULL,
    end         INTEGER NOT NULL,  -- after the last byte
    file        INTEGER,           -- file.id; NULL: no file
    file_offset INTEGER NOT NULL,
    PRIMARY KEY (instance, start, end, file_offset)
) WITHOUT ROWID;

CREATE TABLE frame (
    id       INTEGER PRIMARY KEY,  -- 1 and up; one address may have several rows
    address  INTEGER NOT NULL,     -- instruction: virtual, or the ELF file's own where file is set
    call     INTEGER NOT NULL,     -- 1: a return address, the call is right before it
    kind     TEXT NOT NULL,        -- kernel, user, managed, or reason: no code, symbol says why frames are missing
    instance INTEGER,              -- whose address space, for user and managed code without a file
    file     INTEGER,              -- file.id, for user code of a file
    symbol   TEXT,                 -- NULL: not known
    module   TEXT,                 -- kernel module; file name of user code; NULL: kernel image
    offset   INTEGER NOT NULL,     -- bytes from the symbol's start
    source   TEXT,                 -- source file
    line     INTEGER               -- in the source file, from 1
);

-- Functions that the compiler has copied into a frame's function.
CREATE TABLE inlined (
    frame  INTEGER NOT NULL,  -- frame.id
    depth  INTEGER NOT NULL,  -- 0: the innermost
    symbol TEXT NOT NULL,
    source TEXT,              -- of the instruction (depth 0), else of the inlined call
    line   INTEGER,
    PRIMARY KEY (frame, depth)
) WITHOUT ROWID;

-- A tree: equal beginnings of stacks are stored once.
CREATE TABLE stack (
    id     INTEGER PRIMARY KEY,  -- 1 and up, a parent before its children
    parent INTEGER,              -- the caller; NULL: the outermost frame
    frame  INTEGER NOT NULL      -- frame.id
);

-- Machine code of the functions that were sampled most.
CREATE TABLE code (
    start  INTEGER NOT NULL,  -- address of the first byte, counted as frame.address
    file   INTEGER,           -- file.id, for user code; NULL: kernel
    module TEXT,              -- kernel module; NULL: kernel image, or user code
    bytes  BLOB NOT NULL,     -- up to the function's end
    read   TEXT NOT NULL      -- guest memory or file
);
CREATE UNIQUE INDEX code_place ON code (start, coalesce(file, 0), coalesce(module, ''));

CREATE TABLE interrupt (
    id   INTEGER PRIMARY KEY,  -- 1 and up
    kind TEXT NOT NULL,        -- hard, soft or nmi
    name TEXT NOT NULL
);

CREATE TABLE syscall (
    number INTEGER PRIMARY KEY,
    name   TEXT NOT NULL
);

CREATE TABLE mode (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL
);

CREATE TABLE sample (
    id            INTEGER PRIMARY KEY,  -- in the order of writing
    vcpu          INTEGER NOT NULL,     -- vcpu.id
    mode          INTEGER NOT NULL,     -- mode.id
    instance      INTEGER,              -- instance.id; NULL: the task could not be read
    frame         INTEGER NOT NULL,     -- frame.id
    late_ns       INTEGER NOT NULL,     -- how late the tick was served
    time_ns       INTEGER NOT NULL,     -- since the run's start, when the tick was served
    halted        INTEGER NOT NULL,     -- 1: HLT executed, or not yet started
    cpl           INTEGER NOT NULL,     -- 0 to 3
    interrupts_on INTEGER,              -- RFLAGS.IF; NULL: not known
    tid           INTEGER,              -- thread id, initial pid namespace
    preempt_count INTEGER,              -- raw; NULL: could not be read
    rsp           INTEGER NOT NULL,
    cr3           INTEGER NOT NULL,
    stack         INTEGER,              -- stack.id of the innermost frame; NULL: no stack was taken
    syscall       INTEGER,              -- syscall.number that the task was in
    interrupt     INTEGER,              -- interrupt.id that was served
    vcpu_state    TEXT NOT NULL,        -- state of the vCPU when the tick was due: guest, halted, vmm, waiting
    fault         TEXT                  -- page fault that was served: text, data, kernel; NULL: none, or not known
);

-- Stacks of the host: addresses on them. They are in no other table.
CREATE TABLE host_frame (
    id      INTEGER PRIMARY KEY,  -- 1 and up
    kind    TEXT NOT NULL,        -- kernel: of the host, user: of the VMM, or reason: no code, symbol says why frames are missing
    address INTEGER NOT NULL,     -- instruction: virtual, in the host
    call    INTEGER NOT NULL,     -- 1: a return address, the call is right before it
    symbol  TEXT,                 -- NULL: not known
    module  TEXT,                 -- kernel module; file name of the VMM's code; NULL: kernel image, or no file
    offset  INTEGER NOT NULL      -- bytes from the symbol's start
);

-- Stacks of the host: a tree, as in stack.
CREATE TABLE host_stack (
    id     INTEGER PRIMARY KEY,  -- 1 and up, a parent before its children
    parent INTEGER,              -- the caller; NULL: the outermost frame
    frame  INTEGER NOT NULL      -- host_frame.id
);

-- Ticks of the threads of attached vCPUs with their stacks in the host.
CREATE TABLE host_sample (
    vcpu    INTEGER NOT NULL,  -- vcpu.id
    time_ns INTEGER NOT NULL,  -- since the run's start; a sample of the same vCPU and time is of the same tick
    place   TEXT NOT NULL,     -- of the thread: guest, kvm, vmm, waiting, halted
    on_cpu  INTEGER NOT NULL,  -- 1: the thread was on a CPU
    stack   INTEGER,           -- host_stack.id of the innermost frame; NULL: beyond the profile's limit
    PRIMARY KEY (vcpu, time_ns)
) WITHOUT ROWID;

-- Exact mode: what each task did, how long and how often.
CREATE TABLE task_state (
    instance INTEGER NOT NULL,  -- instance.id
    tid      INTEGER NOT NULL,
    state    TEXT NOT NULL,     -- running, interrupted, sampler, runnable, sleep, disk, stopped, zombie, unknown
    wait_reason TEXT NOT NULL,  -- like futex; empty: it did not sleep
    stack    INTEGER NOT NULL,  -- stack.id of what it slept in, kernel and program; 0: none
    ns       INTEGER NOT NULL,
    count    INTEGER NOT NULL,  -- how often the state began
    PRIMARY KEY (instance, tid, state, wait_reason, stack)
) WITHOUT ROWID;

-- Exact mode: runs of tasks on vCPUs in the order of their ends, each with the waits since the task's run before.
CREATE TABLE task_run (
    id             INTEGER PRIMARY KEY,
    vcpu           INTEGER NOT NULL,  -- vcpu.id
    instance       INTEGER NOT NULL,  -- instance.id
    tid            INTEGER NOT NULL,
    from_ns        INTEGER NOT NULL,  -- begin of the run, since the run's start
    wait_ns        INTEGER NOT NULL,  -- before: asleep or stopped
    delay_ns       INTEGER NOT NULL,  -- before: runnable
    running_ns     INTEGER NOT NULL,  -- the next three, from its begin to its end: states as in task_state
    interrupted_ns INTEGER NOT NULL,
    sampler_ns     INTEGER NOT NULL,
    state          TEXT NOT NULL,     -- after the run, as in task_state
    wait_reason    TEXT NOT NULL      -- of that state
);

-- Exact mode: waits of each task for a CPU by length. Their times add up to that of state runnable.
CREATE TABLE task_delay (
    instance    INTEGER NOT NULL,  -- instance.id
    tid         INTEGER NOT NULL,
    woken       INTEGER NOT NULL,  -- 1: since it was woken or has started; 0: since it lost a CPU, or the begin of exact data
    low_ns      INTEGER NOT NULL,  -- shortest wait that counts here: an eighth of a power of two
    count       INTEGER NOT NULL,
    ns          INTEGER NOT NULL,
    max_ns      INTEGER NOT NULL,  -- the longest
    max_from_ns INTEGER NOT NULL,  -- its begin, since the run's start
    PRIMARY KEY (instance, tid, woken, low_ns)
) WITHOUT ROWID;

-- Exact mode: from when to when each task was followed; its states add up to that.
CREATE TABLE task_life (
    instance INTEGER NOT NULL,  -- instance.id
    tid      INTEGER NOT NULL,
    from_ns  INTEGER NOT NULL,  -- since the run's start
    to_ns    INTEGER NOT NULL,
    ended    INTEGER NOT NULL,  -- 1: nothing is left of it
    PRIMARY KEY (instance, tid)
) WITHOUT ROWID;

-- Exact mode: which process reaped which of its children.
CREATE TABLE reaped (
    child   INTEGER PRIMARY KEY,  -- instance.id
    parent  INTEGER NOT NULL,     -- instance.id
    time_ns INTEGER NOT NULL      -- since the run's start
);

-- Exact mode: who woke whom.
CREATE TABLE wakeup (
    "by"      TEXT NOT NULL,     -- task, or interrupt: hard or soft
    waker     INTEGER NOT NULL,  -- instance.id; 0: idle task or interrupt
    waker_tid INTEGER NOT NULL,
    woken     INTEGER NOT NULL,  -- instance.id
    woken_tid INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY ("by", waker, waker_tid, woken, woken_tid)
) WITHOUT ROWID;

-- Exact mode: time in handlers of hard interrupts, by vCPU and interrupted task.
CREATE TABLE interrupt_time (
    vcpu     INTEGER NOT NULL,  -- vcpu.id
    instance INTEGER NOT NULL,  -- instance.id; 0: idle task
    tid      INTEGER NOT NULL,
    ns       INTEGER NOT NULL,
    count    INTEGER NOT NULL,  -- interrupts
    PRIMARY KEY (vcpu, instance, tid)
) WITHOUT ROWID;

-- Exact mode: time in handlers of hard interrupts, by vCPU and what raised them.
CREATE TABLE interrupt_source (
    vcpu      INTEGER NOT NULL,  -- vcpu.id
    interrupt INTEGER NOT NULL,  -- interrupt.id
    vector    INTEGER NOT NULL,  -- a device's; 0: the machine's own, like a timer
    ns        INTEGER NOT NULL,
    count     INTEGER NOT NULL,  -- interrupts
    max_ns    INTEGER NOT NULL,  -- the longest
    PRIMARY KEY (vcpu, interrupt, vector)
) WITHOUT ROWID;

-- Exact mode: events of each vCPU.
CREATE TABLE exact_vcpu (
    vcpu           INTEGER PRIMARY KEY,  -- vcpu.id
    probe_exits    INTEGER NOT NULL,     -- exits for events
    lost           INTEGER NOT NULL,     -- events without a record: the ring was full
    switches       INTEGER NOT NULL,     -- switches among the events
    guest_switches INTEGER,              -- switches by the kernel's own count; NULL: could not be read
    idle_ns        INTEGER NOT NULL,     -- nothing to run
    stacks_missed  INTEGER NOT NULL,     -- sleeps without a stack: all buffers were in use
    cost_ns        INTEGER NOT NULL      -- from the events' exits to the next entries
);

-- Functions that were watched on request.
CREATE TABLE trip (
    id                INTEGER PRIMARY KEY,  -- 1 and up
    symbol            TEXT NOT NULL,        -- its name in the guest's kernel
    address           INTEGER NOT NULL,
    typed             INTEGER NOT NULL,     -- 1: the kernel's types describe its arguments
    calls             INTEGER NOT NULL,     -- all, whatever trip_call has of them
    lost              INTEGER NOT NULL,     -- calls without a row: the ring was full
    stacks_missed     INTEGER NOT NULL,     -- chosen stacks that were not read: all buffers were in use
    cost_ns           INTEGER NOT NULL,     -- from the exits of calls to the next entries
    switching_ns      INTEGER NOT NULL,     -- switches between guest and host for calls: estimated
    switching_samples INTEGER NOT NULL      -- from so many samples at the function's first instruction
);

-- Their arguments that registers hold.
CREATE TABLE trip_argument (
    trip      INTEGER NOT NULL,  -- trip.id
    number    INTEGER NOT NULL,  -- 1 to 6
    name      TEXT NOT NULL,     -- empty: it has none
    type_name TEXT NOT NULL,     -- as in C
    kind      TEXT NOT NULL,     -- signed, unsigned, bool, pointer, text or enum
    names     TEXT NOT NULL,     -- of an enumeration, JSON: [value, name]
    PRIMARY KEY (trip, number)
) WITHOUT ROWID;

-- Texts that arguments pointed to.
CREATE TABLE trip_text (
    id   INTEGER PRIMARY KEY,  -- 1 and up
    text TEXT NOT NULL         -- the first 64 bytes
);

-- Calls of watched functions.
CREATE TABLE trip_call (
    id         INTEGER PRIMARY KEY,
    trip       INTEGER NOT NULL,  -- trip.id
    vcpu       INTEGER NOT NULL,  -- vcpu.id
    time_ns    INTEGER NOT NULL,  -- since the run's start
    mode       INTEGER NOT NULL,  -- mode.id: context of the caller
    instance   INTEGER,           -- instance.id of the current task's process; NULL: not known
    tid        INTEGER,
    stack      INTEGER,           -- stack.id, from the function on; NULL: none was taken
    weight     INTEGER NOT NULL,  -- number of calls that the stack is for; 0 without a stack
    argument_1 INTEGER,           -- by trip_argument.kind; text: trip_text.id, 0: could not be read
    argument_2 INTEGER,
    argument_3 INTEGER,
    argument_4 INTEGER,
    argument_5 INTEGER,
    argument_6 INTEGER
);

-- Task-state sampling: scans of all tasks. Times that follow from it are estimated.
CREATE TABLE task_scan (
    id      INTEGER PRIMARY KEY,  -- 1 and up
    time_ns INTEGER NOT NULL,     -- since the run's start
    late_ns INTEGER NOT NULL,     -- how late it came
    backoff INTEGER NOT NULL      -- mean interval before this scan: 2 to the power of this / task_scan_hz
);

-- Task-state sampling: state of a task from one scan to its next row.
CREATE TABLE task_scan_state (
    instance INTEGER NOT NULL,  -- instance.id
    tid      INTEGER NOT NULL,
    scan     INTEGER NOT NULL,  -- task_scan.id
    state    TEXT NOT NULL,     -- as in task_state; gone: it has exited
    wait_reason TEXT NOT NULL,  -- like futex; empty: it did not sleep, or the reason is not known
    stack    INTEGER NOT NULL,  -- stack.id of the kernel functions that it slept in; 0: none
    PRIMARY KEY (instance, tid, scan)
) WITHOUT ROWID;

-- Readings of the guest's memory.
CREATE TABLE memory_reading (
    id         INTEGER PRIMARY KEY,  -- 1 and up
    time_ns    INTEGER NOT NULL,     -- since the run's start
    total      INTEGER NOT NULL,     -- bytes that the guest's kernel manages: MemTotal
    available  INTEGER,              -- bytes that programs can get: MemAvailable
    swap_total INTEGER,              -- bytes
    swap_used  INTEGER,              -- bytes
    cost_ns    INTEGER NOT NULL      -- CPU time of the reading
);

-- Holders of memory at a reading: the largest of each kind. Several may have the same name.
CREATE TABLE memory_use (
    reading   INTEGER NOT NULL,  -- memory_reading.id
    kind      TEXT NOT NULL,     -- part (the parts add up to total), process, group, filesystem, file, slab
    name      TEXT NOT NULL,
    pid       INTEGER NOT NULL,  -- of a process; else 0
    bytes     INTEGER NOT NULL,  -- resident memory of a process, memory.current of a control group, else pages
    anonymous INTEGER,           -- of processes and control groups
    file      INTEGER,           -- the same: of files, tmpfs and shared memory
    swap      INTEGER            -- the same: swapped out
);

CREATE TABLE console (
    id      INTEGER PRIMARY KEY,
    time_ns INTEGER NOT NULL,  -- of the first byte
    bytes   BLOB NOT NULL      -- a line, a part of one, or several that came fast
);

-- Messages of systemd on its units during the guest's boot, from its journal.
CREATE TABLE unit_event (
    id        INTEGER PRIMARY KEY,  -- in the order of systemd's messages
    time_ns   INTEGER NOT NULL,     -- when, since the run's start
    guest_ns  INTEGER NOT NULL,     -- the same by the guest's CLOCK_MONOTONIC
    within_ns INTEGER,              -- how far from time_ns it may have been; NULL: not known
    step      TEXT NOT NULL,        -- starting, started, failed; finished: the whole boot
    unit      TEXT,                 -- NULL: the whole boot
    result    TEXT                  -- of a failed one: failed, timeout, dependency ...
);

CREATE TABLE event (
    id      INTEGER PRIMARY KEY,
    time_ns INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    text    TEXT NOT NULL      -- one sentence
);

-- Stacks as text: innermost function first, separated by semicolons. vprof writes a stack after that of its caller,
-- which therefore has a smaller number. A file that somebody else has made may have cycles: those are left out, and
-- so are stacks of more than 4096 frames.
CREATE VIEW v_stacks AS
WITH RECURSIVE chain (id, next, depth, text) AS (
    SELECT s.id, s.parent, 1, coalesce(f.symbol, f.module, printf('0x%x', f.address))
    FROM stack s JOIN frame f ON f.id = s.frame
    WHERE s.id IN (SELECT stack FROM sample UNION SELECT stack FROM task_state UNION SELECT stack FROM task_scan_state)
    UNION ALL
    SELECT c.id, s.parent, c.depth + 1, c.text || ';' || coalesce(f.symbol, f.module, printf('0x%x', f.address))
    FROM chain c JOIN stack s ON s.id = c.next JOIN frame f ON f.id = s.frame
    WHERE c.depth < 4096 AND (s.parent IS NULL OR s.parent < s.id)
)
SELECT id, depth, text FROM chain WHERE next IS NULL;

-- Ticks by place and innermost function of the host.
CREATE VIEW v_host_functions AS
SELECT coalesce(f.symbol, '[' || f.module || ']', printf('0x%x', f.address)) AS symbol,
       f.module,
       f.kind,
       h.place,
       h.on_cpu,
       count(*) AS ticks
FROM host_sample h
JOIN host_stack s ON s.id = h.stack
JOIN host_frame f ON f.id = s.frame
GROUP BY 1, 2, 3, 4, 5
ORDER BY ticks DESC;

-- Samples as a person reads them.
CREATE VIEW v_samples AS
SELECT s.id,
       s.time_ns / 1e9 AS time_s,
       s.vcpu,
       m.name AS mode,
       i.comm,
       i.pid,
       i.number AS instance,
       s.tid,
       f.symbol,
       f.module,
       printf('0x%x', f.address) AS address,
       s.late_ns / 1e3 AS late_us,
       s.halted,
       s.cpl,
       s.interrupts_on,
       v.name AS vm,
       v.host
FROM sample s
JOIN mode m ON m.id = s.mode
LEFT JOIN frame f ON f.id = s.frame
LEFT JOIN instance i ON i.id = s.instance
LEFT JOIN vcpu c ON c.id = s.vcpu
LEFT JOIN vm v ON v.id = c.vm;

-- Owner of each sample in the guest that is not idle: interrupts are not charged to the process they hit,
-- but soft interrupts that a kernel thread ksoftirqd/N serves are its own work.
CREATE VIEW v_charged AS
SELECT s.id,
       s.vcpu,
       m.name AS mode,
       CASE WHEN m.name IN ('hardirq', 'nmi') THEN '[hard interrupts]'
            WHEN m.name = 'softirq' AND i.kernel_thread AND i.comm GLOB 'ksoftirqd/*' THEN i.comm
            WHEN m.name = 'softirq' THEN '[soft interrupts]'
            WHEN m.name = 'boot' THEN '[early boot]'
            WHEN m.name = 'unknown' OR i.id IS NULL THEN '[unknown]'
            ELSE i.comm END AS comm,
       CASE WHEN m.name IN ('user', 'kernel') AND i.id IS NOT NULL THEN i.pid
            WHEN m.name = 'softirq' AND i.kernel_thread AND i.comm GLOB 'ksoftirqd/*' THEN i.pid ELSE 0 END AS pid,
       CASE WHEN m.name IN ('user', 'kernel') AND i.id IS NOT NULL THEN i.number
            WHEN m.name = 'softirq' AND i.kernel_thread AND i.comm GLOB 'ksoftirqd/*' THEN i.number ELSE 0 END AS instance,
       c.vm
FROM sample s
JOIN mode m ON m.id = s.mode
LEFT JOIN instance i ON i.id = s.instance
LEFT JOIN vcpu c ON c.id = s.vcpu
WHERE m.name <> 'idle' AND s.vcpu_state = 'guest';

CREATE VIEW v_processes AS
SELECT comm,
       pid,
       instance,
       count(*) AS samples,
       count(*) * 1.0 / sum(count(*)) OVER () AS sample_share,
       sum(mode = 'user') * 1.0 / sum(count(*)) OVER () AS user_sample_share,
       sum(mode <> 'user') * 1.0 / sum(count(*)) OVER () AS kernel_sample_share,
       v.name AS vm,
       v.host
FROM v_charged c
LEFT JOIN vm v ON v.id = c.vm
GROUP BY c.vm, comm, pid, instance
ORDER BY samples DESC;

-- Functions of kernel and user code, inlined ones too. Code without a name counts by its module; user code without a module by its
-- program, other code by its address.
CREATE VIEW v_functions AS
SELECT coalesce(n.symbol,
                f.symbol,
                '[' || f.module || ']',
                CASE WHEN f.kind = 'user' THEN '[user]'
                     WHEN m.name = 'boot' THEN '[early boot]'
                     ELSE printf('0x%x', f.address) END) AS symbol,
       coalesce(f.module, CASE WHEN f.kind = 'user' THEN coalesce(i.comm, '[unknown]') END) AS module,
       m.name AS mode,
       count(*) AS samples,
       count(*) * 1.0 / sum(count(*)) OVER () AS sample_share
FROM sample s
JOIN mode m ON m.id = s.mode
JOIN frame f ON f.id = s.frame
LEFT JOIN inlined n ON n.frame = f.id AND n.depth = 0
LEFT JOIN instance i ON i.id = s.instance
WHERE m.name <> 'idle' AND s.vcpu_state = 'guest'
GROUP BY 1, 2, 3
ORDER BY samples DESC;

-- Shares of each vCPU's samples that fell into the guest or found it halted; they add up to 1.
CREATE VIEW v_vcpus AS
SELECT v.id,
       count(s.id) AS samples,
       v.lost,
       avg(m.name = 'user') FILTER (WHERE s.vcpu_state IN ('guest', 'halted')) AS user,
       avg(m.name IN ('kernel', 'boot', 'unknown')) FILTER (WHERE s.vcpu_state IN ('guest', 'halted')) AS kernel,
       avg(m.name IN ('hardirq', 'nmi')) FILTER (WHERE s.vcpu_state IN ('guest', 'halted')) AS hardirq,
       avg(m.name = 'softirq') FILTER (WHERE s.vcpu_state IN ('guest', 'halted')) AS softirq,
       avg(m.name = 'idle') FILTER (WHERE s.vcpu_state IN ('guest', 'halted')) AS idle,
       v.guest_ns / 1e9 AS guest_s,
       v.halted_ns / 1e9 AS halted_s,
       v.waiting_ns / 1e9 AS waiting_s,
       v.kvm_ns / 1e9 AS kvm_s,
       v.vmm_ns / 1e9 AS vmm_s,
       v.sampler_ns / 1e9 AS sampler_s,
       v.paused_ns / 1e9 AS paused_s,
       (v.guest_ns + v.halted_ns + v.waiting_ns + v.kvm_ns + v.vmm_ns + v.sampler_ns + v.paused_ns) / 1e9 AS wall_s,
       v.exits,
       v.number,
       w.name AS vm,
       w.host
FROM vcpu v
LEFT JOIN vm w ON w.id = v.vm
LEFT JOIN sample s ON s.vcpu = v.id
LEFT JOIN mode m ON m.id = s.mode
GROUP BY v.id;

-- Exact mode: states of each task as a person reads them.
CREATE VIEW v_task_states AS
SELECT i.comm,
       i.pid,
       i.number AS instance,
       t.tid,
       t.state,
       t.wait_reason,
       sum(t.ns) / 1e6 AS ms,
       sum(t.count) AS count,
       sum(t.ns) * 1.0 / sum(sum(t.ns)) OVER (PARTITION BY t.instance, t.tid) AS share
FROM task_state t
JOIN instance i ON i.id = t.instance
GROUP BY t.instance, t.tid, t.state, t.wait_reason
ORDER BY i.comm, i.pid, t.tid, sum(t.ns) DESC;

-- Calls of watched functions as a person reads them.
CREATE VIEW v_trip_calls AS
SELECT c.id,
       c.time_ns / 1e9 AS time_s,
       t.symbol,
       c.vcpu,
       m.name AS mode,
       i.comm,
       i.pid,
       i.number AS instance,
       c.tid,
       c.argument_1, c.argument_2, c.argument_3, c.argument_4, c.argument_5, c.argument_6,
       c.stack,
       c.weight
FROM trip_call c
JOIN trip t ON t.id = c.trip
JOIN mode m ON m.id = c.mode
LEFT JOIN instance i ON i.id = c.instance;

-- Task-state sampling: scans in which each task was in each state. `vprof report --states` estimates times with
-- intervals from them.
CREATE VIEW v_sampled_states AS
WITH run AS (
    SELECT instance, tid, state, wait_reason,
           lead(scan, 1, (SELECT max(id) + 1 FROM task_scan))
               OVER (PARTITION BY instance, tid ORDER BY scan) - scan AS scans
    FROM task_scan_state
)
SELECT i.comm,
       i.pid,
       i.number AS instance,
       r.tid,
       r.state,
       r.wait_reason,
       sum(r.scans) AS scans,
       sum(r.scans) * 1.0 / sum(sum(r.scans)) OVER (PARTITION BY r.instance, r.tid) AS share
FROM run r
JOIN instance i ON i.id = r.instance
WHERE r.state <> 'gone'
GROUP BY r.instance, r.tid, r.state, r.wait_reason
ORDER BY i.comm, i.pid, r.tid, sum(r.scans) DESC;

-- Exits by reason and device, over all vCPUs.
CREATE VIEW v_exits AS
SELECT reason,
       device,
       sum(count) AS count,
       sum(total_ns) / 1e9 AS total_s,
       sum(total_ns) / 1e3 / sum(count) AS mean_us,
       max(max_ns) / 1e3 AS max_us
FROM exit
GROUP BY reason, device
ORDER BY sum(total_ns) DESC;
