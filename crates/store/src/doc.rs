//! An entity as the document in its row. Columns beside it are projections for searching; both are written by one statement.
//! Empty fields are left out, by attributes of the entity: most entities have half of their fields empty.

use crate::value::{Row, Value};
use model::{Failure, Trouble};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::cell::RefCell;
use std::hash::{DefaultHasher, Hasher as _};

/// The buffer in which a thread serialises documents: most fit without growing it, and a huge buffer is not kept.
const USUAL_BYTES: usize = 4096;
const KEPT_BYTES: usize = 64 * 1024;
/// A thread's cache of parsed documents: 256 entries of at most 4 KiB of text each.
const REMEMBERED: usize = 256;
const REMEMBERED_BYTES: usize = 4096;

thread_local! {
    static WRITTEN: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(USUAL_BYTES));
}

/// Serialised into the buffer and copied into a string of the right size: a submission writes a dozen, of 100 bytes to a few KiB.
pub(crate) fn write<T: Serialize>(entity: &T) -> String {
    WRITTEN.with_borrow_mut(|text| {
        text.clear();
        text.shrink_to(KEPT_BYTES);
        serde_json::to_writer(&mut *text, entity).expect("an entity is plain data");
        std::str::from_utf8(text).expect("JSON is text").to_owned()
    })
}

/// Transactions of a run follow each other, and each reads documents of which the last one has changed few: a text that is in the
/// cache is not parsed again. The cache is keyed by the text itself and filled by reads only, so a cached value is always what the text
/// would parse to.
pub(crate) fn read<T: DeserializeOwned + Clone + 'static>(row: &Row, column: usize) -> Result<T, Failure> {
    let text = row.str(column)?;
    if text.len() > REMEMBERED_BYTES {
        return parse(text);
    }
    let place = place(text);
    let known = |read: &Vec<Option<CachedDoc>>| read.get(place)?.as_ref().filter(|known| known.text == text)?.entity();
    if let Some(entity) = READ.with_borrow(known) {
        return Ok(entity);
    }
    let entity: T = parse(text)?;
    let known = CachedDoc { text: text.to_owned(), entity: Box::new(entity.clone()) };
    READ.with_borrow_mut(|read| {
        read.resize_with(REMEMBERED, || None);
        read[place] = Some(known);
    });
    Ok(entity)
}

/// Of a row that may not be there (an outer join).
pub(crate) fn read_opt<T: DeserializeOwned>(row: &Row, column: usize) -> Result<Option<T>, Failure> {
    match row.value(column)? {
        Value::Null => Ok(None),
        _ => read_once(row, column).map(Some),
    }
}

pub(crate) fn read_all<T: DeserializeOwned + Clone + 'static>(
    rows: Vec<Row>,
    column: usize,
) -> Result<Vec<T>, Failure> {
    rows.iter().map(|row| read(row, column)).collect()
}

/// One of many that go by, and would push out what is read again.
pub(crate) fn read_once<T: DeserializeOwned>(row: &Row, column: usize) -> Result<T, Failure> {
    parse(row.str(column)?)
}

pub(crate) fn page<T: DeserializeOwned>(rows: Vec<Row>, column: usize) -> Result<Vec<T>, Failure> {
    rows.iter().map(|row| read_once(row, column)).collect()
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Trouble::internal(format!("a row's document cannot be read: {error}")).into())
}

/// A text that was read, and its parsed value.
struct CachedDoc {
    text: String,
    entity: Box<dyn Any>,
}

impl CachedDoc {
    fn entity<T: Clone + 'static>(&self) -> Option<T> {
        self.entity.downcast_ref().cloned()
    }
}

thread_local! {
    static READ: RefCell<Vec<Option<CachedDoc>>> = const { RefCell::new(Vec::new()) };
}

/// Its place in the cache. The hash covers the beginning (with the id) and the end (with what changes); texts with the same place replace
/// each other.
fn place(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes[..bytes.len().min(16)]);
    hasher.write(&bytes[bytes.len().saturating_sub(32)..]);
    hasher.write_usize(bytes.len());
    hasher.finish() as usize % REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn reads<T: DeserializeOwned + Clone + 'static>(text: &str) -> Result<T, Failure> {
        read(&Row(args![text].to_vec()), 0)
    }

    #[test]
    fn a_huge_document_is_written_whole_and_leaves_no_room_behind() {
        let huge = "x".repeat(10 * KEPT_BYTES);
        assert_eq!(write(&huge).len(), huge.len() + 2);
        assert_eq!(write(&1), "1");
        assert!(WRITTEN.with_borrow(Vec::capacity) <= KEPT_BYTES);
    }

    #[test]
    fn what_was_read_before_is_what_its_text_says_and_no_other() {
        for version in 0..2000_i64 {
            let text = format!("[{}, {version}]", version % 3);
            for _ in 0..2 {
                assert_eq!(reads::<(i64, i64)>(&text), Ok((version % 3, version)));
                assert_eq!(reads::<Vec<i64>>(&text), Ok(vec![version % 3, version]), "the same text as another thing");
            }
        }
        // The same beginning, end and length, so the same place.
        for middle in ["aaaa", "bbbb", "aaaa"] {
            let text = format!("\"{}{middle}{}\"", "x".repeat(20), "y".repeat(40));
            assert_eq!(reads::<String>(&text).unwrap(), text.trim_matches('"'));
        }
    }

    #[test]
    fn what_cannot_be_read_is_trouble_each_time() {
        for _ in 0..2 {
            assert!(reads::<i64>("[1]").is_err());
        }
    }
}
