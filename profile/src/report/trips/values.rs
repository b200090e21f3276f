//! Values of arguments as text.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;

use super::tally::CountedValues;
use super::{TripValue, part};

/// Meaning of the values of arguments.
pub(super) struct ValueNames {
    /// Kinds of arguments and names of values, by function and number of the argument.
    kinds: HashMap<(u32, u8), (String, HashMap<i64, String>)>,
    texts: HashMap<i64, String>,
}

impl ValueNames {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare("SELECT trip, number, kind, names FROM trip_argument")?;
        let rows = statement.query_map([], |row| {
            // What another program has written there is no name.
            let names: Vec<(i64, String)> =
                serde_json::from_str(&row.get::<_, String>(3)?).unwrap_or_default();
            Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, names.into_iter().collect())))
        })?;
        let kinds = rows.collect::<Result<_, _>>()?;
        let mut statement = connection.prepare("SELECT id, text FROM trip_text")?;
        let texts = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Self { kinds, texts: texts.collect::<Result<_, _>>()? })
    }

    /// Returns the values of an argument, most calls first.
    pub(super) fn describe(&self, argument: (u32, u8), counted: &CountedValues, all: u64) -> Vec<TripValue> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for (value, calls) in &counted.values {
            *counts.entry(self.text(argument, *value)).or_default() += calls;
        }
        if counted.other > 0 {
            counts.insert("[other]".to_owned(), counted.other);
        }
        let value = |(value, calls)| TripValue { value, calls, share: part(calls, all) };
        let mut values: Vec<TripValue> = counts.into_iter().map(value).collect();
        values.sort_by_key(|value| Reverse(value.calls));
        values
    }

    pub(super) fn text(&self, argument: (u32, u8), value: Option<i64>) -> String {
        let Some((kind, names)) = self.kinds.get(&argument) else { return "[unreadable]".to_owned() };
        match (kind.as_str(), value) {
            (_, None) => "NULL".to_owned(),
            ("pointer", Some(0)) => "NULL".to_owned(),
            ("pointer", Some(value)) => format!("{:#x}", value.cast_unsigned()),
            ("unsigned", Some(value)) => value.cast_unsigned().to_string(),
            ("bool", Some(value)) => (value != 0).to_string(),
            ("text", Some(id)) => {
                self.texts.get(&id).map_or_else(|| "[unreadable]".to_owned(), |text| format!("\"{text}\""))
            }
            (_, Some(value)) => names.get(&value).cloned().unwrap_or_else(|| value.to_string()),
        }
    }
}
