//! How `repl ui` hands the link to a browser: a program in `BROWSER` takes the browser's place and says what it was given.

use crate::crowd::{Pages, heard};
use crate::gate::Gate;
use crate::home::Home;
use crate::process;
use std::os::unix::fs::PermissionsExt as _;

/// What the browser was given: its arguments, and the mode and text of the file that the first one names.
struct Given {
    arguments: Vec<String>,
    mode: String,
    page: String,
}

/// Runs `repl ui` by this shell line, with a browser that tells what it gets.
fn given(home: &Home, gate: &Gate, line: &str) -> Given {
    let ended = process::end_of(&mut home.shell(line));
    assert_eq!(ended.code, 0, "{ended}");
    assert!(!format!("{}{}", ended.out(), ended.stderr).contains("ticket"), "the link is not shown: {ended}");
    let said = gate.hear();
    let mut lines = said.lines();
    let count: usize = lines.next().unwrap().parse().unwrap();
    let arguments = (0..count).map(|_| lines.next().unwrap().to_owned()).collect();
    Given { arguments, mode: lines.next().unwrap().to_owned(), page: lines.collect() }
}

#[test]
fn the_link_reaches_the_browser_in_a_file_that_only_its_owner_reads() {
    let mut home = Home::new();
    let gate = Gate::new(&home, "told");
    let told = home.here().join("told");
    let tell = format!(
        "#!/bin/sh\n{{ echo $#; printf '%s\\n' \"$@\"; stat -c %a \"$1\"; cat \"$1\"; }} > '{}'\n",
        told.display()
    );
    let browser = home.write("browser", tell);
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    home.set("BROWSER", browser.to_str().unwrap());

    let first = given(&home, &gate, "repl ui");
    let file = home.data().join("ui.html");
    assert_eq!(first.arguments, [file.to_str().unwrap()], "the ticket is no argument");
    assert_eq!(first.mode, "600");
    let link = first.page.split("url=").nth(1).unwrap().split('"').next().unwrap();
    assert!(link.starts_with("http://") && link.contains(".localhost:") && link.contains("/ticket"), "{link}");

    // Whatever the umask is, and whichever users could read an earlier file of that name.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let second = given(&home, &gate, "umask 0; repl ui");
    assert_eq!((second.arguments.len(), &*second.mode), (1, "600"));
    assert_ne!(second.page, first.page, "each link is good once");
    home.stop();
}

/// A session of `repl ui` lives in the memory of its control plane, and what opens one is in no log.
#[test]
fn a_session_ends_with_its_control_plane_and_its_ticket_is_logged_nowhere() {
    let home = Home::new();
    let before = Pages::enter(&home);
    assert!(heard(&mut before.ask("/runs"), "\r\n\r\n").starts_with("HTTP/1.1 200"));
    home.done(&["control", "stop"]);
    let mut after = Pages::enter(&home);
    assert!(heard(&mut after.ask("/runs"), "\r\n\r\n").starts_with("HTTP/1.1 200"));
    after.cookie = before.cookie;
    assert!(heard(&mut after.ask("/runs"), "\r\n\r\n").starts_with("HTTP/1.1 401"));
    let log = std::fs::read_to_string(home.data().join("control.log")).unwrap();
    assert!(!log.contains("ticket") && !log.contains("?t="), "{log}");
    home.stop();
}
