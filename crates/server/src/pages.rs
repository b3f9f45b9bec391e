//! Pages for people: what the API says, as HTML. Pure pieces; never know more than the API does.
#![allow(dead_code, reason = "the pages that show them are made beside them")]

mod drawing;
mod log_search;
mod log_text;
mod log_window;
