//! Objects from outside: golden vectors that stay stable for ever, properties of the encoding, and what mutated bytes are read as.

mod golden;
mod mutations;
mod properties;
mod samples;
mod values;
