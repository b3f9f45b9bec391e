//! Arguments and results of statements: four kinds of value, the same on both databases. A conversion to a domain type that fails is
//! reported with its column: it is a bug or a damaged file.

use model::{Credits, Failure, Timestamp, Trouble};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
    Blob(Vec<u8>),
}

impl Value {
    pub(crate) fn as_int(&self) -> Option<i64> {
        if let Value::Int(number) = self { Some(*number) } else { None }
    }

    /// The length of text and blobs; 0 for the others.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Value::Null | Value::Int(_) => 0,
            Value::Text(text) => text.len(),
            Value::Blob(bytes) => bytes.len(),
        }
    }
}

/// The arguments of one statement: `tx.exec(&SAVE, &args![run.id, run.status.as_str()])`.
#[macro_export]
macro_rules! args {
    () => { <[$crate::Value; 0]>::default() };
    ($($value:expr),+ $(,)?) => { [$($crate::Value::from($value)),+] };
}

/// One row of an answer, columns by position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row(pub(crate) Vec<Value>);

impl Row {
    pub fn int(&self, column: usize) -> Result<i64, Failure> {
        match self.value(column)? {
            Value::Int(n) => Ok(*n),
            other => Err(wrong(column, "an integer", other)),
        }
    }

    pub fn text(&self, column: usize) -> Result<String, Failure> {
        self.str(column).map(str::to_owned)
    }

    /// The text without copying it: for parsing into an enum.
    pub fn str(&self, column: usize) -> Result<&str, Failure> {
        match self.value(column)? {
            Value::Text(text) => Ok(text),
            other => Err(wrong(column, "text", other)),
        }
    }

    pub fn blob(&self, column: usize) -> Result<Vec<u8>, Failure> {
        match self.value(column)? {
            Value::Blob(bytes) => Ok(bytes.clone()),
            other => Err(wrong(column, "bytes", other)),
        }
    }

    pub fn at(&self, column: usize) -> Result<Timestamp, Failure> {
        self.int(column).map(Timestamp)
    }

    pub fn credits(&self, column: usize) -> Result<Credits, Failure> {
        self.int(column).map(Credits)
    }

    pub fn flag(&self, column: usize) -> Result<bool, Failure> {
        self.int(column).map(|n| n != 0)
    }

    pub fn opt_int(&self, column: usize) -> Result<Option<i64>, Failure> {
        self.optional(column, Row::int)
    }

    pub fn opt_text(&self, column: usize) -> Result<Option<String>, Failure> {
        self.optional(column, Row::text)
    }

    pub fn opt_blob(&self, column: usize) -> Result<Option<Vec<u8>>, Failure> {
        self.optional(column, Row::blob)
    }

    pub fn opt_at(&self, column: usize) -> Result<Option<Timestamp>, Failure> {
        self.optional(column, Row::at)
    }

    pub fn value(&self, column: usize) -> Result<&Value, Failure> {
        self.0.get(column).ok_or_else(|| Trouble::internal(format!("a row has no column {column}")).into())
    }

    fn optional<T>(&self, column: usize, read: fn(&Row, usize) -> Result<T, Failure>) -> Result<Option<T>, Failure> {
        match self.value(column)? {
            Value::Null => Ok(None),
            _ => read(self, column).map(Some),
        }
    }
}

fn wrong(column: usize, wanted: &str, found: &Value) -> Failure {
    let found = match found {
        Value::Null => "NULL",
        Value::Int(_) => "an integer",
        Value::Text(_) => "text",
        Value::Blob(_) => "bytes",
    };
    Trouble::internal(format!("column {column} should be {wanted} but is {found}")).into()
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

macro_rules! values {
    ($($type:ty, $value:ident => $made:expr;)*) => {$(
        impl From<$type> for Value {
            fn from($value: $type) -> Value { $made }
        }
    )*};
}

values! {
    i64, n => Value::Int(n);
    i32, n => Value::Int(n.into());
    u32, n => Value::Int(n.into());
    bool, yes => Value::Int(yes.into());
    &str, text => Value::Text(text.to_owned());
    String, text => Value::Text(text);
    &String, text => Value::Text(text.clone());
    Vec<u8>, bytes => Value::Blob(bytes);
    &[u8], bytes => Value::Blob(bytes.to_vec());
    Timestamp, at => Value::Int(at.0);
    Credits, amount => Value::Int(amount.0);
    model::OrgId, id => Value::Int(id.0);
    model::RunId, id => Value::Int(id.0);
    model::AgentId, id => Value::Int(id.0);
    model::TaskId, id => Value::Int(id.0);
    model::StepId, id => Value::Int(id.0);
    model::JobId, id => Value::Int(id.0);
    model::AllocationId, id => Value::Int(id.0);
    model::InstanceId, id => Value::Int(id.0);
    model::PoolId, id => Value::Int(id.0);
    model::WorkflowId, id => Value::Int(id.0);
    model::ManifestId, id => Value::Int(id.0);
    model::ArtifactId, id => Value::Int(id.0);
    model::SnapshotId, id => Value::Int(id.0);
    model::QuestionId, id => Value::Int(id.0);
    model::OrphanId, id => Value::Int(id.0);
    model::TokenId, id => Value::Int(id.0);
    model::MessageId, id => Value::Int(id.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_the_wrong_kind_is_trouble_not_a_default() {
        let row = Row(args![5, "x", None::<i64>].to_vec());
        assert_eq!(row.int(0), Ok(5));
        assert_eq!(row.opt_int(2), Ok(None));
        assert!(row.int(1).is_err() && row.int(2).is_err() && row.text(0).is_err() && row.int(9).is_err());
    }
}
