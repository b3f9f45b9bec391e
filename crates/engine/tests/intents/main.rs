//! Each node of each intent under faults, and every promise the engine makes about runs, machines, holds and money.

mod advice;
mod artifacts;
mod bench;
mod cancel;
mod check;
mod crashes;
mod holds;
mod idle_billing;
mod keys;
mod launch;
mod machines;
mod money;
mod pause;
mod placement;
mod provider_faults;
mod reports;
mod rests;
mod retry;
mod silence;
mod slow;
mod sweeps;
