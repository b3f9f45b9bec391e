//! What work has used: tokens and turns of models, time of machines, credits. Sums only; what each charge was for stands in the ledger.

use crate::{Credits, string_enum};
use std::ops::AddAssign;

string_enum! {
    /// What the usage of an org is summed by.
    pub enum UsageBy { Run = "run", Agent = "agent", Model = "model", Provider = "provider", Day = "day" }
}

/// Amounts of one charge, or the sum of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that a model has answered, also those whose answer could not be used.
    pub turns: i64,
    /// Calls of tools that models have asked for.
    pub calls: i64,
    /// Turns whose tokens the model's server did not count: the numbers are our estimate.
    pub estimated: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub machine_ms: i64,
    pub charged: Credits,
}

impl Usage {
    pub fn is_zero(&self) -> bool {
        *self == Usage::default()
    }

    /// What is left of a total when these are taken away.
    pub fn without(mut self, part: Usage) -> Usage {
        self.turns -= part.turns;
        self.calls -= part.calls;
        self.estimated -= part.estimated;
        self.input_tokens -= part.input_tokens;
        self.output_tokens -= part.output_tokens;
        self.machine_ms -= part.machine_ms;
        self.charged = self.charged - part.charged;
        self
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, more: Usage) {
        self.turns += more.turns;
        self.calls += more.calls;
        self.estimated += more.estimated;
        self.input_tokens += more.input_tokens;
        self.output_tokens += more.output_tokens;
        self.machine_ms += more.machine_ms;
        self.charged = self.charged + more.charged;
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}
