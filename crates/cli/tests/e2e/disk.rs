//! A disk that is full: what was accepted is kept, what is new is refused with the fix, and all goes on when there is room.

use crate::gate::Gate;
use crate::home::Home;
use crate::process::{self, Running};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::path::PathBuf;

/// A small disk of its own. Only root can make one.
struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    fn new() -> Option<Disk> {
        let folder = tempfile::Builder::new().prefix("e2edisk").tempdir().unwrap();
        let made = mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some("size=16m"));
        match made {
            Ok(()) => Some(Disk { folder }),
            Err(error) => {
                crate::skip::skip("disk", &format!("a small disk cannot be made here ({error})"));
                None
            }
        }
    }

    /// To the last byte.
    fn fill(&self) -> PathBuf {
        use std::io::Write as _;
        let path = self.folder.path().join("fill");
        let mut file = std::fs::File::create(&path).unwrap();
        for size in [64 << 10, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        umount2(self.folder.path(), MntFlags::MNT_DETACH).ok();
    }
}

#[test]
fn a_full_disk_refuses_what_is_new_and_keeps_what_it_has() {
    let Some(disk) = Disk::new() else { return };
    let home = Home::on(disk.folder.path());
    assert_eq!(home.run(&["--name", "before"], "echo before").code, 0);
    let fill = disk.fill();
    for _ in 0..3 {
        home.say(&["run", "--name", "full", "-c", "echo full"]).refused(2, &["disk", "full", "free some space"]);
    }
    assert_eq!(home.done(&["logs", "before"]).out(), "before\n", "what is there can be read");
    assert_eq!(home.json(&["ps", "-a"]).as_array().unwrap().len(), 1, "nothing is half-done");
    std::fs::remove_file(fill).unwrap();
    let after = home.run(&["--name", "full"], "echo after");
    assert_eq!((after.code, &*after.out()), (0, "after\n"), "{after}");
    home.adds_up();
}

#[test]
fn an_end_that_came_while_the_disk_was_full_is_told_when_there_is_room() {
    let Some(disk) = Disk::new() else { return };
    let home = Home::on(disk.folder.path());
    let gate = Gate::new(&home, "gate");
    let command = format!("echo $$; {}; seq 1 1000; exit 6", gate.wait());
    let mut followed = Running::start(&mut home.repl(&["run", "-c", &command]));
    let work: i32 = followed.line().parse().unwrap();
    let fill = disk.fill();
    gate.open();
    assert!(process::ends(work));
    std::fs::remove_file(fill).unwrap();
    let ended = followed.end();
    assert_eq!((ended.code, ended.out()), (6, (1..=1000).map(|n| format!("{n}\n")).collect()), "{}", ended.stderr);
    home.adds_up();
}

#[test]
fn nothing_starts_on_a_disk_that_is_full_from_the_beginning() {
    let Some(disk) = Disk::new() else { return };
    let home = Home::on(disk.folder.path());
    let fill = disk.fill();
    home.say(&["run", "-c", "true"]).refused(2, &["space"]);
    assert!(home.processes().is_empty());
    std::fs::remove_file(fill).unwrap();
    assert_eq!(home.run(&[], "exit 4").code, 4, "and the next try is not hindered by the first");
}
