//! What the provider `ssh` does beyond the suite that all pass: what it says when a host cannot be used, what it copies, and its relay.
//! Each test has a real sshd.

#[path = "../../testkit/tests/support/skip.rs"]
mod skip;
#[allow(dead_code, reason = "the tests of other providers use the rest")]
mod support;

use adapters::conformance::{CONTROL_ID, Subject as _, order};
use adapters::ssh::{Connection, Dial, Target};
use adapters::{Linked, ListAsk, LookAsk, Order, Provider as _, Seen, SshProvider, SshSettings};
use model::{Effect, Trouble, TroubleKind};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::sshd::{Ssh, Sshd, ssh};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

async fn refused(settings: SshSettings) -> Trouble {
    SshProvider::new(settings).spawn(&order(1)).await.unwrap_err()
}

fn check(trouble: &Trouble, kind: TroubleKind, says: &str) {
    assert!(trouble.kind == kind && trouble.what.contains(says), "{trouble:?}");
    assert_eq!(trouble.effect, Effect::None, "{trouble}");
}

#[tokio::test]
async fn a_host_that_cannot_be_used_is_an_error_that_says_why() {
    let home = tempfile::tempdir().unwrap();
    let (sshd, other) = (Sshd::start(&home.path().join("a")), Sshd::start(&home.path().join("b")));
    let dir = home.path().join("r");
    let right = || sshd.settings(&dir);
    let mut wrong = right();
    wrong.way.identity = Some(other.identity.clone());
    check(&refused(wrong).await, TroubleKind::Auth, "does not let us in");
    let mut wrong = right();
    wrong.way.known_hosts = Some("/dev/null".into());
    check(&refused(wrong).await, TroubleKind::Auth, "--accept-host-key");
    let mut wrong = right();
    wrong.hosts = vec![Target::parse("127.0.0.1:1").unwrap()];
    check(&refused(wrong).await, TroubleKind::Network, "cannot be reached");
    let mut wrong = right();
    wrong.hosts = vec![Target::parse("nowhere.invalid").unwrap()];
    check(&refused(wrong).await, TroubleKind::Network, "has no address");
    let mut wrong = right();
    wrong.way.dir = Some("/proc/repl".into());
    let trouble = refused(wrong).await;
    assert!(trouble.what.contains("/proc/repl"), "{trouble}");
    assert!(!dir.exists(), "nothing was left");
}

#[tokio::test]
async fn a_host_key_is_accepted_once_and_a_changed_one_never() {
    let home = tempfile::tempdir().unwrap();
    let (folder, dir, accepted) = (home.path().join("a"), home.path().join("r"), home.path().join("ssh/known_hosts"));
    let sshd = Sshd::start(&folder);
    let settings = |sshd: &Sshd| {
        let mut settings = sshd.settings(&dir);
        settings.way.known_hosts = Some("/dev/null".into());
        settings.way.accepted = Some(accepted.clone());
        settings
    };
    let provider = SshProvider::new(settings(&sshd));
    assert_eq!(provider.find_by_name(&order(1).boot.name).await.unwrap(), None);
    let kept = fs::read_to_string(&accepted).unwrap();
    assert!(kept.contains(&format!("[127.0.0.1]:{}", sshd.port)), "{kept}");
    // Another key under the same address.
    let other = Sshd::start(&home.path().join("b"));
    let key = kept.split(' ').skip(1).collect::<Vec<_>>().join(" ");
    fs::write(&accepted, format!("[127.0.0.1]:{} {key}", other.port)).unwrap();
    let trouble = SshProvider::new(settings(&other)).find_by_name(&order(1).boot.name).await.unwrap_err();
    check(&trouble, TroubleKind::Auth, accepted.to_str().unwrap());
    assert!(trouble.what.contains("not the one that was accepted"), "{trouble}");
}

#[tokio::test]
async fn a_binary_that_does_not_fit_is_refused_before_or_after_it_is_copied() {
    let home = tempfile::tempdir().unwrap();
    let sshd = Sshd::start(&home.path().join("a"));
    let with = |binary: &Path, dir: &str| {
        let mut settings = sshd.settings(&home.path().join(dir));
        settings.binary = binary.to_owned();
        settings
    };
    let foreign = if cfg!(target_arch = "x86_64") { 183u16 } else { 62 };
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(18, 0);
    elf.extend(foreign.to_le_bytes());
    elf.resize(64, 0);
    let path = home.path().join("foreign");
    fs::write(&path, elf).unwrap();
    check(&refused(with(&path, "r")).await, TroubleKind::InvalidSpec, "build-runner");
    assert!(!home.path().join("r").exists(), "it was not copied");
    let path = home.path().join("old");
    fs::write(&path, "#!/bin/sh\necho \"repl: version \\`GLIBC_2.99' not found\" >&2\nexit 1\n").unwrap();
    check(&refused(with(&path, "r")).await, TroubleKind::InvalidSpec, "libc is too old");
    let path = home.path().join("silent");
    fs::write(&path, "#!/bin/sh\necho hello\n").unwrap();
    let trouble = refused(with(&path, "r")).await;
    assert!(trouble.effect == Effect::Perhaps && trouble.what.contains("did not answer"), "{trouble:?}");
}

#[tokio::test]
async fn a_full_disk_is_named_as_such() {
    let home = tempfile::tempdir().unwrap();
    let sshd = Sshd::start(&home.path().join("a"));
    let small = home.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"]).arg(&small).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skip::skip("disk", "only root can make a small file system");
    }
    let binary = home.path().join("large");
    fs::write(&binary, [b"#!/bin/sh\n".as_slice(), &[b'#'; 64 << 10]].concat()).unwrap();
    let mut settings = sshd.settings(&small);
    settings.binary = binary;
    let trouble = refused(settings).await;
    let left: Vec<PathBuf> = fs::read_dir(small.join("bin")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let files: usize = left.iter().map(|folder| fs::read_dir(folder).unwrap().count()).sum();
    assert!(std::process::Command::new("umount").arg(&small).status().unwrap().success());
    check(&trouble, TroubleKind::DiskFull, "no space is left");
    assert_eq!(files, 0, "what is not whole is not kept: {left:?}");
}

#[tokio::test]
async fn what_is_put_on_a_host_is_the_users_own_copied_once_and_gone_in_the_end() {
    let subject = ssh();
    let provider = &subject.provider;
    let first = provider.spawn(&order(1)).await.unwrap();
    let binary = fs::read_dir(subject.dir.join("bin")).unwrap().next().unwrap().unwrap().path().join("repl");
    let copied = fs::metadata(&binary).unwrap();
    assert_eq!(copied.permissions().mode() & 0o077, 0);
    let second = SshProvider::new(subject.sshd.settings(&subject.dir)).spawn(&order(2)).await.unwrap();
    assert_eq!(fs::metadata(&binary).unwrap().ino(), copied.ino(), "not copied again");
    let boot = subject.local.dir(&order(1).boot.name).join("runner.json");
    assert_eq!(fs::metadata(&boot).unwrap().permissions().mode() & 0o777, 0o600, "it has the token");
    let place = provider.workdir_path(&first, "work_1").unwrap();
    let folder = subject.local.dir(&order(1).boot.name).join("work_1");
    assert_eq!(place, format!("{}:{}", subject.sshd.host().text, folder.display()));
    let stays = provider.leave(CONTROL_ID).await.unwrap();
    assert!(stays.len() == 1 && stays[0].why.contains("still has machines"), "{stays:?}");
    assert!(stays[0].what.contains(CONTROL_ID), "{stays:?}");
    for (handle, number) in [(first, 1), (second, 2)] {
        subject.await_runner(&order(number).boot.name).await;
        provider.terminate(&handle, &order(number).boot.nonce).await.unwrap();
        provider.forget(&handle).await.unwrap();
    }
    // Another control plane uses the same home: its folder stays, and so do the binaries.
    let other = subject.dir.join("0thers/its-host");
    fs::create_dir_all(&other).unwrap();
    assert_eq!(provider.leave(CONTROL_ID).await.unwrap(), []);
    assert!(other.exists() && binary.exists() && !subject.dir.join(CONTROL_ID).exists());
    fs::remove_dir_all(other.parent().unwrap()).unwrap();
    assert_eq!(provider.leave(CONTROL_ID).await.unwrap(), []);
    assert!(!subject.dir.exists());
    assert_eq!(provider.leave(CONTROL_ID).await.unwrap(), [], "there is nothing, and nothing is copied there");
    assert!(!subject.dir.exists());
}

#[tokio::test]
async fn a_runner_of_an_earlier_boot_is_gone_and_comes_back() {
    let subject = ssh();
    let handle = subject.provider.spawn(&order(1)).await.unwrap();
    subject.await_runner(&order(1).boot.name).await;
    subject.kill_runner(&order(1).boot.name);
    // After a reboot the same pid is another process: here it is this test.
    let file = subject.local.dir(&order(1).boot.name).join("pid.json");
    let text = fs::read_to_string(&file).unwrap();
    let mut trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    trace["pid"] = std::process::id().into();
    trace["boot_id"] = "of another boot".into();
    fs::write(&file, trace.to_string()).unwrap();
    assert_eq!(subject.provider.inspect(&handle, &order(1).boot.nonce).await.unwrap(), Seen::RunnerGone);
    assert_eq!(subject.provider.spawn(&order(1)).await.unwrap(), handle);
    subject.await_runner(&order(1).boot.name).await;
    assert_eq!(subject.provider.inspect(&handle, &order(1).boot.nonce).await.unwrap(), Seen::Alive);
}

#[tokio::test]
async fn a_look_says_what_a_host_has_or_why_no_machine_can_be_made_there_and_leaves_nothing_of_its_own() {
    let subject = ssh();
    let ask = LookAsk { control_id: CONTROL_ID.to_owned(), control_url: "relay:".to_owned() };
    let look = |settings: SshSettings| {
        let ask = ask.clone();
        async move { SshProvider::new(settings).look(&ask).await.unwrap().remove(0).1 }
    };
    let right = || subject.sshd.settings(&subject.dir);
    let facts = look(right()).await.unwrap();
    assert_eq!(facts.architecture, std::env::consts::ARCH);
    assert!(facts.cpu_milli >= Some(1000) && facts.memory_bytes > Some(0), "{facts:?}");
    assert!(!subject.dir.join(CONTROL_ID).exists(), "only the binary is there, for the first machine");
    let long = subject.dir.join("x".repeat(100));
    check(&look(subject.sshd.settings(&long)).await.unwrap_err(), TroubleKind::InvalidSpec, "too long for a socket");
    // Nothing can be made in the folder of the control plane, so no relay can listen there.
    fs::write(subject.dir.join(CONTROL_ID), "in the way").unwrap();
    let trouble = look(right()).await.unwrap_err();
    assert!(trouble.what.contains(CONTROL_ID), "{trouble}");
    let mut wrong = right();
    wrong.hosts = vec![Target::parse("127.0.0.1:1").unwrap()];
    check(&look(wrong).await.unwrap_err(), TroubleKind::Network, "cannot be reached");
}

#[tokio::test]
async fn a_host_that_cannot_be_asked_is_named_and_what_the_others_have_is_listed() {
    let subject = ssh();
    let (dead, alive) = (Target::parse("127.0.0.1:1").unwrap(), subject.sshd.host());
    let ask = ListAsk::of(&format!("repl-{CONTROL_ID}-"));
    for hosts in [vec![dead.clone(), alive.clone()], vec![alive.clone(), dead.clone()]] {
        let provider = SshProvider::new(SshSettings { hosts, ..subject.sshd.settings(&subject.dir) });
        let mut made = Vec::new();
        for number in [1, 2] {
            let order = Order { place: Some(alive.text.clone()), ..order(number) };
            made.push(provider.spawn(&order).await.unwrap().0);
        }
        let page = provider.list(&ask).await.unwrap();
        assert_eq!(page.listed.iter().map(|it| it.handle.clone()).collect::<Vec<_>>(), made);
        assert_eq!((page.incomplete.len(), page.next), (1, None));
        assert!(page.incomplete[0].contains("127.0.0.1:1 cannot be reached"), "{:?}", page.incomplete);
        // A machine a page: the host that cannot be asked stands before or behind them.
        let (mut ask, mut listed, mut incomplete) = (ListAsk { limit: 1, ..ask.clone() }, Vec::new(), 0);
        loop {
            let page = provider.list(&ask).await.unwrap();
            assert!(page.listed.len() <= 1);
            listed.extend(page.listed.into_iter().map(|it| it.handle));
            incomplete += page.incomplete.len();
            match page.next {
                None => break,
                next => ask.after = next,
            }
        }
        assert_eq!((listed, incomplete), (made, 1));
    }
    let provider = SshProvider::new(SshSettings { hosts: vec![dead], ..subject.sshd.settings(&subject.dir) });
    let trouble = provider.list(&ask).await.unwrap_err();
    assert!(trouble.kind == TroubleKind::Network && trouble.what.contains("cannot be reached"), "{trouble}");
}

/// ssh gives up on a host that says nothing after 5 s, so asked one after the other they would hold up the one that answers for half a minute.
#[tokio::test]
async fn a_machine_is_found_by_its_name_while_other_hosts_say_nothing() {
    let subject = ssh();
    // How many of them have a connection that is still open, and the most at any moment.
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut hosts = Vec::new();
    for _ in 0..6 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        hosts.push(Target::parse(&listener.local_addr().unwrap().to_string()).unwrap());
        let (open, most) = (open.clone(), most.clone());
        tokio::spawn(async move {
            while let Ok((mut silent, _)) = listener.accept().await {
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _ = tokio::io::copy(&mut silent, &mut tokio::io::sink()).await;
                open.fetch_sub(1, Ordering::SeqCst);
            }
        });
    }
    hosts.push(subject.sshd.host());
    let provider = SshProvider::new(SshSettings { hosts, ..subject.sshd.settings(&subject.dir) });
    let order = Order { place: Some(subject.sshd.host().text), ..order(1) };
    let handle = provider.spawn(&order).await.unwrap();
    assert_eq!(provider.find_by_name(&order.boot.name).await.unwrap(), Some(handle));
    assert!(most.load(Ordering::SeqCst) > 1, "one was asked after the other");
}

fn echo() -> Dial {
    Arc::new(|| {
        let (here, there) = tokio::io::duplex(1 << 10);
        tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(there);
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
        Box::pin(std::future::ready(Ok(Box::new(here) as Connection)))
    })
}

fn relay_of(subject: &Ssh) -> PathBuf {
    let boot = fs::read(subject.local.dir(&order(1).boot.name).join("runner.json")).unwrap();
    let boot: model::boot::Boot = serde_json::from_slice(&boot).unwrap();
    boot.control_url.strip_prefix("unix:").unwrap().into()
}

/// Connected as soon as a relay listens there.
async fn dialled(socket: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(socket).await {
            Ok(mut stream) => {
                stream.write_all(b"hello").await.unwrap();
                let mut back = [0; 5];
                if stream.read_exact(&mut back).await.is_ok() {
                    assert_eq!(&back, b"hello");
                    return stream;
                }
            }
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn a_relay_carries_connections_until_it_is_taken_over_or_its_machine_ends() {
    let subject = ssh();
    let handle = subject.provider.spawn(&order(1)).await.unwrap();
    let socket = relay_of(&subject);
    let link = |provider: SshProvider, handle| tokio::spawn(async move { provider.link(&handle, echo()).await });
    let first = link(subject.provider.clone(), handle.clone());
    let mut stream = dialled(&socket).await;
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // The next holder's takes its place: a process that was connected connects again.
    let second = link(subject.provider.clone(), handle.clone());
    assert_eq!(first.await.unwrap(), Ok(Linked::Ended));
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    drop(dialled(&socket).await);
    // Its holder dies: nothing of it is left.
    second.abort();
    while socket.exists() {
        tokio::task::yield_now().await;
    }
    let third = link(subject.provider.clone(), handle.clone());
    drop(dialled(&socket).await);
    subject.await_runner(&order(1).boot.name).await;
    subject.provider.terminate(&handle, &order(1).boot.nonce).await.unwrap();
    assert_eq!(third.await.unwrap(), Ok(Linked::Ended));
    assert_eq!(subject.provider.link(&handle, echo()).await, Ok(Linked::Unneeded));
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_runner_that_can_dial_by_itself_has_no_relay() {
    let subject = ssh();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut order = order(1);
    order.boot.control_url = format!("http://{}", listener.local_addr().unwrap());
    let handle = subject.provider.spawn(&order).await.unwrap();
    assert_eq!(subject.provider.link(&handle, echo()).await, Ok(Linked::Unneeded));
}
