//! SQL queries over a profile.

use std::ops::ControlFlow;

use rusqlite::types::ValueRef;
use serde::{Serialize, Serializer};

use super::{Profile, QueryError};

/// One value of a query's answer. Serializes as the JSON value of its kind, a blob as its bytes in
/// hexadecimal.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// A signed integer.
    Integer(i64),
    /// A floating point number.
    Real(f64),
    /// Text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl Value {
    fn from_ref(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(value) => Self::Integer(value),
            ValueRef::Real(value) => Self::Real(value),
            ValueRef::Text(bytes) => Self::Text(String::from_utf8_lossy(bytes).into_owned()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }
}

/// Returns the bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Real(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::Blob(bytes) => serializer.serialize_str(&hex(bytes)),
        }
    }
}

/// Complete answer of a query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows, each with one value per column.
    pub rows: Vec<Vec<Value>>,
}

impl Profile {
    /// Has queries take as long as they take: a user has written them, and can end them.
    ///
    /// Without this a query whose work is out of proportion to the profile's size is an error.
    pub fn allow_long_queries(&self) {
        self.budget.lift();
    }

    /// Runs one SQL statement that only reads.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn query(&self, sql: &str) -> Result<Table, QueryError> {
        let mut rows = Vec::new();
        let columns = self.query_each(sql, |_, row| {
            rows.push(row);
            ControlFlow::Continue(())
        })?;
        Ok(Table { columns, rows })
    }

    /// Runs one SQL statement that only reads. Passes the columns' names and each row to `each`, until it
    /// breaks; returns the columns' names. For answers that are too long to be in memory at once.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn query_each(
        &self,
        sql: &str,
        mut each: impl FnMut(&[String], Vec<Value>) -> ControlFlow<()>,
    ) -> Result<Vec<String>, QueryError> {
        let mut statement = self.connection.prepare(sql).map_err(|error| self.query_error(&error))?;
        if !statement.readonly() {
            return Err(QueryError::Writes);
        }
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query([]).map_err(|error| self.query_error(&error))?;
        while let Some(row) = rows.next().map_err(|error| self.query_error(&error))? {
            let values =
                (0..columns.len()).map(|i| row.get_ref(i).map(Value::from_ref)).collect::<Result<_, _>>();
            if each(&columns, values.map_err(|error| self.query_error(&error))?).is_break() {
                break;
            }
        }
        Ok(columns)
    }

    fn query_error(&self, error: &rusqlite::Error) -> QueryError {
        use rusqlite::{Error, ErrorCode};
        match error {
            Error::MultipleStatement => QueryError::NotOne,
            Error::SqlInputError { msg, .. } => QueryError::Sql(msg.clone()),
            _ => match error.sqlite_error_code() {
                Some(ErrorCode::ReadOnly) => QueryError::Writes,
                // SQLite's error for text without a statement.
                Some(ErrorCode::ApiMisuse) => QueryError::NotOne,
                Some(ErrorCode::Unknown | ErrorCode::TooBig) | None => QueryError::Sql(error.to_string()),
                Some(_) => QueryError::Profile(self.error(error)),
            },
        }
    }
}
