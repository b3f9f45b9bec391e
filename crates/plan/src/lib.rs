//! Plans as users write them (`type: agents`): the document and its check, expressions, keys of steps, the estimate. Pure: no I/O, no clock,
//! no randomness. What the engine runs is [`model::plan`], which [`compile()`] makes from a document.

pub mod check;
pub mod compile;
pub mod document;
mod early;
pub mod estimate;
mod evaluator;
pub mod expression;
pub mod fields;
pub mod key;
pub mod nearest;
pub mod output;
pub mod problem;
pub mod quantity;
mod reference;
pub mod schema;
mod shape;
pub mod template;
mod url;
mod wait;

pub use check::{Checked, MAX_DOCUMENT_BYTES, check, check_planned};
pub use compile::{Compiled, compile, compile_planned};
pub use document::Document;
pub use early::with_inputs;
pub use estimate::{Prices, estimate};
pub use evaluator::{MAX_DEPTH, MAX_READ_BYTES, MAX_RENDERED_BYTES};
pub use key::{Identity, content, identity, key};
pub use output::OutputSchema;
pub use problem::{MAX_PROBLEMS, Problem};
pub use schema::{planned_schema, schema};
pub use shape::shape_problems;
pub use template::{RenderError, Scope, Template, references, render};
pub use wait::parse_time;
