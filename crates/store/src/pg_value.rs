//! The four kinds of value in PostgreSQL's binary format. A statement for which PostgreSQL infers another type of an argument, or that
//! returns one, is a bug of the statement and fails with its text.

use crate::value::Value;
use std::error::Error;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

type Wrong = Box<dyn Error + Sync + Send>;

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Wrong> {
        match (self, ty) {
            (Value::Null, _) => Ok(IsNull::Yes),
            (Value::Int(n), &Type::INT8) => n.to_sql(ty, out),
            (Value::Int(n), &Type::INT4) => i32::try_from(*n)?.to_sql(ty, out),
            (Value::Text(text), &Type::TEXT | &Type::VARCHAR | &Type::UNKNOWN) => text.to_sql(ty, out),
            (Value::Blob(bytes), &Type::BYTEA) => bytes.to_sql(ty, out),
            (value, ty) => Err(format!("the statement takes {ty} but was given {value:?}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Value, Wrong> {
        Ok(match *ty {
            Type::INT8 => Value::Int(i64::from_sql(ty, raw)?),
            Type::INT4 => Value::Int(i32::from_sql(ty, raw)?.into()),
            Type::INT2 => Value::Int(i16::from_sql(ty, raw)?.into()),
            Type::BOOL => Value::Int(bool::from_sql(ty, raw)?.into()),
            Type::NUMERIC => Value::Int(whole(raw).ok_or("a sum is no 64-bit integer")?),
            Type::BYTEA => Value::Blob(raw.to_vec()),
            Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN => Value::Text(String::from_sql(ty, raw)?),
            _ => return Err(format!("a statement answered with {ty}: columns are integers, text and bytes").into()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Value, Wrong> {
        Ok(Value::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// `sum()` of BIGINT answers with NUMERIC: groups of four decimal digits, the first of them worth 10000^weight.
fn whole(raw: &[u8]) -> Option<i64> {
    let word = |i: usize| raw.get(2 * i..2 * i + 2).map(|bytes| i16::from_be_bytes([bytes[0], bytes[1]]));
    let (count, weight, sign) = (word(0)?, word(1)?, word(2)?);
    let mut sum: i128 = 0;
    for i in 0..=i16::max(weight, count - 1) {
        let digit = if i < count { word(4 + i as usize)? } else { 0 };
        if i > weight && digit != 0 {
            return None;
        }
        if i <= weight {
            sum = sum.checked_mul(10_000)?.checked_add(digit.into())?;
        }
    }
    match sign {
        0x0000 => i64::try_from(sum).ok(),
        0x4000 => i64::try_from(-sum).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_as_integers() {
        let numeric = |words: &[i16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        assert_eq!(whole(&numeric(&[0, 0, 0, 0])), Some(0));
        assert_eq!(whole(&numeric(&[2, 1, 0, 0, 12, 3456])), Some(123_456));
        assert_eq!(whole(&numeric(&[1, 2, 0x4000, 0, 5])), Some(-500_000_000));
        assert_eq!(whole(&numeric(&[1, -1, 0, 1, 5000])), None, "0.5");
        assert_eq!(whole(&[1]), None);
    }
}
