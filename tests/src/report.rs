//! `vprof report --json`, read by the names that docs/json.md promises.

use serde_json::Value;

/// A report.
#[derive(Debug)]
pub struct Report(Value);

/// A row of `processes`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct ProcessRow {
    pub comm: String,
    pub pid: i64,
    pub instance: i64,
    pub samples: i64,
    pub share: f64,
    pub share_low: f64,
    pub share_high: f64,
    pub user_share: f64,
    pub kernel_share: f64,
}

/// A row of `functions`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct FunctionRow {
    pub symbol: String,
    pub module: Option<String>,
    pub mode: String,
    pub samples: i64,
    pub share: f64,
}

/// A row of `vcpus`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct VcpuRow {
    pub id: i64,
    pub samples: i64,
    pub user: f64,
    pub kernel: f64,
    pub hardirq: f64,
    pub softirq: f64,
    pub idle: f64,
}

/// A row of `by`.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct NamedRow {
    pub name: String,
    pub kind: Option<String>,
    pub module: Option<String>,
    pub self_samples: i64,
    pub total_samples: i64,
}

/// One half of `stacks`: the walks over the kernel's stacks, or over those of programs.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct WalkCounts {
    pub walks: i64,
    /// Reason and number.
    pub broken: Vec<(String, i64)>,
}

impl WalkCounts {
    /// Returns the number of walks that ended early for any reason but the requested depth.
    pub fn lost(&self) -> i64 {
        self.broken.iter().filter(|(reason, _)| reason != "too deep").map(|(_, walks)| walks).sum()
    }
}

impl Report {
    pub(crate) fn new(value: Value) -> Self {
        Self(value)
    }

    /// Returns a top-level member.
    pub fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or_else(|| panic!("the report has no {name:?}: {}", self.0))
    }

    /// Returns a top-level number.
    pub fn number(&self, name: &str) -> f64 {
        number(&self.0, name)
    }

    /// Returns all of `processes`.
    pub fn processes(&self) -> Vec<ProcessRow> {
        rows(self.get("processes"), |p| ProcessRow {
            comm: text(p, "comm"),
            pid: integer(p, "pid"),
            instance: integer(p, "instance"),
            samples: integer(p, "samples"),
            share: number(p, "share"),
            share_low: number(p, "share_low"),
            share_high: number(p, "share_high"),
            user_share: number(p, "user_share"),
            kernel_share: number(p, "kernel_share"),
        })
    }

    /// Returns the processes of this name.
    pub fn processes_named(&self, comm: &str) -> Vec<ProcessRow> {
        self.processes().into_iter().filter(|p| p.comm == comm).collect()
    }

    /// Returns the only process of this name.
    pub fn process(&self, comm: &str) -> ProcessRow {
        let mut found = self.processes_named(comm);
        assert_eq!(found.len(), 1, "processes named {comm:?} in {:#?}", self.processes());
        found.remove(0)
    }

    /// Returns all of `functions`.
    pub fn functions(&self) -> Vec<FunctionRow> {
        rows(self.get("functions"), |f| FunctionRow {
            symbol: text(f, "symbol"),
            module: f["module"].as_str().map(str::to_owned),
            mode: text(f, "mode"),
            samples: integer(f, "samples"),
            share: number(f, "share"),
        })
    }

    /// Returns all rows of `by`.
    pub fn rows(&self) -> Vec<NamedRow> {
        rows(&self.get("by")["rows"], |r| NamedRow {
            name: text(r, "name"),
            kind: r["kind"].as_str().map(str::to_owned),
            module: r["module"].as_str().map(str::to_owned),
            self_samples: integer(&r["self"], "samples"),
            total_samples: integer(&r["total"], "samples"),
        })
    }

    /// Returns the only row of `by` with this name.
    pub fn row(&self, name: &str) -> NamedRow {
        let mut found: Vec<NamedRow> = self.rows().into_iter().filter(|row| row.name == name).collect();
        assert_eq!(found.len(), 1, "rows named {name:?} in {:#?}", self.rows());
        found.remove(0)
    }

    /// Returns `stacks` of the `kernel` or of the `user`.
    pub fn walks(&self, kind: &str) -> WalkCounts {
        let walks = &self.get("stacks")[kind];
        WalkCounts {
            walks: integer(walks, "walks"),
            broken: rows(&walks["broken"], |b| (text(b, "reason"), integer(b, "walks"))),
        }
    }

    /// Returns all of `vcpus`.
    pub fn vcpus(&self) -> Vec<VcpuRow> {
        rows(self.get("vcpus"), |v| VcpuRow {
            id: integer(v, "id"),
            samples: integer(v, "samples"),
            user: number(v, "user"),
            kernel: number(v, "kernel"),
            hardirq: number(v, "hardirq"),
            softirq: number(v, "softirq"),
            idle: number(v, "idle"),
        })
    }
}

fn rows<T>(value: &Value, row: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().expect("an array").iter().map(row).collect()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no number {name:?} in {value}"))
}

fn integer(value: &Value, name: &str) -> i64 {
    value[name].as_i64().unwrap_or_else(|| panic!("no integer {name:?} in {value}"))
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name:?} in {value}")).to_owned()
}
