//! One decision for every failure: retry, skip, re-plan, escalate or abort. A truth table, tested row by row.

use crate::spec::FailureMode;
use crate::{RunId, string_enum};

string_enum! {
    /// What an error is, whatever it was called where it happened (R43).
    pub enum ErrorClass {
        Transient = "transient", RateLimited = "rate_limited", Resource = "resource", InvalidOutput = "invalid_output",
        Permanent = "permanent", Budget = "budget", Cancelled = "cancelled", Unknown = "unknown",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExhausted {
    Abort,
    Escalate,
}

/// All that the decision looks at.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub class: ErrorClass,
    pub idempotent: bool,
    /// Tries made, this failed one included.
    pub tries: i64,
    pub max_tries: i64,
    pub retry_after_ms: Option<i64>,
    /// Retries left of the run's 20, and whether its credits allow one more.
    pub budget_left: i64,
    pub affordable: bool,
    pub errors_in_window: i64,
    pub total_in_window: i64,
    pub on_exhausted: OnExhausted,
    /// Of the parent.
    pub mode: FailureMode,
    pub replan_possible: bool,
    pub many_children_failed: bool,
    /// ±10 %, drawn outside: -100 … 100 thousandths.
    pub jitter_thousandths: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Retry { after_ms: i64 },
    Skip,
    Replan,
    Escalate,
    Abort,
}

pub const MAX_TRIES: i64 = 3;
pub const RETRY_BUDGET: i64 = 20;
pub const BASE_DELAY_MS: i64 = 100;
pub const MAX_DELAY_MS: i64 = 30_000;
const REPROMPTS: i64 = 2;
const ERRORS_BEFORE_ESCALATION: i64 = 5;
const SAMPLES_BEFORE_RATE: i64 = 10;

pub fn decide(case: &Case) -> Decision {
    if !worth_retrying(case) {
        return given_up(case);
    }
    if case.errors_in_window > ERRORS_BEFORE_ESCALATION || too_many_errors(case) {
        return Decision::Escalate;
    }
    if case.tries >= case.max_tries || case.budget_left <= 0 || !case.affordable {
        return match case.on_exhausted {
            OnExhausted::Escalate => Decision::Escalate,
            OnExhausted::Abort => given_up(case),
        };
    }
    let uncapped =
        BASE_DELAY_MS.saturating_mul(1i64.checked_shl((case.tries - 1).clamp(0, 40) as u32).unwrap_or(i64::MAX));
    if uncapped > MAX_DELAY_MS {
        return Decision::Escalate; // R77: the uncapped delay is what is tested
    }
    Decision::Retry { after_ms: backoff(case.tries, case.jitter_thousandths).max(case.retry_after_ms.unwrap_or(0)) }
}

/// 100 ms × 2ⁿ, jittered, and clamped after the jitter.
pub fn backoff(tries: i64, jitter_thousandths: i64) -> i64 {
    let delay = BASE_DELAY_MS.saturating_mul(1i64 << (tries - 1).clamp(0, 40)).min(MAX_DELAY_MS);
    (delay + delay * jitter_thousandths.clamp(-100, 100) / 1000).clamp(0, MAX_DELAY_MS)
}

/// Jitter for [`backoff`], -100 … 100 thousandths: the same for the same run and attempt, so that a decision made twice is one decision.
/// Runs that failed together get different ones. (The mixing function is splitmix64.)
pub fn jitter(run: RunId, attempt: i64) -> i64 {
    let mut mixed = (run.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(attempt as u64);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) % 201) as i64 - 100
}

/// The pause before the n-th resubmission by infrastructure: 15 s, 30 s, 1, 2, 5, 10 min.
pub fn infrastructure_pause(submission: i64) -> i64 {
    const STEPS: [i64; 6] = [15_000, 30_000, 60_000, 120_000, 300_000, 600_000];
    STEPS[(submission - 1).clamp(0, STEPS.len() as i64 - 1) as usize]
}

fn worth_retrying(case: &Case) -> bool {
    match case.class {
        ErrorClass::Transient | ErrorClass::RateLimited | ErrorClass::Resource => true,
        ErrorClass::InvalidOutput => case.tries <= REPROMPTS,
        ErrorClass::Unknown => case.idempotent,
        ErrorClass::Permanent | ErrorClass::Budget | ErrorClass::Cancelled => false,
    }
}

fn too_many_errors(case: &Case) -> bool {
    case.total_in_window >= SAMPLES_BEFORE_RATE && case.errors_in_window * 2 > case.total_in_window
}

fn given_up(case: &Case) -> Decision {
    match (case.class, case.mode) {
        (ErrorClass::Cancelled | ErrorClass::Budget, _) => Decision::Abort,
        _ if case.replan_possible && case.many_children_failed => Decision::Replan,
        (_, FailureMode::Continue) => Decision::Skip,
        _ => Decision::Abort,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case {
        class: ErrorClass::Transient,
        idempotent: true,
        tries: 1,
        max_tries: MAX_TRIES,
        retry_after_ms: None,
        budget_left: RETRY_BUDGET,
        affordable: true,
        errors_in_window: 1,
        total_in_window: 1,
        on_exhausted: OnExhausted::Abort,
        mode: FailureMode::FailFast,
        replan_possible: false,
        many_children_failed: false,
        jitter_thousandths: 0,
    };

    #[test]
    fn the_truth_table() {
        use Decision::*;
        use ErrorClass::*;
        let table = [
            (Case { ..CASE }, Retry { after_ms: 100 }),
            (Case { tries: 2, ..CASE }, Retry { after_ms: 200 }),
            (Case { tries: 3, ..CASE }, Abort),
            (Case { tries: 3, on_exhausted: OnExhausted::Escalate, ..CASE }, Escalate),
            (Case { tries: 3, mode: FailureMode::Continue, ..CASE }, Skip),
            (Case { class: RateLimited, retry_after_ms: Some(5_000), ..CASE }, Retry { after_ms: 5_000 }),
            (Case { class: Unknown, idempotent: false, ..CASE }, Abort),
            (Case { class: Unknown, ..CASE }, Retry { after_ms: 100 }),
            (Case { class: InvalidOutput, tries: 2, ..CASE }, Retry { after_ms: 200 }),
            (Case { class: InvalidOutput, tries: 3, max_tries: 9, ..CASE }, Abort),
            (Case { class: Permanent, ..CASE }, Abort),
            (Case { class: Permanent, mode: FailureMode::Continue, ..CASE }, Skip),
            (Case { class: Budget, mode: FailureMode::Continue, ..CASE }, Abort),
            (Case { class: Cancelled, mode: FailureMode::Continue, ..CASE }, Abort),
            (
                Case {
                    class: Permanent,
                    mode: FailureMode::Continue,
                    replan_possible: true,
                    many_children_failed: true,
                    ..CASE
                },
                Replan,
            ),
            (Case { errors_in_window: 6, ..CASE }, Escalate),
            (Case { errors_in_window: 5, total_in_window: 9, ..CASE }, Retry { after_ms: 100 }),
            (Case { errors_in_window: 5, total_in_window: 10, ..CASE }, Retry { after_ms: 100 }),
            (Case { budget_left: 0, ..CASE }, Abort),
            (Case { affordable: false, ..CASE }, Abort),
            (Case { tries: 10, max_tries: 20, ..CASE }, Escalate),
        ];
        for (case, decision) in table {
            assert_eq!(decide(&case), decision, "{case:?}");
        }
    }

    #[test]
    fn the_pause_is_clamped_after_the_jitter() {
        assert_eq!(backoff(20, 100), MAX_DELAY_MS);
        assert_eq!(backoff(1, -100), 90);
        let drawn: Vec<i64> = (0..1000).map(|run| jitter(RunId(run), 1 + run % 3)).collect();
        assert!(drawn.iter().all(|jitter| (-100..=100).contains(jitter)), "{drawn:?}");
        assert!(drawn.contains(&-100) && drawn.contains(&100), "the whole range is used");
        assert_eq!(jitter(RunId(7), 2), jitter(RunId(7), 2));
        assert_eq!([1, 2, 6, 99].map(infrastructure_pause), [15_000, 30_000, 600_000, 600_000]);
    }
}
