//! Queries by users.

use super::*;

#[test]
fn queries_only_read() {
    let (directory, path) = finished(3);
    let profile = Profile::open(&path).expect("a profile");
    let before = fs::read(&path).expect("a file");
    let elsewhere = directory.path().join("elsewhere");
    let vacuum = format!("VACUUM INTO '{}'", elsewhere.display());
    for sql in [
        "DELETE FROM sample",
        "INSERT INTO meta VALUES ('a', 'b')",
        "DROP TABLE sample",
        "CREATE TABLE t (x)",
        "PRAGMA user_version = 10",
        "PRAGMA journal_mode = WAL",
        vacuum.as_str(),
    ] {
        let error = profile.query(sql).expect_err(sql).to_string();
        assert_eq!(error, "this statement would change the profile: use one that only reads", "{sql}");
    }
    let attach = format!("ATTACH '{}' AS other", elsewhere.display());
    assert!(profile.query(&attach).is_err());
    assert!(!elsewhere.exists());
    assert_eq!(fs::read(&path).expect("a file"), before);
    for sql in ["SELECT 1; SELECT 2", "", "  -- nothing"] {
        assert_eq!(profile.query(sql).expect_err(sql).to_string(), "give exactly one SQL statement", "{sql}");
    }
    for (sql, message) in [
        ("SELEC 1", "the query is wrong: near \"SELEC\": syntax error"),
        ("SELECT nosuch FROM sample", "the query is wrong: no such column: nosuch"),
        ("SELECT * FROM nowhere", "the query is wrong: no such table: nowhere"),
    ] {
        assert_eq!(profile.query(sql).expect_err(sql).to_string(), message);
    }
    let parameter = profile.query("SELECT ?").expect_err("no value for the parameter").to_string();
    assert!(parameter.starts_with("the query is wrong"), "{parameter}");
}

#[test]
fn answers_keep_their_types() {
    let (_directory, path) = finished(3);
    let profile = Profile::open(&path).expect("a profile");
    let table =
        profile.query("SELECT 1 AS i, 0.5 AS r, 'x' AS t, x'00ff' AS b, NULL AS n").expect("an answer");
    assert_eq!(table.columns, ["i", "r", "t", "b", "n"]);
    let json = serde_json::to_string(&table).expect("JSON");
    assert_eq!(json, r#"{"columns":["i","r","t","b","n"],"rows":[[1,0.5,"x","00ff",null]]}"#);
    let mut seen = 0;
    let columns = profile.query_each("SELECT id FROM sample", |columns, row| {
        assert_eq!((columns.len(), row.len()), (1, 1));
        seen += 1;
        if seen == 2 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    });
    assert_eq!((columns.expect("columns"), seen), (vec!["id".to_owned()], 2));
}
