//! An entity as the document in its row. Columns beside it are projections for searching; both are written by one statement.

use crate::value::{Row, Value};
use model::{Failure, Trouble};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most documents fit without growing.
const USUAL_BYTES: usize = 1024;

pub(crate) fn write<T: Serialize>(entity: &T) -> String {
    let mut text = Vec::with_capacity(USUAL_BYTES);
    serde_json::to_writer(&mut text, entity).expect("an entity is plain data");
    String::from_utf8(text).expect("JSON is text")
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
