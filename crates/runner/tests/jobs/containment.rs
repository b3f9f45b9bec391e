//! Nothing of a job outlives its keeper, in each of the ways it can be held together here, and the job notices nothing of
//! it. A way this host does not offer is skipped, with the reason on stderr.

use crate::host::{JOB, NOBODY, RunnerUnderTest, skip};
use crate::stops::frozen;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use wire::runner::{DesiredState, EndCause, Stream, What};

const WAYS: [&str; 3] = ["cgroup", "pidns", "sweep"];

async fn house_held_by(way: &'static str) -> Option<RunnerUnderTest> {
    let found = runner::containment(Some(way));
    if found.way.word() != way {
        skip("containment", &format!("{way} is not to be had on this host: {:?}", found.passed_over));
        return None;
    }
    let mut host = RunnerUnderTest::unstarted(|_| {});
    host.limits.memory_bytes = Some(64 << 20);
    host.containment = way;
    start(&mut host, way).await;
    Some(host)
}

/// A user who cannot write to a control group and has no privilege.
pub async fn house_of_nobody() -> Option<RunnerUnderTest> {
    let mut host = RunnerUnderTest::unstarted(|_| {});
    host.as_nobody = true;
    host.start();
    host.control.until("the runner registers", |state| state.session == 1).await;
    let way = host.control.see(|state| state.registers[0].containment.clone());
    if way.as_deref() != Some("pidns") {
        skip("containment", &format!("nobody's jobs are held by {way:?} on this host"));
        return None;
    }
    Some(host)
}

async fn start(host: &mut RunnerUnderTest, way: &str) {
    host.start();
    host.control.until("the runner registers", |state| state.session == 1).await;
    assert_eq!(host.control.see(|state| state.registers[0].containment.clone()).as_deref(), Some(way));
}

/// A number of seconds that no other test sleeps, by which its sleepers are known.
pub fn a_long_time() -> String {
    use std::hash::{BuildHasher, Hasher};
    let luck = std::hash::RandomState::new().build_hasher().finish();
    format!("100000.{luck}")
}

/// Leaves processes that are in no group, session or descent of the command, know no variable, take no hint, and
/// multiply (up to a number that a failing test may leave behind).
fn hostile(long: &str) -> String {
    format!(
        "env -i setsid sh -c '(env -i setsid sleep {long} >/dev/null 2>&1 &)'
         env -i setsid sh -c 'trap \"\" HUP TERM INT; sleep {long} & sleep {long}' >/dev/null 2>&1 &
         (env -i setsid sh -c 'for n in $(seq 500); do sleep {long} & sleep 0.02; done' >/dev/null 2>&1 &)
         sleep {long} & echo ready; sleep {long}"
    )
}

pub async fn no_sleeper_is_left(host: &RunnerUnderTest, long: &str) {
    while !host.named(long).is_empty() {
        tokio::task::yield_now().await;
    }
}

async fn enough_sleepers(host: &RunnerUnderTest, long: &str) {
    while host.named(long).len() < 8 {
        tokio::task::yield_now().await;
    }
}

async fn ask_for_hostility(host: &RunnerUnderTest) -> String {
    let long = a_long_time();
    host.ask(host.job(&hostile(&long)));
    host.says("ready").await;
    enough_sleepers(host, &long).await;
    long
}

#[tokio::test]
async fn hostile_processes_end_with_their_keeper() {
    for way in WAYS {
        let Some(host) = house_held_by(way).await else { continue };
        let long = ask_for_hostility(&host).await;
        kill(Pid::from_raw(host.keeper_pid()), Signal::SIGKILL).unwrap();
        let What::Ended { cause, .. } = host.ends().await else { panic!() };
        assert_eq!(cause, Some(EndCause::KeeperDied), "{way}");
        assert_eq!(host.named(&long), [] as [i32; 0], "{way}: the end is told when nothing is left");
    }
}

#[tokio::test]
async fn hostile_processes_of_nobody_end_with_their_keeper() {
    let Some(host) = house_of_nobody().await else { return };
    let long = ask_for_hostility(&host).await;
    kill(Pid::from_raw(host.keeper_pid()), Signal::SIGKILL).unwrap();
    host.ends().await;
    assert_eq!(host.named(&long), [] as [i32; 0]);
}

#[tokio::test]
async fn in_a_namespace_nobody_has_to_come_and_end_them() {
    let houses = [house_held_by("pidns").await, house_of_nobody().await];
    for mut host in houses.into_iter().flatten() {
        let long = ask_for_hostility(&host).await;
        let keeper = host.keeper_pid();
        host.kill_runner().await;
        kill(Pid::from_raw(keeper), Signal::SIGKILL).unwrap();
        no_sleeper_is_left(&host, &long).await;
        host.start();
        let What::Ended { cause, .. } = host.ends().await else { panic!() };
        assert_eq!(cause, Some(EndCause::KeeperDied));
    }
}

#[tokio::test]
async fn a_group_is_ended_by_the_next_runner() {
    let Some(mut host) = house_held_by("cgroup").await else { return };
    let long = ask_for_hostility(&host).await;
    let keeper = host.keeper_pid();
    host.kill_runner().await;
    kill(Pid::from_raw(keeper), Signal::SIGKILL).unwrap();
    host.start();
    host.ends().await;
    assert_eq!(host.named(&long), [] as [i32; 0]);
}

#[tokio::test]
async fn what_a_command_leaves_ends_with_it_and_its_end_is_its_own() {
    let ends = [
        ("exit 5", (Some(5), None)),
        ("kill -SEGV $$", (None, Some(11))),
        ("kill -KILL $$", (None, Some(9))),
        ("exec ./nothing", (Some(127), None)),
    ];
    for way in WAYS {
        for (end, expected) in ends {
            let Some(host) = house_held_by(way).await else { continue };
            let long = a_long_time();
            host.ask(host.job(&format!("env -i setsid sh -c '(sleep {long} >/dev/null 2>&1 &)'; {end}")));
            let What::Ended { exit_code, signal, cause, .. } = host.ends().await else { panic!() };
            assert_eq!((exit_code, signal, cause), (expected.0, expected.1, None), "{way}: {end}");
            assert_eq!(host.named(&long), [] as [i32; 0], "{way}: {end}");
        }
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told_the_same_in_every_way() {
    for way in WAYS {
        for (program, code) in [("nothing-of-that-name", 127), ("/", 126)] {
            let Some(host) = house_held_by(way).await else { continue };
            let mut job = host.job("");
            job.command = wire::runner::Command::Argv(vec![program.to_owned()]);
            host.ask(job);
            let What::Ended { exit_code, cause, .. } = host.ends().await else { panic!() };
            assert_eq!((exit_code, cause), (Some(code), None), "{way}: {program}");
        }
    }
}

#[tokio::test]
async fn a_job_finds_itself_as_without_a_namespace() {
    // Who am I, is /proc about me, may I write to my own output again, and does a process collect my orphans?
    let script = "id -u; id -g; [ -e /proc/$$/fd/1 ] && cat /proc/$$/comm; echo again >/dev/stdout; : >/dev/null
        readlink /proc/self | grep -qx \"$(sh -c 'echo $PPID')\" || sh -c 'readlink /proc/self; echo of $$' >&2
        for n in 1 2 3 4 5; do (true &); done
        while grep -qs '^State:.Z' /proc/[0-9]*/status; do :; done; echo clean";
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let houses = [(house_held_by("pidns").await, (uid, gid)), (house_of_nobody().await, nobody_or((uid, gid)))];
    for (host, (uid, gid)) in houses {
        let Some(host) = host else { continue };
        host.ask(host.job(script));
        let What::Ended { exit_code, .. } = host.ends().await else { panic!() };
        let log = host.control.see(|state| state.log(JOB));
        assert_eq!(
            log.text(Stream::Stdout),
            format!("{uid}\n{gid}\nsh\nagain\nclean\n"),
            "{:?}",
            log.text(Stream::Stderr)
        );
        assert_eq!((exit_code, log.text(Stream::Runner)), (Some(0), String::new()));
    }
}

fn nobody_or(own: (u32, u32)) -> (u32, u32) {
    if nix::unistd::geteuid().is_root() { (NOBODY, NOBODY) } else { own }
}

#[tokio::test]
async fn stopping_and_freezing_reach_everyone_in_every_way() {
    for way in WAYS {
        let Some(host) = house_held_by(way).await else { continue };
        host.ask(host.job(
            "trap 'echo bye; exit 9' TERM; mkfifo gate; (setsid sleep 1000 &); echo ready; cat gate; echo on; sleep 1000 & wait",
        ));
        host.says("ready").await;
        host.want(DesiredState::Frozen);
        frozen(&host, &host.living(), true).await;
        host.want(DesiredState::Running);
        frozen(&host, &host.living(), false).await;
        host.open_gate("gate").await;
        host.says("on").await;
        host.want(DesiredState::Frozen);
        frozen(&host, &host.living(), true).await;
        host.want(DesiredState::Stopped);
        let What::Ended { exit_code, cause, .. } = host.ends().await else { panic!() };
        assert_eq!((exit_code, cause), (Some(9), Some(EndCause::Stopped)), "{way}");
        assert!(host.control.see(|state| state.has(JOB, Stream::Stdout, "bye")), "{way}");
    }
}
