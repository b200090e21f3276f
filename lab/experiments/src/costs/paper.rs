//! The figures of the paper: lmbench 2.0 of 2.5.72 and of 2.5.72msa, the kernels of an IA64 machine with two
//! processors.

/// Unit of a table's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableUnit {
    /// Less is better; `latency` prints ns.
    Us,
    /// 10^6 bytes per second; more is better.
    Rate,
}

/// A table of the paper.
#[derive(Debug)]
pub struct PaperTable {
    pub title: &'static str,
    pub unit: TableUnit,
    pub rows: &'static [PaperRow],
}

/// A measurement of the paper: its name in `latency`, its name in the document, without and with micro-state
/// accounting, in the table's unit.
pub type PaperRow = (&'static str, &'static str, f64, f64);

/// All tables whose measurements have a meaning under emulation.
pub const TABLES: [PaperTable; 6] = [
    PaperTable { title: "Processor, processes", unit: TableUnit::Us, rows: PROCESSOR },
    PaperTable { title: "select", unit: TableUnit::Us, rows: SELECT },
    PaperTable { title: "Context switches", unit: TableUnit::Us, rows: SWITCHES },
    PaperTable { title: "Files and virtual memory", unit: TableUnit::Us, rows: FILES },
    PaperTable { title: "Local communication", unit: TableUnit::Us, rows: LOCAL },
    PaperTable { title: "Local bandwidths", unit: TableUnit::Rate, rows: RATES },
];

const PROCESSOR: &[PaperRow] = &[
    ("null_call", "null system call", 0.366, 0.364),
    ("null_io", "null I/O", 0.47936, 0.48099),
    ("stat", "stat", 1.481, 1.543),
    ("fstat", "fstat", 0.631, 0.638),
    ("open_close", "open and close", 2.727, 2.749),
    ("signal_install", "signal, install", 0.614, 0.615),
    ("signal_handle", "signal, handle", 3.11, 3.135),
    ("fork", "process: fork", 250.9, 249.9),
    ("execve", "process: execve", 876.9, 864.9),
    ("sh", "process: /bin/sh", 3541.5, 3560.5),
];

const SELECT: &[PaperRow] = &[
    ("select_file_10", "select, 10 files", 2.064, 2.078),
    ("select_file_100", "select, 100 files", 10.597, 10.571),
    ("select_file_250", "select, 250 files", 24.806, 24.776),
    ("select_file_500", "select, 500 files", 48.351, 48.325),
    ("select_tcp_10", "select, 10 connections", 2.926, 2.953),
    ("select_tcp_100", "select, 100 connections", 18.9793, 18.9672),
    ("select_tcp_250", "select, 250 connections", 45.7354, 45.7242),
    ("select_tcp_500", "select, 500 connections", 90.177, 90.2188),
];

const SWITCHES: &[PaperRow] = &[
    ("switch_0k_2", "2 processes, 0 KiB", 1.582, 1.664),
    ("switch_0k_4", "4 processes, 0 KiB", 1.65, 1.688),
    ("switch_0k_8", "8 processes, 0 KiB", 1.83, 1.85),
    ("switch_0k_16", "16 processes, 0 KiB", 1.976, 1.992),
    ("switch_0k_32", "32 processes, 0 KiB", 2.326, 2.48),
    ("switch_0k_64", "64 processes, 0 KiB", 5.714, 5.812),
    ("switch_0k_96", "96 processes, 0 KiB", 7.192, 7.224),
    ("switch_4k_2", "2 processes, 4 KiB", 2.174, 2.34),
    ("switch_4k_4", "4 processes, 4 KiB", 2.222, 2.374),
    ("switch_4k_8", "8 processes, 4 KiB", 2.49, 2.586),
    ("switch_4k_16", "16 processes, 4 KiB", 2.77, 2.912),
    ("switch_4k_32", "32 processes, 4 KiB", 4.992, 5.006),
    ("switch_4k_64", "64 processes, 4 KiB", 10.474, 10.438),
    ("switch_4k_96", "96 processes, 4 KiB", 12.228, 12.26),
    ("switch_8k_2", "2 processes, 8 KiB", 2.686, 2.836),
    ("switch_8k_4", "4 processes, 8 KiB", 2.864, 2.966),
    ("switch_8k_8", "8 processes, 8 KiB", 3.218, 3.172),
    ("switch_8k_16", "16 processes, 8 KiB", 3.636, 3.758),
    ("switch_8k_32", "32 processes, 8 KiB", 7.44, 7.182),
    ("switch_8k_64", "64 processes, 8 KiB", 14.114, 13.608),
    ("switch_8k_96", "96 processes, 8 KiB", 16.694, 16.594),
    ("switch_16k_2", "2 processes, 16 KiB", 3.594, 3.75),
    ("switch_16k_4", "4 processes, 16 KiB", 3.764, 3.816),
    ("switch_16k_8", "8 processes, 16 KiB", 4.104, 4.124),
    ("switch_16k_16", "16 processes, 16 KiB", 5.0, 5.062),
    ("switch_16k_32", "32 processes, 16 KiB", 9.28, 9.244),
    ("switch_16k_64", "64 processes, 16 KiB", 18.318, 18.716),
    ("switch_16k_96", "96 processes, 16 KiB", 24.024, 24.53),
    ("switch_32k_2", "2 processes, 32 KiB", 5.382, 5.498),
    ("switch_32k_4", "4 processes, 32 KiB", 5.778, 5.756),
    ("switch_32k_8", "8 processes, 32 KiB", 7.016, 7.226),
    ("switch_32k_16", "16 processes, 32 KiB", 9.378, 10.68),
    ("switch_32k_32", "32 processes, 32 KiB", 25.35, 25.412),
    ("switch_32k_64", "64 processes, 32 KiB", 43.272, 43.954),
    ("switch_32k_96", "96 processes, 32 KiB", 47.668, 47.604),
    ("switch_64k_2", "2 processes, 64 KiB", 8.976, 8.974),
    ("switch_64k_4", "4 processes, 64 KiB", 11.876, 12.124),
    ("switch_64k_8", "8 processes, 64 KiB", 13.638, 13.728),
    ("switch_64k_16", "16 processes, 64 KiB", 23.206, 28.41),
    ("switch_64k_32", "32 processes, 64 KiB", 79.748, 78.374),
    ("switch_64k_64", "64 processes, 64 KiB", 85.344, 85.362),
    ("switch_64k_96", "96 processes, 64 KiB", 83.982, 83.666),
];

const FILES: &[PaperRow] = &[
    ("create_0k", "create, 0 KiB", 22.98, 23.05),
    ("delete_0k", "delete, 0 KiB", 17.09, 17.08),
    ("create_1k", "create, 1 KiB", 43.17, 42.39),
    ("delete_1k", "delete, 1 KiB", 29.33, 29.37),
    ("create_4k", "create, 4 KiB", 43.37, 43.1),
    ("delete_4k", "delete, 4 KiB", 29.32, 29.37),
    ("create_10k", "create, 10 KiB", 62.27, 61.87),
    ("delete_10k", "delete, 10 KiB", 31.42, 31.43),
    ("mmap", "mmap", 377.8, 378.0),
    ("protection_fault", "protection fault and its signal", 3.379, 3.352),
    ("page_fault", "page fault", 2.4, 3.0),
];

const LOCAL: &[PaperRow] = &[
    ("pipe", "pipe", 6.554, 6.738),
    ("unix", "AF_UNIX", 9.925, 10.062),
    ("udp", "UDP", 17.6191, 17.6407),
    ("tcp", "TCP", 22.9711, 28.3487),
    ("tcp_connect", "TCP connection", 55.731, 56.453),
];

const RATES: &[PaperRow] = &[
    ("pipe_rate", "pipe", 2124.75, 2047.26),
    ("unix_rate", "AF_UNIX", 1638.22, 1636.5),
    ("tcp_rate", "TCP", 803.74, 667.02),
    ("reread", "file reread", 1092.2, 1094.64),
    ("mmap_reread", "mmap reread", 590.5, 590.05),
    ("open_reread", "file, open and close", 1099.39, 1102.1),
    ("mmap_open_reread", "mmap, open and close", 550.74, 551.19),
];
