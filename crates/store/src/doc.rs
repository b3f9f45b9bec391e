//! An entity as the document in its row. Columns beside it are projections for searching; both are written by one statement.

use crate::value::{Row, Value};
use model::{Failure, Trouble};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn write<T: Serialize>(entity: &T) -> String {
    serde_json::to_string(entity).expect("an entity is plain data")
}

pub(crate) fn read<T: DeserializeOwned>(row: &Row, column: usize) -> Result<T, Failure> {
    serde_json::from_str(row.str(column)?)
        .map_err(|error| Trouble::internal(format!("a row's document cannot be read: {error}")).into())
}

/// Of a row that may not be there (an outer join).
pub(crate) fn read_opt<T: DeserializeOwned>(row: &Row, column: usize) -> Result<Option<T>, Failure> {
    match row.value(column)? {
        Value::Null => Ok(None),
        _ => read(row, column).map(Some),
    }
}

pub(crate) fn read_all<T: DeserializeOwned>(rows: Vec<Row>, column: usize) -> Result<Vec<T>, Failure> {
    rows.iter().map(|row| read(row, column)).collect()
}
