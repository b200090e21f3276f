//! Every table that vprof prints, compared with its file in `golden/`: a change of a table shows in a diff.
//!
//! `VPROF_GOLDEN=write cargo test -p vprof --test tables` writes the current output.

mod support;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use support::made::{with_everything, with_exact, with_task_scans, with_trips};
use support::{run, stderr, stdout, write_batch, write_profile_with_quarters};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"))
}

/// Returns a directory with the profiles of the tables.
fn profiles() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tables");
        fs::create_dir_all(&directory).unwrap();
        let at = |name: &str| {
            let path = directory.join(name);
            // A file of an earlier run may be there.
            fs::remove_file(&path)
                .or_else(|error| (error.kind() == ErrorKind::NotFound).then_some(()).ok_or(error))
                .unwrap();
            path
        };
        write_batch(&at("p.vprof"), &with_everything(3));
        write_batch(&at("exact.vprof"), &with_exact());
        write_batch(&at("sampled.vprof"), &with_task_scans());
        write_batch(&at("trips.vprof"), &with_trips());
        write_profile_with_quarters(&at("after.vprof"), 1);
        directory
    })
}

/// Runs `vprof` with these words in the directory of [`profiles`] and compares the output.
fn same(name: &str, words: &str) {
    let directory = profiles();
    let arguments = words.split(' ').map(|word| match word.strip_prefix('@') {
        Some(profile) => directory.join(profile).to_string_lossy().into_owned(),
        None => word.to_owned(),
    });
    let output = run(arguments);
    assert!(output.status.success(), "{words}: {}", stderr(&output));
    // The directory differs from run to run.
    let text = stdout(&output).replace(&*directory.to_string_lossy(), "DIRECTORY");
    let path = golden(name);
    if std::env::var("VPROF_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{words} prints:\n{text}\nand {} has:\n{expected}", path.display());
}

/// Makes a test for each table, whose file in `golden` has the test's name with hyphens.
macro_rules! tables {
    ($($name:ident: $words:literal,)*) => {
        $(
            #[test]
            fn $name() {
                same(&stringify!($name).replace('_', "-"), $words);
            }
        )*

        #[test]
        fn every_file_has_a_table() {
            let mut files: Vec<String> = fs::read_dir(golden("x").parent().unwrap())
                .unwrap()
                .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().replace('-', "_"))
                .collect();
            files.sort();
            let mut names = vec![$(stringify!($name)),*];
            names.sort_unstable();
            assert_eq!(files, names);
        }
    };
}

tables! {
    report_by_function: "report @p.vprof --by function",
    report_by_instruction: "report @p.vprof --by instruction",
    report_by_line: "report @p.vprof --by line",
    report_by_process: "report @p.vprof --by process",
    report_by_instance: "report @p.vprof --by instance",
    report_by_thread: "report @p.vprof --by thread",
    report_by_cgroup: "report @p.vprof --by cgroup",
    report_by_module: "report @p.vprof --by module",
    report_by_irq: "report @p.vprof --by irq",
    report_by_syscall: "report @p.vprof --by syscall",
    report_by_process_function: "report @p.vprof --by process,function",
    report_by_keys_csv: "report @p.vprof --by thread,module --csv",
    report_relative: "report @p.vprof --by instance,function --relative --mode user",
    report: "report @p.vprof",
    report_callers: "report @p.vprof --callers do_work",
    report_callees: "report @p.vprof --callees do_work",
    report_exact: "report --exact @exact.vprof",
    report_timehist: "report --exact --timehist @exact.vprof",
    report_timehist_part: "report --exact --timehist --cpu 0 --time 200ms.. @exact.vprof",
    report_states_exact: "report --states @exact.vprof",
    report_states_sampled: "report --states @sampled.vprof",
    report_trips: "report --trips @trips.vprof",
    report_trips_part: "report --trips --process 100 --rows 2 @trips.vprof",
    export_trips: "export --trip vfs_fsync_range --format folded @trips.vprof",
    report_host: "report --host @p.vprof",
    report_memory_use: "report --memory-use -n 1 @sampled.vprof",
    stat: "stat @p.vprof",
    stat_csv: "stat --csv @p.vprof",
    rusage: "rusage @p.vprof",
    rusage_csv: "rusage --csv @p.vprof",
    diff: "diff @p.vprof @after.vprof",
    diff_markdown: "diff --markdown @p.vprof @after.vprof",
    query_csv: "query --csv @p.vprof SELECT(comm)FROM(instance)",
}
