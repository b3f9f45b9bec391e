//! What only a provider of real processes can get wrong: who is signalled, what is inherited, what is left behind.

#[allow(dead_code, reason = "the tests of the provider `ssh` use the rest")]
mod support;

use adapters::conformance::{Subject, order};
use adapters::{Handle, LocalProvider, LocalSettings, Order, Provider, Seen};
use model::{Effect, TroubleKind};
use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use support::{ENDED_FILE, Local, local, settings};

async fn up(subject: &Local, order: &Order) -> Handle {
    let handle = subject.local().spawn(order).await.unwrap();
    subject.wait_ready(&order.boot.name);
    handle
}

/// As when the control plane died between starting a runner and writing down which process it is.
fn forget_who(subject: &Local, name: &str) {
    fs::remove_file(subject.dir(name).join("pid.json")).unwrap();
}

#[tokio::test]
async fn a_runner_that_does_not_listen_is_killed_and_what_it_left_is_ended() {
    let (subject, order) = (local(), order(1));
    subject.mischief("deaf");
    let handle = up(&subject, &order).await;
    subject.hasty().terminate(&handle, &order.boot.nonce).await.unwrap();
    subject.wait_dead(&order.boot.name);
    assert!(subject.dir(&order.boot.name).join(ENDED_FILE).exists());
}

#[tokio::test]
async fn a_stopped_runner_is_alive_and_can_be_ended() {
    let (subject, order) = (local(), order(1));
    let handle = up(&subject, &order).await;
    subject.signal(&order.boot.name, Signal::SIGSTOP);
    assert_eq!(subject.hasty().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Alive);
    assert_eq!(subject.hasty().spawn(&order).await.unwrap(), handle);
    subject.hasty().terminate(&handle, &order.boot.nonce).await.unwrap();
    assert_eq!(subject.starts(&order.boot.name), 1);
    subject.wait_dead(&order.boot.name);
}

#[tokio::test]
async fn a_runner_nobody_wrote_down_proves_itself_by_its_nonce() {
    let (subject, order) = (local(), order(1));
    let handle = up(&subject, &order).await;
    forget_who(&subject, &order.boot.name);
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Alive);
    assert_eq!(subject.local().spawn(&order).await.unwrap(), handle);
    assert_eq!(subject.starts(&order.boot.name), 1);
    subject.local().terminate(&handle, &order.boot.nonce).await.unwrap();
    subject.wait_dead(&order.boot.name);
}

#[tokio::test]
async fn nobody_is_signalled_who_is_neither_known_nor_answers() {
    let (subject, order) = (local(), order(1));
    let handle = up(&subject, &order).await;
    forget_who(&subject, &order.boot.name);
    subject.signal(&order.boot.name, Signal::SIGSTOP);
    let trouble = subject.hasty().terminate(&handle, &order.boot.nonce).await.unwrap_err();
    assert_eq!((trouble.kind, trouble.retry, trouble.effect), (TroubleKind::Timeout, true, Effect::None));
    // A signal sent meanwhile would end it as soon as it goes on.
    subject.signal(&order.boot.name, Signal::SIGCONT);
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Alive);
}

/// Listed without a nonce it can be ended without one, and what its runner has left is ended too.
#[tokio::test]
async fn a_machine_whose_file_cannot_be_read_is_ended_whether_its_runner_lives_or_not() {
    for (number, dies) in [(1, false), (2, true)] {
        let (subject, order) = (local(), order(number));
        let handle = up(&subject, &order).await;
        if dies {
            subject.kill_runner(&order.boot.name);
        }
        fs::write(subject.dir(&order.boot.name).join("runner.json"), "{ torn").unwrap();
        assert!(subject.local().terminate(&handle, &order.boot.nonce).await.is_err(), "whose it is cannot be told");
        subject.local().terminate(&handle, "").await.unwrap();
        subject.wait_dead(&order.boot.name);
        assert!(subject.dir(&order.boot.name).join(ENDED_FILE).exists());
        assert_eq!(subject.local().inspect(&handle, "").await.unwrap(), Seen::Gone);
    }
}

#[tokio::test]
async fn a_process_with_another_nonce_is_a_stranger_whatever_the_directory_says() {
    let (subject, order) = (local(), order(1));
    subject.mischief("another nonce");
    let handle = up(&subject, &order).await;
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Stranger);
    let trouble = subject.local().terminate(&handle, &order.boot.nonce).await.unwrap_err();
    assert_eq!((trouble.kind, trouble.effect), (TroubleKind::NotFound, Effect::None));
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Stranger);
}

#[tokio::test]
async fn what_cannot_be_cleaned_up_is_not_gone() {
    let (subject, order) = (local(), order(1));
    let handle = up(&subject, &order).await;
    subject.mischief("cannot clean up");
    let trouble = subject.local().terminate(&handle, &order.boot.nonce).await.unwrap_err();
    assert_eq!((trouble.retry, trouble.effect), (true, Effect::Perhaps));
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::RunnerGone);
    subject.mischief("");
    subject.local().terminate(&handle, &order.boot.nonce).await.unwrap();
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Gone);
}

#[tokio::test]
async fn a_runner_inherits_little_and_shows_nothing() {
    let (subject, order) = (local(), order(1));
    up(&subject, &order).await;
    let allowed = ["PATH", "HOME", "USER", "SHELL", "LANG", "TZ", "TMPDIR", "REPL_LOG"];
    // The shell that starts the stand-in adds the last three itself.
    let own = ["ADAPTERS_STANDIN", "PWD", "OLDPWD", "SHLVL", "_"];
    for name in subject.environment(&order.boot.name) {
        assert!(allowed.contains(&name.as_str()) || own.contains(&name.as_str()), "{name} was inherited");
    }
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "there was something not to inherit");
    let dir = subject.dir(&order.boot.name);
    let mode = |file: &str| fs::metadata(dir.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("runner.json"), mode("pid.json"), mode("runner.log")), (0o700, 0o600, 0o600, 0o600));
    let pid = subject.pid(&order.boot.name);
    assert_eq!(nix::unistd::getsid(Some(pid)).unwrap(), pid, "it leads its own session");
}

#[tokio::test]
async fn a_workdir_that_is_a_link_is_removed_as_a_link() {
    let (subject, order) = (local(), order(1));
    let handle = up(&subject, &order).await;
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("kept"), "").unwrap();
    let dir = subject.dir(&order.boot.name);
    std::os::unix::fs::symlink(elsewhere.path(), dir.join("work_1")).unwrap();
    fs::create_dir_all(dir.join("work_2/deep")).unwrap();
    subject.kill_runner(&order.boot.name);
    for workdir in ["work_1", "work_2"] {
        subject.local().remove_workdir(&handle, workdir).await.unwrap();
        assert!(fs::symlink_metadata(dir.join(workdir)).is_err());
    }
    assert!(elsewhere.path().join("kept").exists());
}

#[tokio::test]
async fn what_cannot_start_leaves_nothing_behind_and_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let (root, file) = (home.path().join("instances"), home.path().join("file"));
    fs::write(&file, "not a program").unwrap();
    let no_exe = LocalSettings { exe: home.path().join("gone"), ..settings(&root) };
    let not_a_program = LocalSettings { exe: file.clone(), ..settings(&root) };
    let in_the_way = settings(&file.join("instances"));
    for (settings, fix) in
        [(no_exe, "put the repl binary back"), (not_a_program, "put the repl binary back"), (in_the_way, "move it")]
    {
        let trouble = LocalProvider::new(settings).spawn(&order(1)).await.unwrap_err();
        assert_eq!((trouble.kind, trouble.effect), (TroubleKind::InvalidSpec, Effect::None), "{trouble}");
        assert!(trouble.what.contains(fix), "{trouble}");
        assert!(!root.join(order(1).boot.name).exists());
    }
}

#[tokio::test]
async fn a_pid_that_was_given_to_another_process_is_not_touched() {
    let (subject, order) = (local(), order(1));
    let handle = up(&subject, &order).await;
    subject.kill_runner(&order.boot.name);
    // Our own pid, as if the runner's had come round to us, who started later.
    let path = subject.dir(&order.boot.name).join("pid.json");
    let mut trace: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    trace["pid"] = std::process::id().into();
    trace["start_ticks"] = 1.into();
    fs::write(&path, trace.to_string()).unwrap();
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::RunnerGone);
    subject.local().terminate(&handle, &order.boot.nonce).await.unwrap();
    assert_eq!(subject.local().inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Gone);
}
