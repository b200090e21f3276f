//! Measures vprof against its budgets, side by side in one run, and prints a table. Fails on a wrong answer only,
//! never on a slow one.

mod behind;
mod dump;
mod kick;
mod machine;
mod table;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    if let (Some("report"), Some(profile)) =
        (arguments.next().and_then(|a| a.into_string().ok()).as_deref(), arguments.next())
    {
        return behind::report_child(profile.as_ref());
    }
    eprintln!("measuring; leave the machine alone for a minute or two");
    let mut rows = Vec::new();
    match kick::rows() {
        Ok(measured) => rows.extend(measured),
        Err(reason) => eprintln!("SKIPPED what needs KVM: {reason}"),
    }
    rows.extend(behind::rows()?);
    rows.push(behind::memory());
    rows.extend(dump::rows()?);
    println!("{}\n\n{}", machine::description(), table::HEADER);
    for row in rows {
        println!("{}", row.markdown());
    }
    Ok(())
}
