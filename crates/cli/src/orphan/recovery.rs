//! The recovery report: what is named like ours and not tracked, by installation and manifest, with what its runner says of its jobs.

use super::report;
use crate::say::one_line;
use crate::show;
use std::collections::{BTreeMap, BTreeSet};
use wire::api::{ImportReport, InferredView, OrphanView, UnlistedJobView, UnlistedView};

/// Letters of a command that are shown.
const COMMAND: usize = 100;

/// Control id and manifest; names that cannot be read stand behind all control ids.
type Group = (String, String);

fn group(name: Option<&InferredView>) -> Group {
    match name {
        Some(name) => (name.control_id.clone(), name.manifest_slug.clone().unwrap_or("none".into())),
        None => ("~".to_owned(), String::new()),
    }
}

pub fn report(found: &[OrphanView], runners: &[UnlistedView]) {
    print!("{}", text(found, runners));
}

/// What belongs together stands together: a machine, and behind it the jobs of its runner.
fn text(found: &[OrphanView], runners: &[UnlistedView]) -> String {
    let mut groups: BTreeMap<Group, Vec<String>> = BTreeMap::new();
    let mut shown = BTreeSet::new();
    for it in found {
        let mut entry = report::entry(it);
        for runner in runners.iter().filter(|runner| runner.name == it.name) {
            shown.insert(&runner.name);
            runner.jobs.iter().for_each(|it| entry.push_str(&job(it)));
        }
        groups.entry(group(it.inferred_info.as_ref())).or_default().push(entry);
    }
    for runner in runners.iter().filter(|runner| !shown.contains(&runner.name)) {
        let mut entry = format!(
            "  {}\n        A runner on {}, heard {}\n",
            one_line(&runner.name),
            one_line(&runner.host),
            show::ago(runner.seen_at)
        );
        runner.jobs.iter().for_each(|it| entry.push_str(&job(it)));
        groups.entry(group(runner.inferred_info.as_ref())).or_default().push(entry);
    }
    let count = groups.values().map(Vec::len).sum::<usize>();
    let mut text = format!("Resources named like ours and not tracked ({count} found)\n");
    for ((control_id, manifest), all) in &groups {
        text.push_str(&match control_id.as_str() {
            "~" => "\nNames that cannot be read:\n".to_owned(),
            _ => format!("\nControl id {control_id}, manifest {manifest}:\n"),
        });
        all.iter().for_each(|entry| text.push_str(entry));
    }
    text
}

fn job(it: &UnlistedJobView) -> String {
    let state = if it.ended { "ended" } else { "running" };
    let what = match (&it.run, &it.run_name, &it.org) {
        (Some(run), Some(name), Some(org)) => {
            let since = it.started_at.map_or_else(String::new, |at| format!(", started {}", show::ago(at)));
            format!("{state}: {} ({run}) of {}{since}", one_line(name), one_line(org))
        }
        _ => format!("{state}: {}", it.job),
    };
    let mut text = format!("        {what}\n");
    if let Some(command) = &it.command {
        text.push_str(&format!("          {}\n", one_line(&command.chars().take(COMMAND).collect::<String>())));
    }
    if let Some(why) = &it.lacks {
        text.push_str(&format!("          cannot be imported: {}\n", one_line(why)));
    }
    text
}

pub fn imported(report: &ImportReport) {
    println!("Imported ({})", report.imported.len());
    for it in &report.imported {
        let from = match it.log_from {
            0 => String::new(),
            from => format!(", its log from byte {from} on"),
        };
        println!("  {} {} in org {}, on {}{from}", it.run, one_line(&it.run_name), one_line(&it.org), it.instance);
    }
    if !report.left.is_empty() {
        println!("\nNot imported ({})", report.left.len());
    }
    for it in &report.left {
        println!("  {}: {}", one_line(&it.name), one_line(&it.why));
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_stands_with_its_manifest_and_its_jobs() {
        let job = |sealed: bool| UnlistedJobView {
            job: "job_2".into(),
            epoch: 1,
            ended: false,
            sealed,
            run: sealed.then(|| "run_1".into()),
            run_name: sealed.then(|| "train".into()),
            org: sealed.then(|| "lab".into()),
            command: sealed.then(|| "python train.py\nsecond".into()),
            started_at: None,
            lacks: (!sealed).then(|| "it does not bear this installation's seal".into()),
        };
        let name = InferredView {
            control_id: "v2a1b2c3".into(),
            manifest_slug: Some("9ix".into()),
            instance_slug: "1h".into(),
        };
        let runner = UnlistedView {
            name: "repl-v2a1b2c3-9ix-1h".into(),
            inferred_info: Some(name),
            host: "box".into(),
            seen_at: show::now_ms(),
            jobs: vec![job(true), job(false)],
        };
        let inferred_info = runner.inferred_info.clone();
        let listed = report::tests::view("other_sessions", "i-77", "repl-v2a1b2c3-9ix-1h", 0, "0.5");
        let listed = OrphanView { inferred_info, ..listed };
        let both = super::text(&[listed], std::slice::from_ref(&runner));
        assert!(
            both.starts_with(
                "Resources named like ours and not tracked (1 found)\n\nControl id v2a1b2c3, manifest 9ix:\n"
            ),
            "{both}"
        );
        assert_eq!(both.matches("repl-v2a1b2c3-9ix-1h").count(), 1, "it stands once: {both}");
        assert_eq!(both.matches("Control id").count(), 1, "{both}");
        assert!(both.contains("i-77") && both.contains("        running: train (run_1) of lab\n"), "{both}");
        let text = text(&[], &[runner]);
        let expected = "Resources named like ours and not tracked (1 found)

Control id v2a1b2c3, manifest 9ix:
  repl-v2a1b2c3-9ix-1h
        A runner on box, heard ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("        running: train (run_1) of lab\n"), "{text}");
        assert!(text.ends_with("cannot be imported: it does not bear this installation's seal\n"), "{text}");
    }
}
