//! Crash points: named places around commits, calls, reports and renames where tests kill or stop a process. `main` arms them; a point
//! that is not armed costs one load. This module never reads the environment and never ends a process itself.

use std::fmt;
use std::sync::OnceLock;

/// Variables that arm a process: `REPL_CRASH=server/run.submit:before` kills it there, `REPL_STOP=…` stops it there.
pub const VARIABLES: [&str; 2] = ["REPL_CRASH", "REPL_STOP"];
/// The variable that lets one known bug in, in a build with `--cfg bug_zoo`.
pub const BUG: &str = "REPL_BUG";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// Which processes reach a point. An embedded control plane is server and worker at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Worker,
    Runner,
    Keeper,
    Cli,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Moment::Before => "before",
            Moment::After => "after",
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Server => "server",
            Role::Worker => "worker",
            Role::Runner => "runner",
            Role::Keeper => "keeper",
            Role::Cli => "cli",
        })
    }
}

type Hook = Box<dyn Fn(&'static str, Moment) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// From now on the hook is asked at every point. The first one stays.
pub fn arm(hook: impl Fn(&'static str, Moment) + Send + Sync + 'static) {
    let _ = HOOK.set(Box::new(hook));
}

pub fn reached(name: &'static str, moment: Moment) {
    if let Some(hook) = HOOK.get() {
        hook(name, moment);
    }
}

/// An act between its two points: `crash_point!("blob.keep", rename(draft, name))?`.
#[macro_export]
macro_rules! crash_point {
    ($name:literal, $act:expr) => {{
        $crate::fault::reached($name, $crate::fault::Moment::Before);
        let done = $act;
        $crate::fault::reached($name, $crate::fault::Moment::After);
        done
    }};
}

/// Whether this known bug is let in: `if bug!(hint_before_commit) { … }`. Always false but in a `--cfg bug_zoo` build.
#[macro_export]
macro_rules! bug {
    ($name:ident) => {
        $crate::fault::is_let_in(stringify!($name))
    };
}

#[cfg(bug_zoo)]
pub use crate::zoo::is_let_in;

#[cfg(not(bug_zoo))]
#[inline(always)]
pub const fn is_let_in(_bug: &str) -> bool {
    false
}

/// Every point and who reaches it. `tidy` compares it with the sources; the kill test kills at each, before and after.
/// A write of the store is a point by its name.
pub const POINTS: &[(&str, &[Role])] = &[
    ("adapter.close", &[Role::Worker]),
    ("adapter.invoke", &[Role::Worker]),
    ("agent.advance", &[Role::Worker]),
    ("agent.report", &[Role::Worker]),
    ("allocation.extend", &[Role::Server]),
    ("allocation.reconcile", &[Role::Worker]),
    ("allocation.release", &[Role::Server]),
    ("answer.keep", &[Role::Server]),
    ("api.post", &[Role::Cli]),
    ("artifact.announce", &[Role::Server]),
    ("artifact.keep", &[Role::Server]),
    ("artifact.lease", &[Role::Server]),
    ("artifact.place", &[Role::Cli]),
    ("artifact.put", &[Role::Runner]),
    ("blob.announce", &[Role::Server]),
    ("blob.delete", &[Role::Worker]),
    ("blob.keep", &[Role::Server, Role::Worker]),
    ("blob.kept", &[Role::Server]),
    ("blob.pack", &[Role::Cli]),
    ("blob.put", &[Role::Cli]),
    ("cache.invalidate", &[Role::Server]),
    ("cache.keep", &[Role::Runner]),
    ("cache.rebuild", &[Role::Server]),
    ("cache.sweep", &[Role::Server, Role::Worker]),
    ("cache.unpin", &[Role::Server, Role::Worker]),
    ("call.ask", &[Role::Server]),
    ("call.cancel", &[Role::Server]),
    ("call.step", &[Role::Worker]),
    ("call.used", &[Role::Server]),
    ("contain.end", &[Role::Runner]),
    ("control.announce", &[Role::Server]),
    ("control.start", &[Role::Cli]),
    ("credits.add", &[Role::Server]),
    ("dag.put", &[Role::Server]),
    ("dag.ref", &[Role::Server]),
    ("dag.touch", &[Role::Server]),
    ("dag.touch_blobs", &[Role::Server]),
    ("dag.unref", &[Role::Server]),
    ("database.sync", &[Role::Server, Role::Worker]),
    ("exchange.export", &[Role::Worker]),
    ("execution.advance", &[Role::Worker]),
    ("execution.answer", &[Role::Worker]),
    ("execution.begin", &[Role::Worker]),
    ("execution.close", &[Role::Worker]),
    ("execution.fail_caller", &[Role::Worker]),
    ("execution.fetch", &[Role::Worker]),
    ("execution.forget", &[Role::Worker]),
    ("execution.give_up", &[Role::Worker]),
    ("execution.heard", &[Role::Worker]),
    ("execution.integrate", &[Role::Worker]),
    ("execution.poll", &[Role::Worker]),
    ("execution.stage", &[Role::Worker]),
    ("execution.stop", &[Role::Worker]),
    ("exit.begun", &[Role::Keeper]),
    ("exit.write", &[Role::Keeper, Role::Runner]),
    ("feature.said", &[Role::Server]),
    ("feature.script", &[Role::Runner]),
    ("files.place", &[Role::Runner]),
    ("heartbeat.post", &[Role::Runner]),
    ("hints.tell", &[Role::Server, Role::Worker]),
    ("idempotency.refuse", &[Role::Server]),
    ("ids.mark", &[Role::Server]),
    ("ids.pass", &[Role::Server, Role::Worker]),
    ("ids.take", &[Role::Server, Role::Worker]),
    ("installation.write", &[Role::Server]),
    ("instance.drain", &[Role::Server]),
    ("instance.forgotten", &[Role::Worker]),
    ("instance.look_for_all", &[Role::Worker]),
    ("instance.reconcile", &[Role::Worker]),
    ("instance.retire_idle", &[Role::Server]),
    ("instance.seen", &[Role::Server]),
    ("instance.stream_closed", &[Role::Server]),
    ("instance.terminate", &[Role::Server]),
    ("job.change_pool", &[Role::Worker]),
    ("job.exec", &[Role::Keeper]),
    ("job.reconcile", &[Role::Worker]),
    ("journal.begins", &[Role::Runner]),
    ("journal.forget", &[Role::Runner]),
    ("journal.frozen", &[Role::Runner]),
    ("journal.replace", &[Role::Runner]),
    ("keeper.fork", &[Role::Runner]),
    ("kept.put", &[Role::Runner]),
    ("local.boot", &[Role::Worker]),
    ("local.clean_up", &[Role::Worker]),
    ("local.forget", &[Role::Worker]),
    ("local.start", &[Role::Worker]),
    ("local.terminated", &[Role::Worker]),
    ("local.trace", &[Role::Worker]),
    ("log.append", &[Role::Server]),
    ("log.begin_at", &[Role::Server]),
    ("log.delete", &[Role::Worker]),
    ("log.gathered", &[Role::Worker]),
    ("log.keep_from", &[Role::Worker]),
    ("log.mark_deleted", &[Role::Worker]),
    ("log.seal", &[Role::Worker]),
    ("log.sweep", &[Role::Worker]),
    ("manifest.reconcile", &[Role::Worker]),
    ("message.send", &[Role::Server]),
    ("notify.start", &[Role::Worker]),
    ("org.ensure", &[Role::Server]),
    ("orphan.arm", &[Role::Server, Role::Worker]),
    ("orphan.end", &[Role::Server]),
    ("orphan.ended", &[Role::Worker]),
    ("orphan.import", &[Role::Server]),
    ("orphan.keep", &[Role::Server]),
    ("orphan.scan", &[Role::Server, Role::Worker]),
    ("orphan.told", &[Role::Worker]),
    ("output.announce", &[Role::Worker]),
    ("pool.place", &[Role::Worker]),
    ("provider.abandon", &[Role::Server]),
    ("provider.add", &[Role::Server]),
    ("provider.clear", &[Role::Worker]),
    ("provider.copy", &[Role::Server, Role::Worker]),
    ("provider.force", &[Role::Server, Role::Worker]),
    ("provider.forget", &[Role::Worker]),
    ("provider.gone", &[Role::Worker]),
    ("provider.hosts", &[Role::Worker]),
    ("provider.in_use", &[Role::Worker]),
    ("provider.inspect", &[Role::Worker]),
    ("provider.leave", &[Role::Server]),
    ("provider.remove_workdir", &[Role::Worker]),
    ("provider.seen", &[Role::Server]),
    ("provider.spawn", &[Role::Worker]),
    ("provider.terminate", &[Role::Worker]),
    ("provider.test", &[Role::Server]),
    ("provider.tested", &[Role::Server]),
    ("question.answer", &[Role::Server]),
    ("question.told", &[Role::Worker]),
    ("question.untold", &[Role::Worker]),
    ("register.post", &[Role::Runner]),
    ("report.post", &[Role::Runner]),
    ("run.act", &[Role::Server]),
    ("run.delete", &[Role::Server]),
    ("run.finish", &[Role::Server]),
    ("run.reconcile", &[Role::Worker]),
    ("run.submit", &[Role::Server]),
    ("run.submit_cached", &[Role::Server]),
    ("runner.heard_again", &[Role::Server]),
    ("runner.register", &[Role::Server]),
    ("runner.report", &[Role::Server]),
    ("runner.tail", &[Role::Server]),
    ("runner.unlisted", &[Role::Server, Role::Worker]),
    ("secret.delete", &[Role::Server]),
    ("secret.put", &[Role::Server]),
    ("session.end", &[Role::Server]),
    ("session.open", &[Role::Server]),
    ("slot.assign", &[Role::Runner]),
    ("snapshot.create", &[Role::Server]),
    ("snapshot.delete", &[Role::Server]),
    ("snapshot.put", &[Role::Runner]),
    ("snapshot.taken", &[Role::Server]),
    ("spool.append", &[Role::Keeper]),
    ("spool.drop", &[Role::Keeper]),
    ("spool.roll", &[Role::Keeper]),
    ("step.announce", &[Role::Server]),
    ("step.beat", &[Role::Server]),
    ("step.begin", &[Role::Server]),
    ("step.end", &[Role::Server]),
    ("step.leases", &[Role::Worker]),
    ("step.recorded", &[Role::Server]),
    ("step.take", &[Role::Server]),
    ("store.migrate", &[Role::Server, Role::Worker]),
    ("sweep.arm", &[Role::Worker]),
    ("sweep.artifact", &[Role::Worker]),
    ("sweep.keys", &[Role::Worker]),
    ("sweep.links", &[Role::Worker]),
    ("token.create", &[Role::Server]),
    ("token.file", &[Role::Server]),
    ("token.revoke", &[Role::Server]),
    ("tree.link", &[Role::Server]),
    ("work.claim", &[Role::Worker]),
    ("work.finish", &[Role::Worker]),
    ("work.give_up", &[Role::Worker]),
    ("workdir.remove", &[Role::Runner]),
    ("worker.beat", &[Role::Worker]),
    ("worker.start", &[Role::Worker]),
    ("worker.stop", &[Role::Worker]),
    ("workflow.mark", &[Role::Worker]),
    ("workflow.record", &[Role::Worker]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_stands_between_its_points() {
        static SEEN: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
        arm(|name, moment| SEEN.lock().unwrap().push(format!("{name}:{moment}")));
        let done = crash_point!("act", SEEN.lock().unwrap().len());
        assert_eq!((done, SEEN.lock().unwrap().clone()), (1, vec!["act:before".to_owned(), "act:after".to_owned()]));
    }

    #[test]
    fn a_point_is_listed_once() {
        assert!(POINTS.is_sorted_by(|a, b| a.0 < b.0), "in order, so that two changes meet");
    }
}
