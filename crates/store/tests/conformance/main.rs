//! Every promise of the store, on SQLite in memory, SQLite in a file and PostgreSQL. A case is a sentence; each gets an empty
//! database of its own.

mod calls;
mod items;
mod keys;
mod lists;
mod logs;
mod money;
mod pipe;
mod postgres;
mod sqlite;
mod statements;
#[path = "../support/mod.rs"]
mod support;
mod things;
mod tls;
mod transactions;

use model::{Credits, Failure, OrgId, RunId};
use store::{Entry, EntryKind, Lane, NewEvent, Store, Tx, org};
use support::postgres::Postgres;
use support::{On, World, block_on};

#[test]
fn in_memory() {
    all(On::Memory, None);
}

#[test]
fn in_a_file() {
    all(On::File, None);
}

#[test]
fn on_postgres() {
    all(On::Postgres, Some(&Postgres::start()));
}

/// Names each case before it runs, so that the last name of a failed test is the one that failed.
fn all(on: On, postgres: Option<&Postgres>) {
    macro_rules! cases {
        ($($module:ident::$case:ident)*) => {$(
            println!("{on:?}: {}", stringify!($case).replace('_', " "));
            block_on($module::$case(&World::new(on, postgres)));
        )*};
    }
    cases! {
        transactions::one_refusal_takes_back_its_own_rows_only
        transactions::a_swallowed_error_commits_nothing
        transactions::ids_are_never_given_twice
        transactions::a_closure_that_needs_many_ids_gets_them
        transactions::an_id_that_was_seen_is_passed_and_one_too_great_is_refused
        transactions::hints_come_after_the_commit_and_once
        transactions::time_does_not_go_backwards_for_a_run
        transactions::locks_are_taken_in_one_order
        transactions::placeholders_mean_their_number
        transactions::an_inline_read_sees_what_is_committed_and_fails_alone
        transactions::an_inline_read_is_a_few_rows_and_bytes
        items::an_item_has_one_holder
        items::a_holder_that_was_replaced_is_refused
        items::a_wake_while_leased_is_not_lost
        items::what_was_woken_while_held_is_due_since_its_last_look
        items::a_wake_only_ever_brings_forward
        items::finishes_and_wakes_of_many_holders_do_not_deadlock
        items::a_restart_frees_everything_at_once
        items::a_dead_lease_frees_what_it_held
        items::a_stale_or_replaced_worker_claims_nothing
        items::an_item_that_kills_its_holders_is_claimed_alone_and_given_up
        items::an_orderly_stop_is_no_death
        items::what_a_worker_does_not_know_it_holds_is_given_back
        items::what_needs_nothing_is_put_off_without_a_lease
        items::an_item_that_is_made_again_begins_above_its_old_fence
        items::a_gap_between_beats_is_an_outage
        items::a_clock_that_was_set_back_is_followed
        items::outages_that_overlap_count_once
        items::a_lease_does_not_run_out_while_nobody_could_renew_it
        items::classes_of_work_do_not_see_each_other
        items::a_provider_that_has_its_share_holds_up_no_other
        items::a_holder_that_dies_long_after_its_claim_did_not_die_of_it
        items::a_link_is_not_suspected_of_killing_its_holders
        money::events_are_numbered_without_gaps
        money::credits_move_only_as_far_as_they_reach
        money::a_movement_is_made_once
        money::the_ledger_is_a_chain_nobody_changes
        money::concurrent_reservations_never_overdraw
        money::usage_is_summed_by_what_it_belongs_to
        things::a_message_is_taken_by_one_turn
        things::a_slot_is_taken_by_the_one_who_saw_it_last
        keys::a_key_has_one_effect
        keys::a_key_is_bound_to_its_request
        keys::a_refusal_leaves_no_key
        logs::a_log_has_no_gaps_and_no_repeats
        logs::each_try_of_a_step_has_a_log_of_its_own
        logs::frames_of_all_logs_of_a_run_have_one_order
        logs::a_new_epoch_of_a_job_goes_on_where_the_log_ended
        logs::a_log_whose_beginning_is_lost_says_from_which_byte_it_is
        logs::a_log_reads_the_same_after_it_was_gathered
        logs::a_log_is_as_old_as_its_run_says
        logs::a_deleted_log_is_gone_with_a_mark
        logs::a_log_that_is_deleted_under_its_reader_says_so
        logs::a_log_over_its_quota_is_marked
        logs::bytes_that_never_came_are_marked
        things::tokens_are_known_by_their_hash
        things::secrets_are_kept_sealed
        things::the_newest_record_is_the_last_one_of_the_last_attempt
        things::orphans_are_kept_until_they_are_not_seen_again
        lists::lists_begin_with_what_was_made_last_whatever_its_id
        things::blobs_are_what_was_sent
        things::contents_go_when_nobody_needs_them
        things::a_tree_keeps_what_it_names
        things::artifacts_reserve_their_bytes
        calls::an_object_belongs_to_one_org_and_is_kept_while_it_is_used
        calls::a_ref_changes_only_from_what_its_writer_saw
        calls::a_pin_answers_its_node_and_keeps_what_its_result_names
        calls::a_record_and_a_listed_artifact_keep_the_content_that_they_name
        calls::many_pins_at_once_are_all_in_the_index
        calls::callers_of_a_key_share_one_execution
        calls::a_claim_is_taken_over_by_one
        transactions::reads_see_one_moment
    }
}

pub const TOPUP: Credits = Credits::whole(100);

pub async fn write<T: Send + 'static>(
    store: &Store,
    f: impl Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
) -> Result<T, Failure> {
    store.write(Lane::Normal, "test", f).await
}

pub async fn read<T: Send + 'static>(
    store: &Store,
    f: impl Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
) -> T {
    store.read("test", f).await.unwrap()
}

pub async fn rich_org(store: &Store) -> OrgId {
    let made = write(store, |tx| {
        let org = org::create(tx, "default")?;
        tx.ledger(Entry::new(org, EntryKind::Topup, TOPUP, "first"));
        Ok(org)
    });
    made.await.unwrap()
}

pub fn happened(org: OrgId, run: i64, kind: &'static str) -> NewEvent {
    NewEvent { org, run: Some(RunId(run)), kind, body: store::body!({ "kind": kind }) }
}

/// Many writes at once; their answers in order.
pub async fn together<T, F>(store: &Store, count: usize, make: impl Fn(usize) -> F) -> Vec<Result<T, Failure>>
where
    T: Send + 'static,
    F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
{
    let tasks: Vec<_> = (0..count)
        .map(|i| {
            let (store, f) = (store.clone(), make(i));
            tokio::spawn(async move { store.write(Lane::Normal, "together", f).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}
