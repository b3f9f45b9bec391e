//! From what a person types to an id: an exact id, a unique beginning of one, a run's name, or `@last`.
//! Never guesses: two candidates are an error that shows both.

use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use wire::api::{JobView, Page, RunView};
use wire::client::{ClientError, Method, encode};

pub const LAST: &str = "@last";
/// A prefix is looked for among this many of the newest; an exact id always works.
const LOOKED_THROUGH: usize = 5_000;
const SHOWN: usize = 5;
/// How many control planes' last runs are remembered here.
const REMEMBERED: usize = 50;

/// A kind of thing that has ids, where it is listed, and how its ids begin.
#[derive(Clone, Copy, PartialEq)]
pub struct Noun {
    pub name: &'static str,
    pub path: &'static str,
    pub prefix: &'static str,
}

pub const RUN: Noun = Noun { name: "run", path: "/runs", prefix: "run_" };
pub const INSTANCE: Noun = Noun { name: "instance", path: "/instances", prefix: "ins_" };
pub const ALLOCATION: Noun = Noun { name: "allocation", path: "/allocations", prefix: "alc_" };
pub const WORKFLOW: Noun = Noun { name: "workflow", path: "/workflows", prefix: "wfl_" };
pub const MANIFEST: Noun = Noun { name: "manifest", path: "/manifests", prefix: "mft_" };
pub const SNAPSHOT: Noun = Noun { name: "snapshot", path: "/snapshots", prefix: "snp_" };
pub const TOKEN: Noun = Noun { name: "token", path: "/tokens", prefix: "tok_" };

pub const ESCALATION: Noun = Noun { name: "escalation", path: "/escalations", prefix: "qst_" };
pub const APPROVAL: Noun = Noun { name: "approval", path: "/approvals", prefix: "qst_" };
pub const CALL: Noun = Noun { name: "call", path: "/calls", prefix: "cal_" };

#[derive(Deserialize)]
struct Listed {
    id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    status: Option<String>,
}

/// The id of a run that is called so.
pub async fn run(plane: &ControlPlane, said: &str) -> Done<String> {
    if said == LAST {
        return last_run(plane).await;
    }
    if is_there(plane, RUN, said).await? {
        return Ok(said.to_owned());
    }
    // A name is unique among open runs; of ended ones the newest is meant.
    let named: Page<RunView> = plane.get(&format!("/runs?all=true&limit=50&name={}", encode(said))).await?;
    let named: Vec<&RunView> = named.data.iter().filter(|run| run.name == said).collect();
    let ended = ["completed", "failed", "cancelled"];
    let open = named.iter().find(|run| !ended.contains(&run.status.as_str()));
    if let Some(run) = open.or(named.iter().max_by_key(|run| run.created_at)) {
        return Ok(run.id.clone());
    }
    by_prefix(plane, RUN, said).await
}

/// The id of anything that has no names.
pub async fn id(plane: &ControlPlane, noun: Noun, said: &str) -> Done<String> {
    if is_there(plane, noun, said).await? { Ok(said.to_owned()) } else { by_prefix(plane, noun, said).await }
}

/// A token by its id, by a unique beginning of it, or by its name if only one has it.
pub async fn token(plane: &ControlPlane, said: &str) -> Done<String> {
    let listed: Vec<Listed> = plane.list(TOKEN.path, LOOKED_THROUGH).await?;
    token_among(said, &listed)
}

fn token_among(said: &str, listed: &[Listed]) -> Done<String> {
    let named: Vec<&Listed> = listed.iter().filter(|it| it.name.as_deref() == Some(said)).collect();
    match named.as_slice() {
        // A word that looks like an id is an id: a token cannot be hidden by giving its id to another as a name.
        _ if said.starts_with(TOKEN.prefix) => choose(TOKEN, said, listed),
        [one] => Ok(one.id.clone()),
        [_, _, ..] => {
            let ids: Vec<&str> = named.iter().map(|it| it.id.as_str()).collect();
            Err(Complaint::refused(format!("{} tokens are called `{said}`", ids.len()))
                .fix(format!("write its id: {}", ids.join(" or "))))
        }
        _ => choose(TOKEN, said, listed),
    }
}

/// An allocation by its id, or by the run that has it.
pub async fn allocation(plane: &ControlPlane, said: &str) -> Done<String> {
    if said.starts_with(ALLOCATION.prefix) {
        return id(plane, ALLOCATION, said).await;
    }
    let run: RunView = plane.get(&format!("/runs/{}", run(plane, said).await?)).await?;
    run.allocation.ok_or_else(|| Complaint::refused(format!("{} has no allocation", run.id)))
}

/// A workflow by its id, or the one that launched a run's last job.
pub async fn workflow(plane: &ControlPlane, said: &str) -> Done<String> {
    if said.starts_with(WORKFLOW.prefix) {
        return id(plane, WORKFLOW, said).await;
    }
    let run = run(plane, said).await?;
    let jobs: Vec<JobView> = plane.list(&format!("/runs/{run}/jobs"), LOOKED_THROUGH).await?;
    let last = jobs.into_iter().max_by_key(|job| (job.attempt, job.submission));
    last.map(|job| job.workflow).ok_or_else(|| Complaint::refused(format!("{run} has no workflow yet")))
}

/// Notes a submitted run for `@last`. Losing this file only loses a convenience, so errors are ignored.
pub fn remember(plane: &ControlPlane, run: &str) {
    let mut last = read_last(plane);
    let key = plane_key(plane);
    if last.len() >= REMEMBERED && !last.contains_key(&key) {
        last.clear();
    }
    last.insert(key, run.to_owned());
    let text = serde_json::to_vec(&last).expect("a map of texts");
    crate::private::home(&plane.settings().home).and_then(|()| crate::private::note(&last_file(plane), &text)).ok();
}

/// The run submitted last from here, without asking whether it is still there.
pub fn remembered(plane: &ControlPlane) -> Option<String> {
    read_last(plane).remove(&plane_key(plane))
}

async fn last_run(plane: &ControlPlane) -> Done<String> {
    if let Some(run) = remembered(plane)
        && is_there(plane, RUN, &run).await?
    {
        return Ok(run);
    }
    let newest: Vec<RunView> = plane.list("/runs?all=true", 1).await?;
    let newest = newest.into_iter().next().map(|run| run.id);
    newest.ok_or_else(|| Complaint::refused("no run yet").fix("make one: repl run -c 'echo hello'"))
}

fn plane_key(plane: &ControlPlane) -> String {
    plane.settings().url.clone().unwrap_or_else(|| "embedded".to_owned())
}

fn last_file(plane: &ControlPlane) -> PathBuf {
    plane.settings().home.join("last")
}

fn read_last(plane: &ControlPlane) -> BTreeMap<String, String> {
    let text = crate::private::read(&last_file(plane)).ok().flatten();
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Whether this is the exact id of something.
pub async fn is_there(plane: &ControlPlane, noun: Noun, said: &str) -> Done<bool> {
    let slug = said.strip_prefix(noun.prefix).and_then(wire::model::id::unslug);
    if slug.is_none() || noun.path == TOKEN.path {
        return Ok(false);
    }
    let path = &format!("{}{}/{said}", crate::control_plane::API, noun.path);
    let asked = plane.patiently(|client| async move {
        match client.request(Method::GET, path).within(wire::client::ANSWER_WITHIN).send().await {
            Ok(_) => Ok(true),
            Err(ClientError::Problem(problem)) if matches!(problem.status, 400 | 404 | 422) => Ok(false),
            Err(error) => Err(error),
        }
    });
    asked.await
}

async fn by_prefix(plane: &ControlPlane, noun: Noun, said: &str) -> Done<String> {
    // Only these listings leave out what has ended.
    let all = if [RUN, INSTANCE, ESCALATION, APPROVAL].contains(&noun) { "?all=true" } else { "" };
    let listed: Vec<Listed> = plane.list(&format!("{}{all}", noun.path), LOOKED_THROUGH).await?;
    choose(noun, said, &listed)
}

fn choose(noun: Noun, said: &str, listed: &[Listed]) -> Done<String> {
    let begin = if said.starts_with(noun.prefix) { said.to_owned() } else { format!("{}{said}", noun.prefix) };
    if let Some(exact) = listed.iter().find(|it| it.id == begin) {
        return Ok(exact.id.clone());
    }
    let begins = |it: &&Listed| !said.is_empty() && (it.id.starts_with(&begin) || it.id.starts_with(said));
    let matching: Vec<&Listed> = listed.iter().filter(begins).collect();
    match matching.as_slice() {
        [one] => Ok(one.id.clone()),
        [] => Err(Complaint::refused(format!("no such {}: {said}", noun.name)).fix(where_to_look(noun, said, listed))),
        many => {
            let mut shown: Vec<String> = many.iter().take(SHOWN).map(|it| describe(it)).collect();
            if many.len() > SHOWN {
                shown.push(format!("and {} more", many.len() - SHOWN));
            }
            Err(Complaint::refused(format!("`{said}` is the beginning of {} {}s", many.len(), noun.name))
                .fix(format!("write more of it: {}", shown.join(", "))))
        }
    }
}

fn where_to_look(noun: Noun, said: &str, listed: &[Listed]) -> String {
    // A name that was made of the id says nothing to a person.
    let chosen = listed.iter().filter(|it| it.name.as_deref() != Some(&it.id.replace('_', "-")));
    let names = chosen.filter_map(|it| it.name.as_deref());
    match crate::nearest::nearest(said, names) {
        Some(name) if name == said => {
            let ids: Vec<&str> =
                listed.iter().filter(|it| it.name.as_deref() == Some(name)).map(|it| it.id.as_str()).collect();
            format!("that is its name, write its id: {}", ids.join(" or "))
        }
        Some(name) => format!("did you mean `{name}`?"),
        None if noun.name == "run" => "see `repl ps -a`".to_owned(),
        None => format!("see `repl {} ls`", noun.name),
    }
}

fn describe(listed: &Listed) -> String {
    match (&listed.name, &listed.status) {
        (Some(name), Some(status)) => format!("{} ({name}, {status})", listed.id),
        (Some(word), None) | (None, Some(word)) => format!("{} ({word})", listed.id),
        (None, None) => listed.id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ids: &[&str]) -> Vec<Listed> {
        let named = |id: &&str| Listed { id: id.to_string(), name: Some(format!("train-{id}")), status: None };
        ids.iter().map(named).collect()
    }

    #[test]
    fn a_unique_beginning_is_enough_and_an_exact_match_wins() {
        let runs = listed(&["run_1", "run_12", "run_9ix"]);
        let table = [
            ("run_9", Ok("run_9ix")),
            ("9i", Ok("run_9ix")),
            ("run_1", Ok("run_1")),
            ("1", Ok("run_1")),
            ("ru", Err("`ru` is the beginning of 3 runs")),
            ("run_", Err("`run_` is the beginning of 3 runs")),
            ("run_7", Err("no such run: run_7")),
            ("", Err("no such run: ")),
        ];
        for (said, expected) in table {
            let chosen = choose(RUN, said, &runs);
            let chosen = chosen.as_deref().map_err(|complaint| complaint.text.as_str());
            assert_eq!(chosen, expected, "{said}");
        }
    }

    #[test]
    fn a_slip_finds_its_neighbour() {
        let complaint = choose(RUN, "trian-run_1", &listed(&["run_1"])).unwrap_err();
        assert_eq!(complaint.fix.as_deref(), Some("did you mean `train-run_1`?"));
        let unnamed = [Listed { id: "run_4".into(), name: Some("run-4".into()), status: None }];
        let complaint = choose(RUN, "rum-4", &unnamed).unwrap_err();
        assert_eq!(complaint.fix.as_deref(), Some("see `repl ps -a`"), "nobody called it so");
    }

    #[test]
    fn a_token_is_found_by_its_name() {
        let of = |id: &str, name: &str| Listed { id: id.into(), name: Some(name.into()), status: None };
        let all =
            [of("tok_1", "owner"), of("tok_2", "laptop"), of("tok_3", "ci"), of("tok_4", "ci"), of("tok_5", "tok_1")];
        assert_eq!(token_among("laptop", &all).as_deref(), Ok("tok_2"));
        assert_eq!(token_among("tok_1", &all).as_deref(), Ok("tok_1"), "an id wins over a name");
        let two = token_among("ci", &all).unwrap_err();
        assert_eq!(two.to_string(), "error: 2 tokens are called `ci`\n  fix: write its id: tok_3 or tok_4");
        assert!(token_among("laptpo", &all).unwrap_err().fix.unwrap().contains("`laptop`"));
    }
}
