//! Calls as a whole: keys of cached runs, why two differ, closures, and what a worker's result must be.

mod closures;
mod runs;
