//! Each node of each intent under faults, and every promise the engine makes about runs, machines, holds and money.

mod bench;
mod cancel;
mod check;
mod crashes;
mod launch;
mod machines;
mod provider_faults;
mod retry;
mod silence;
