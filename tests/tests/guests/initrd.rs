//! Guests without a disk: their programs are those of the initrd.

use vprof_tests::{Guest, images, kernel_of};

#[test]
#[ignore = "one more way to give a kernel: --all"]
fn programs_of_the_initrd_are_named_from_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (kernel, initrd) = kernel_of(&images().join("demo.img"), directory.path());
    let run = Guest::image(kernel)
        .next_to_others()
        .options(["--initrd".as_ref(), initrd.as_os_str()])
        .command(["spin", "--seconds", "4"])
        .run()
        .succeeded();
    let files = run.query(
        "SELECT DISTINCT filesystem, read_from, named_by, build_id FROM file JOIN frame ON frame.file = file.id \
         WHERE path = '/usr/bin/spin'",
    );
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!((&files[0][0], &files[0][1]), (&"rootfs".into(), &"initrd".into()), "{files:?}");
    assert!(files[0][3].is_string(), "{files:?}");
    let rows = run.user_code("spin", "function").rows();
    let all: i64 = rows.iter().map(|row| row.self_samples).sum();
    let spun = rows.iter().filter(|row| row.name.starts_with("guest_programs::"));
    let spun: i64 = spun.map(|row| row.self_samples).sum();
    assert!(all > 50 && spun * 10 >= all * 9, "{spun} of {all}: {rows:#?}");
}
