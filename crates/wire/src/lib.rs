//! What crosses a process boundary: the public API, events, the runner protocol, and (feature `client`) a typed client.
//! These types are not `model`'s: fields are only added, unknown ones are ignored (but bodies of
//! the public API refuse them), enums keep an `Unknown` arm.

pub mod api;
#[cfg(feature = "client")]
pub mod client;
pub mod pack;
pub mod records;
pub mod runner;

pub use model;

use base64::Engine as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that travel as base64 text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Base64(pub Vec<u8>);

impl std::fmt::Debug for Base64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Base64({} bytes)", self.0.len())
    }
}
#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Base64 {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .content_encoding("base64")
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Base64 {}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}
impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        base64::engine::general_purpose::STANDARD.decode(text).map(Base64).map_err(serde::de::Error::custom)
    }
}
