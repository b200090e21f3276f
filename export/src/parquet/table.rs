//! Tables of Parquet files: rows in, row groups out.
//!
//! Every column may be null, so that readers of all versions see one kind of column; an empty text is null.
//! Values are in dictionaries but for columns whose values hardly repeat. Each row group has the smallest and
//! the largest of its texts and times, by which questions choose; those of other numbers would only be bytes.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use ::parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel,
};
use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{KeyValue, SortingColumn};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use ::parquet::schema::types::{ColumnPath, Type};

/// Rows of a row group.
const GROUP: usize = 1 << 17;
/// Size of a column's dictionary in a row group above which values are stored without it, and of a page of
/// values, bytes: what is compressed together.
const DICTIONARY: usize = 8 << 20;
/// Level of ZSTD's compression: files are kept for years, and made once.
const LEVEL: i32 = 9;

/// Type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// Whole numbers of 64 bits.
    Integer,
    /// Fractions.
    Double,
    /// UTF-8.
    Text,
    /// Points in time: microseconds since 1970, UTC.
    Time,
}

/// Name and type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnInfo {
    pub name: &'static str,
    pub kind: ColumnKind,
}

impl ColumnInfo {
    /// Adds how the column is stored.
    fn stored(self, properties: WriterPropertiesBuilder, unique: bool) -> WriterPropertiesBuilder {
        let path = || ColumnPath::from(self.name);
        let properties = match self.kind {
            ColumnKind::Text | ColumnKind::Time => {
                properties.set_column_statistics_enabled(path(), EnabledStatistics::Chunk)
            }
            ColumnKind::Integer | ColumnKind::Double => properties,
        };
        if !unique {
            return properties;
        }
        let encoding = match self.kind {
            // Lengths are apart, so that texts are next to each other.
            ColumnKind::Text => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            ColumnKind::Integer | ColumnKind::Double | ColumnKind::Time => Encoding::PLAIN,
        };
        properties.set_column_dictionary_enabled(path(), false).set_column_encoding(path(), encoding)
    }
}

/// A point in time, ns since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnixTime(pub u64);

/// Values of a column in a row group, nulls left out. One of the lists is in use.
#[derive(Debug, Default)]
pub(crate) struct Column {
    /// 1 for a value, 0 for null, as Parquet's definition levels.
    levels: Vec<i16>,
    numbers: Vec<i64>,
    doubles: Vec<f64>,
    texts: Vec<ByteArray>,
    /// Equal texts share their memory.
    known: HashMap<String, ByteArray>,
}

impl Column {
    fn null(&mut self) {
        self.levels.push(0);
    }

    fn number(&mut self, value: i64) {
        self.levels.push(1);
        self.numbers.push(value);
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return self.null();
        }
        self.levels.push(1);
        if let Some(known) = self.known.get(text) {
            return self.texts.push(known.clone());
        }
        let bytes = ByteArray::from(text.as_bytes().to_vec());
        self.known.insert(text.to_owned(), bytes.clone());
        self.texts.push(bytes);
    }

    fn write(&self, kind: ColumnKind, mut writer: SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = Some(self.levels.as_slice());
        match kind {
            ColumnKind::Integer | ColumnKind::Time => {
                writer.typed::<Int64Type>().write_batch(&self.numbers, levels, None)?
            }
            ColumnKind::Double => writer.typed::<DoubleType>().write_batch(&self.doubles, levels, None)?,
            ColumnKind::Text => writer.typed::<ByteArrayType>().write_batch(&self.texts, levels, None)?,
        };
        writer.close()
    }
}

/// Value of a column.
pub(crate) trait Cell {
    /// Type of the column.
    const KIND: ColumnKind;

    /// Appends the value.
    fn push(&self, column: &mut Column);
}

impl Cell for i64 {
    const KIND: ColumnKind = ColumnKind::Integer;

    fn push(&self, column: &mut Column) {
        column.number(*self);
    }
}

/// Numbers beyond 2^63 become the largest number.
impl Cell for u64 {
    const KIND: ColumnKind = ColumnKind::Integer;

    fn push(&self, column: &mut Column) {
        column.number(i64::try_from(*self).unwrap_or(i64::MAX));
    }
}

impl<T: Cell> Cell for Option<T> {
    const KIND: ColumnKind = T::KIND;

    fn push(&self, column: &mut Column) {
        match self {
            Some(value) => value.push(column),
            None => column.null(),
        }
    }
}

impl Cell for f64 {
    const KIND: ColumnKind = ColumnKind::Double;

    fn push(&self, column: &mut Column) {
        column.levels.push(1);
        column.doubles.push(*self);
    }
}

impl Cell for UnixTime {
    const KIND: ColumnKind = ColumnKind::Time;

    fn push(&self, column: &mut Column) {
        (self.0 / 1_000).push(column);
    }
}

impl Cell for &str {
    const KIND: ColumnKind = ColumnKind::Text;

    fn push(&self, column: &mut Column) {
        column.text(self);
    }
}

impl Cell for String {
    const KIND: ColumnKind = ColumnKind::Text;

    fn push(&self, column: &mut Column) {
        column.text(self);
    }
}

impl Cell for std::borrow::Cow<'_, str> {
    const KIND: ColumnKind = ColumnKind::Text;

    fn push(&self, column: &mut Column) {
        column.text(self);
    }
}

/// Row of a table.
pub(crate) trait TableRow {
    /// The columns in the order of the file.
    const COLUMNS: &'static [ColumnInfo];

    /// Appends the row to its columns.
    fn push(&self, columns: &mut [Column]);
}

/// Declares a row: each field is a column with its name.
macro_rules! table_row {
    (
        $(#[$about:meta])*
        struct $row:ident<$life:lifetime> { $($(#[$doc:meta])* $field:ident: $type:ty,)+ }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        pub(crate) struct $row<$life> { $($(#[$doc])* pub $field: $type,)+ }

        impl<$life> $crate::parquet::table::TableRow for $row<$life> {
            const COLUMNS: &'static [$crate::parquet::table::ColumnInfo] = &[$(
                $crate::parquet::table::ColumnInfo {
                    name: stringify!($field),
                    kind: <$type as $crate::parquet::table::Cell>::KIND,
                }
            ),+];

            fn push(&self, columns: &mut [$crate::parquet::table::Column]) {
                let mut columns = columns.iter_mut();
                $(if let Some(column) = columns.next() {
                    $crate::parquet::table::Cell::push(&self.$field, column);
                })+
            }
        }
    };
}
pub(crate) use table_row;

/// Facts of a file besides its columns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TableFacts<'a> {
    /// Name of the table.
    pub name: &'a str,
    /// Keys and values in the file's metadata.
    pub metadata: &'a [(&'a str, String)],
    /// Columns by which the rows are sorted, rising and nulls first.
    pub sorted_by: &'a [&'a str],
    /// Columns whose values hardly repeat: they have no dictionary, which would add its indexes to them.
    pub unique: &'a [&'a str],
}

/// Writer of a table. What is written before [`TableWriter::finish`] is not a whole file.
pub(crate) struct TableWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    kinds: &'static [ColumnInfo],
    columns: Vec<Column>,
    rows: usize,
}

impl<W: Write + Send> TableWriter<W> {
    /// Begins a table of these rows.
    pub(crate) fn new<R: TableRow>(out: W, facts: TableFacts<'_>) -> io::Result<Self> {
        let columns = R::COLUMNS;
        let schema = schema(facts.name, columns).map_err(io_error)?;
        let place = |name: &&str| columns.iter().position(|column| column.name == *name);
        let sorting = facts.sorted_by.iter().filter_map(place).map(|place| SortingColumn {
            column_idx: i32::try_from(place).unwrap_or(i32::MAX),
            descending: false,
            nulls_first: true,
        });
        let key_value = |(key, value): &(&str, String)| KeyValue::new((*key).to_owned(), value.clone());
        let properties = WriterProperties::builder()
            .set_created_by(concat!("vprof ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL).map_err(io_error)?))
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true)
            .set_dictionary_page_size_limit(DICTIONARY)
            .set_data_page_size_limit(DICTIONARY)
            .set_key_value_metadata(Some(facts.metadata.iter().map(key_value).collect()))
            .set_sorting_columns(Some(sorting.collect()));
        let properties = columns.iter().fold(properties, |properties, column| {
            column.stored(properties, facts.unique.contains(&column.name))
        });
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build()));
        Ok(Self { file: file.map_err(io_error)?, kinds: columns, columns: fresh(columns), rows: 0 })
    }

    /// Appends a row, which is of the type that the table was begun with.
    pub(crate) fn push<R: TableRow>(&mut self, row: &R) -> io::Result<()> {
        debug_assert_eq!(R::COLUMNS, self.kinds);
        row.push(&mut self.columns);
        self.rows += 1;
        if self.rows == GROUP { self.end_group() } else { Ok(()) }
    }

    fn end_group(&mut self) -> io::Result<()> {
        let columns = std::mem::replace(&mut self.columns, fresh(self.kinds));
        self.rows = 0;
        self.write_group(&columns).map_err(io_error)
    }

    fn write_group(&mut self, columns: &[Column]) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for (column, info) in columns.iter().zip(self.kinds) {
            if let Some(writer) = group.next_column()? {
                column.write(info.kind, writer)?;
            }
        }
        group.close().map(drop)
    }

    /// Ends the file, and returns what it was written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.end_group()?;
        }
        self.file.into_inner().map_err(io_error)
    }
}

fn fresh(columns: &[ColumnInfo]) -> Vec<Column> {
    columns.iter().map(|_| Column::default()).collect()
}

fn schema(name: &str, columns: &[ColumnInfo]) -> Result<Type, ParquetError> {
    let fields = columns.iter().map(|column| {
        let (physical, logical) = match column.kind {
            ColumnKind::Integer => (PhysicalType::INT64, None),
            ColumnKind::Double => (PhysicalType::DOUBLE, None),
            ColumnKind::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnKind::Time => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
        };
        let field = Type::primitive_type_builder(column.name, physical);
        field.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build().map(Arc::new)
    });
    Type::group_type_builder(name).with_fields(fields.collect::<Result<_, _>>()?).build()
}

/// Returns the error of the output, if that is the reason.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        error => io::Error::other(error),
    }
}
