//! Copies the rows of one source after the other.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use rusqlite::types::{ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, Statement, params};

use super::ids::{Digest, IdSpace, Known, KnownStacks};
use super::source::Source;
use super::tables::{MERGED_TABLES, Meaning, MergedTable, Rows, Space};
use super::{MergeError, warnings};
use crate::store::{Profile, ProfileError};

/// Samples between two reports of progress.
const TELL_EVERY: u64 = 1 << 16;

/// The merged profile while it is written.
pub(super) struct Target<'a> {
    connection: &'a Connection,
    path: PathBuf,
    ids: [IdSpace; Space::ALL.len()],
    /// By the name of their table.
    known: HashMap<&'static str, Known>,
    trees: HashMap<&'static str, KnownStacks>,
    samples: u64,
}

/// A source that is copied.
pub(super) struct SourceCopy<'a> {
    pub profile: &'a Profile,
    pub source: &'a Source,
    /// Row id of its virtual machine.
    pub vm: u32,
    /// Start of its run, ns since the start of the first one.
    pub from_ns: u64,
}

impl SourceCopy<'_> {
    fn damaged(&self, reason: &str) -> MergeError {
        let path = self.profile.path().to_owned();
        ProfileError::Damaged { path, reason: reason.to_owned() }.into()
    }

    fn unreadable(&self, error: &rusqlite::Error) -> MergeError {
        self.profile.error(error).into()
    }

    /// Returns the id of a row in the source.
    fn own_id(&self, space: Space, values: &Values<'_>) -> Result<i64, MergeError> {
        match values.as_slice().first() {
            Some(ValueRef::Integer(id)) if *id > 0 || space == Space::Vcpu => Ok(*id),
            _ => Err(self.damaged("a row has an impossible number")),
        }
    }

    /// Returns a time of the source since the start of the first run.
    fn time(&self, value: ValueRef<'_>) -> Result<i64, MergeError> {
        let time = match value {
            ValueRef::Integer(time) if time >= 0 => time.checked_add_unsigned(self.from_ns),
            _ => None,
        };
        time.ok_or_else(|| self.damaged("a time is out of range"))
    }
}

/// Largest number of columns of a table.
const MOST_COLUMNS: usize = 20;

/// Values of a row, on the stack.
#[derive(Clone, Copy)]
struct Values<'r> {
    list: [ValueRef<'r>; MOST_COLUMNS],
    count: usize,
}

impl<'r> Values<'r> {
    fn new() -> Self {
        Self { list: [ValueRef::Null; MOST_COLUMNS], count: 0 }
    }

    fn push(&mut self, value: ValueRef<'r>) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = value;
            self.count += 1;
        }
    }

    fn as_slice(&self) -> &[ValueRef<'r>] {
        self.list.get(..self.count).unwrap_or_default()
    }
}

/// Calls `each` with the values of each row of a source. A value of another type than its column's is an
/// error.
fn for_each_row(
    copy: &SourceCopy<'_>,
    (sql, types): (&str, &[Type]),
    mut each: impl FnMut(&Values<'_>) -> Result<(), MergeError>,
) -> Result<(), MergeError> {
    let unreadable = |error: rusqlite::Error| copy.unreadable(&error);
    let mut select = copy.profile.connection().prepare(sql).map_err(unreadable)?;
    let mut rows = select.query([]).map_err(unreadable)?;
    while let Some(row) = rows.next().map_err(unreadable)? {
        let mut values = Values::new();
        for (column, wanted) in types.iter().enumerate() {
            let value = row.get_ref(column).map_err(unreadable)?;
            let fits = match value {
                ValueRef::Null => true,
                ValueRef::Text(bytes) => *wanted == Type::Text && std::str::from_utf8(bytes).is_ok(),
                _ => *wanted == value.data_type(),
            };
            if !fits {
                return Err(copy.damaged("a value has another type than its column"));
            }
            values.push(value);
        }
        each(&values)?;
    }
    Ok(())
}

/// Returns the types of a table's columns as the schema declares them.
fn types(connection: &Connection, table: &MergedTable) -> rusqlite::Result<Vec<Type>> {
    let mut statement = connection.prepare("SELECT type FROM pragma_table_info(?) WHERE name = ?")?;
    let mut declared = |name: &str| -> rusqlite::Result<Type> {
        let declared: String = statement.query_row((table.name, name), |row| row.get(0))?;
        Ok(match declared.as_str() {
            "TEXT" => Type::Text,
            "REAL" => Type::Real,
            "BLOB" => Type::Blob,
            _ => Type::Integer,
        })
    };
    table.columns.iter().map(|(name, _)| declared(name)).collect()
}

/// Executes a statement with these parameters.
fn run<'v>(
    statement: &mut Statement<'_>,
    values: impl Iterator<Item = ValueRef<'v>>,
) -> rusqlite::Result<()> {
    for (place, value) in (1..).zip(values) {
        statement.raw_bind_parameter(place, ToSqlOutput::Borrowed(value))?;
    }
    statement.raw_execute().map(drop)
}

impl<'a> Target<'a> {
    pub(super) fn new(connection: &'a Connection, path: &Path) -> Self {
        let space = |(space, what)| match space {
            Space::Vcpu => IdSpace::new(what, 0, u16::MAX.into()),
            _ => IdSpace::new(what, 1, u32::MAX - 1),
        };
        let ids = Space::ALL.map(space);
        let (known, trees) = (HashMap::new(), HashMap::new());
        Self { connection, path: path.to_owned(), ids, known, trees, samples: 0 }
    }

    /// Returns the number of samples that were copied.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Copies a source. Returns the numbers of its vCPUs there and in the merged profile.
    pub(super) fn copy(
        &mut self,
        copy: &SourceCopy<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<(i64, u32)>, MergeError> {
        self.ids.iter_mut().for_each(IdSpace::forget);
        self.execute("BEGIN")?;
        self.vm(copy).map_err(|error| self.error(&error))?;
        let mut vcpus = Vec::new();
        for table in &MERGED_TABLES {
            match table.name {
                "frame" => self.frames(copy, table)?,
                _ => self.table(copy, table, &HashMap::new(), progress).map(drop)?,
            }
            if table.name == "vcpu" {
                vcpus = self.ids[Space::Vcpu as usize].all();
            }
        }
        self.events(copy)?;
        self.execute("COMMIT")?;
        Ok(vcpus)
    }

    /// Copies code addresses with the functions that the compiler has copied there, which distinguish them.
    fn frames(&mut self, copy: &SourceCopy<'_>, table: &'static MergedTable) -> Result<(), MergeError> {
        let sql = "SELECT frame, depth, symbol, source, line FROM inlined ORDER BY frame, depth";
        let types = [Type::Integer, Type::Integer, Type::Text, Type::Text, Type::Integer];
        let known = self.known.entry(table.name).or_default();
        let mut inlined: HashMap<i64, Digest> = HashMap::new();
        for_each_row(copy, (sql, &types), |values| {
            if let [ValueRef::Integer(frame), rest @ ..] = values.as_slice() {
                let digest = known.digest(rest, inlined.get(frame).copied());
                inlined.insert(*frame, digest);
            }
            Ok(())
        })?;
        let new = self.table(copy, table, &inlined, &mut |_| ())?;
        let connection = self.connection;
        let insert = "INSERT INTO inlined VALUES (?, ?, ?, ?, ?)";
        let mut insert = connection.prepare(insert).map_err(|error| self.error(&error))?;
        for_each_row(copy, (sql, &types), |values| {
            let [ValueRef::Integer(frame), rest @ ..] = values.as_slice() else { return Ok(()) };
            let id = self.ids[Space::Frame as usize].known(*frame).filter(|_| new.contains(frame));
            let Some(id) = id else { return Ok(()) };
            let own = std::iter::once(ValueRef::Integer(id.into()));
            run(&mut insert, own.chain(rest.iter().copied())).map_err(|error| self.error(&error))
        })
    }

    /// Copies a table. `more` are the digests of what belongs to rows besides their values. Returns the ids,
    /// in the source, of rows that no earlier one had.
    fn table(
        &mut self,
        copy: &SourceCopy<'_>,
        table: &'static MergedTable,
        more: &HashMap<i64, Digest>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<HashSet<i64>, MergeError> {
        let columns: Vec<String> = table.columns.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let columns = columns.join(", ");
        let condition = if table.condition.is_empty() { "1" } else { table.condition };
        let select =
            format!("SELECT {columns} FROM {} WHERE {condition} ORDER BY {}", table.name, table.order);
        let way = if table.rows == Rows::NewKeys { "INSERT OR IGNORE" } else { "INSERT" };
        let places = vec!["?"; table.columns.len()].join(", ");
        let insert = format!("{way} INTO {} ({columns}) VALUES ({places})", table.name);
        let connection = self.connection;
        let mut insert = connection.prepare(&insert).map_err(|error| self.error(&error))?;
        let types = types(connection, table).map_err(|error| self.error(&error))?;
        let own_space = table.own_space();
        let mut new = HashSet::new();
        for_each_row(copy, (&select, &types), |values| {
            let mut row = Values::new();
            let mut own = None;
            if let Some(space) = own_space {
                let old = copy.own_id(space, values)?;
                // The id is known once all other values are.
                row.push(ValueRef::Null);
                own = Some((space, old));
            }
            let skipped = usize::from(own.is_some());
            for ((_, meaning), value) in table.columns.iter().zip(values.as_slice()).skip(skipped) {
                row.push(self.value(copy, *meaning, *value)?);
            }
            if let Some((space, old)) = own {
                let rest = row.as_slice().get(1..).unwrap_or_default();
                let (id, is_new) = self.row_id(copy, table, (space, old), (values, rest), more)?;
                if !is_new {
                    return Ok(());
                }
                new.insert(old);
                row.list[0] = ValueRef::Integer(id.into());
            }
            if table.name == "sample" {
                self.samples += 1;
                if self.samples.is_multiple_of(TELL_EVERY) {
                    progress(self.samples);
                }
            }
            run(&mut insert, row.as_slice().iter().copied()).map_err(|error| self.error(&error))
        })?;
        Ok(new)
    }

    /// Returns the new id of a row, and whether it is a new row: not equal to an earlier one. `values` are
    /// those of the source, `rest` the new ones without the id.
    fn row_id(
        &mut self,
        copy: &SourceCopy<'_>,
        table: &'static MergedTable,
        (space, old): (Space, i64),
        (values, rest): (&Values<'_>, &[ValueRef<'_>]),
        more: &HashMap<i64, Digest>,
    ) -> Result<(u32, bool), MergeError> {
        let ids = &mut self.ids[space as usize];
        match table.rows {
            Rows::Each | Rows::NewKeys => Ok((ids.get(old)?, true)),
            Rows::Equal(needed)
                if values.as_slice().get(needed).is_some_and(|value| *value != ValueRef::Null) =>
            {
                let known = self.known.entry(table.name).or_default();
                let digest = known.digest(rest, more.get(&old).copied());
                if let Some(id) = known.find(digest) {
                    ids.set(old, id);
                    return Ok((id, false));
                }
                let id = ids.get(old)?;
                known.insert(digest, id);
                Ok((id, true))
            }
            Rows::Equal(_) => Ok((ids.get(old)?, true)),
            Rows::Tree => {
                if let Some(ValueRef::Integer(parent)) = values.as_slice().get(1)
                    && *parent >= old
                {
                    return Err(copy.damaged("a stack comes before its caller"));
                }
                let number = |value: Option<&ValueRef<'_>>| match value {
                    Some(ValueRef::Integer(id)) => u32::try_from(*id).unwrap_or(0),
                    _ => 0,
                };
                let (parent, frame) = (number(rest.first()), number(rest.get(1)));
                let tree = self.trees.entry(table.name).or_default();
                if let Some(id) = tree.find(parent, frame) {
                    ids.set(old, id);
                    return Ok((id, false));
                }
                let id = ids.get(old)?;
                tree.insert(parent, frame, id);
                Ok((id, true))
            }
        }
    }

    /// Returns what a value is in the merged profile.
    fn value<'v>(
        &mut self,
        copy: &SourceCopy<'_>,
        meaning: Meaning,
        value: ValueRef<'v>,
    ) -> Result<ValueRef<'v>, MergeError> {
        Ok(match (meaning, value) {
            (Meaning::Value, value) => value,
            (Meaning::Vm, _) => ValueRef::Integer(copy.vm.into()),
            (Meaning::Time, value) => ValueRef::Integer(copy.time(value)?),
            // 0 stands for none, except for vCPUs.
            (Meaning::Id(space), ValueRef::Integer(old)) if old != 0 || space == Space::Vcpu => {
                ValueRef::Integer(self.ids[space as usize].get(old)?.into())
            }
            (Meaning::Id(_), value) => value,
        })
    }

    /// Writes the row of a virtual machine, and its `meta`.
    fn vm(&self, copy: &SourceCopy<'_>) -> rusqlite::Result<()> {
        let SourceCopy { source, vm, from_ns, .. } = *copy;
        let file =
            source.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        self.connection.execute(
            "INSERT INTO vm VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                vm,
                source.name,
                source.host(),
                file,
                from_ns.cast_signed(),
                from_ns.saturating_add(source.duration_ns).cast_signed(),
                source.rate_hz,
                source.clock(),
                source.has_one_clock(),
            ],
        )?;
        let mut insert = self.connection.prepare("INSERT INTO vm_meta VALUES (?, ?, ?)")?;
        source.meta.iter().try_for_each(|(key, value)| insert.execute(params![vm, key, value]).map(drop))
    }

    /// Copies events, and adds the warnings about the source. The name of the machine is before each text.
    fn events(&self, copy: &SourceCopy<'_>) -> Result<(), MergeError> {
        let failed = |error: rusqlite::Error| self.error(&error);
        let insert = "INSERT INTO event (time_ns, kind, text) VALUES (?, ?, ?)";
        let mut insert = self.connection.prepare(insert).map_err(failed)?;
        let name = &copy.source.name;
        for warning in warnings(copy.source) {
            let text = format!("{name}: {warning}");
            insert.execute(params![copy.from_ns.cast_signed(), "missing", text]).map_err(failed)?;
        }
        let sql = "SELECT time_ns, kind, text FROM event ORDER BY id";
        for_each_row(copy, (sql, &[Type::Integer, Type::Text, Type::Text]), |values| {
            let [time, ValueRef::Text(kind), ValueRef::Text(text)] = values.as_slice() else { return Ok(()) };
            let text = format!("{name}: {}", String::from_utf8_lossy(text));
            let time = ValueRef::Integer(copy.time(*time)?);
            let values = [time, ValueRef::Text(kind), ValueRef::Text(text.as_bytes())];
            run(&mut insert, values.into_iter()).map_err(failed)
        })
    }

    fn execute(&self, sql: &str) -> Result<(), MergeError> {
        self.connection.execute_batch(sql).map_err(|error| self.error(&error))
    }

    fn error(&self, error: &rusqlite::Error) -> MergeError {
        MergeError::write(&self.path, error)
    }
}
