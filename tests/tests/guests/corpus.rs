//! Real programs of Debian's packages, by the times that they measure themselves.

use vprof_tests::corpus::CorpusProgram;

fn holds(name: &str) {
    let entry = CorpusProgram::named(name);
    let run = entry.run();
    let measured = entry.measure(&run);
    let faults = entry.faults(&measured);
    assert!(faults.is_empty(), "{faults:#?}\n{measured:#?}\nit printed: {}", run.stdout);
}

/// Makes a test of each program.
macro_rules! holds {
    ($($name:ident)*) => {
        $(
            #[test]
            #[ignore = "a program of the corpus: --all"]
            fn $name() {
                holds(stringify!($name));
            }
        )*

        #[test]
        fn every_program_has_a_test() {
            let tested = [$(stringify!($name)),*];
            let known: Vec<_> = vprof_tests::corpus::CORPUS_PROGRAMS.iter().map(|entry| entry.name).collect();
            assert_eq!(known, tested);
        }
    };
}

holds! {
    python_11 python_13_perf numpy node_18 node_20 java_17 java_21 go_19 go_24 ruby_31 ruby_31_yjit ruby_33 php_82 php_82_jit
    perl erlang_25 bash postgresql_15 redis_7 nginx flask java_http express
}
