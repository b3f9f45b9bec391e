//! Features of the settings on machines of this host: installed before the command, removed before the machine ends, and what they have
//! made elsewhere is found.

use crate::api::Api;
use crate::gate::Gate;
use crate::home::Home;
use crate::process;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

fn repository(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).canonicalize().unwrap().display().to_string()
}

/// Two features that write down what is done with them.
fn settings(said: &Path) -> String {
    let said = said.display();
    format!(
        "[features.one]\ninstall = 'echo in $A $REPL_MACHINE_NAME >> {said}'\nremove = 'echo out >> {said}'\nenv = {{ A = 'x' }}\n\
         [features.bad]\ninstall = 'echo sorry >&2; exit 3'\nremove = 'echo cleared >> {said}'\n"
    )
}

#[test]
fn a_feature_is_there_before_the_command_and_goes_before_the_machine() {
    let home = Home::new();
    let said = home.here().join("said");
    home.configure(&settings(&said));
    let lines = || std::fs::read_to_string(&said).unwrap_or_default();
    home.run(&["--feature", "on"], "true").refused(1, &["unknown feature `on`", "`one`"]);
    let first = home.run(&["--feature", "one", "--hold", "0s"], &format!("cat {}", said.display()));
    assert_eq!(first.code, 0, "{first}");
    assert!(first.out().starts_with("in x repl-"), "{first}");
    let machine = home.instances()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(home.json(&["instance", "show", &machine])["features"][0]["state"], "installed");
    let second = home.run(&["--feature", "one", "--hold", "0s"], "true");
    assert_eq!((second.code, home.status("@last")["instance"].as_str()), (0, Some(&*machine)), "{second}");
    assert_eq!(lines().lines().count(), 1, "it is not installed again");
    home.done(&["instance", "terminate", &machine]);
    assert!((0..500).any(|_| home.instances().is_empty()), "the machine ends");
    assert!(lines().ends_with("\nout\n"), "{}", lines());
    let failed = home.run(&["--feature", "bad"], "true");
    failed.refused(1, &["the feature `bad` could not be installed", "sorry"]);
    home.adds_up();
}

#[test]
fn a_runner_that_dies_while_it_installs_clears_that_and_begins_again() {
    let home = Home::new();
    let (said, ready, gate) = (home.here().join("said"), Gate::new(&home, "ready"), Gate::new(&home, "gate"));
    // Its shell is started by a wrapper, which the runner has started.
    let script =
        format!("echo in >> {}; {}; {}", said.display(), ready.say("$(cut -d' ' -f4 /proc/$PPID/stat)"), gate.wait());
    let remove = format!("echo out >> {}", said.display());
    home.configure(&format!("[features.slow]\ninstall = {script:?}\nremove = {remove:?}\n"));
    let run = home.detach(&["--feature", "slow"], "echo ran");
    process::kill(ready.hear().parse().unwrap());
    assert_ne!(ready.hear(), "", "the next runner begins again");
    gate.open();
    let ended = home.attach(&run);
    assert_eq!((ended.code, &*ended.out()), (0, "ran\n"), "{ended}");
    assert_eq!(std::fs::read_to_string(&said).unwrap(), "in\nout\nin\n", "half of it was cleared");
    home.adds_up();
}

#[test]
fn machines_that_a_feature_left_in_a_tailnet_are_found_and_deleted_by_their_id() {
    let home = Home::new();
    let (url, deleted) = tailnet();
    let lister = ["python3".to_owned(), repository("examples/features/tailscale.py"), "example.com".to_owned()];
    home.configure(&format!(
        "[features.tailscale]\ninstall = 'true'\nremove = 'true'\nlist = {lister:?}\nenv = {{ TS_API_URL = '{url}', TS_API_KEY = 'k' }}\n"
    ));
    home.done(&["orphans", "scan"]);
    let all = home.json(&["orphans", "list"]);
    let found = &all.as_array().unwrap()[0];
    assert_eq!((found["provider"].as_str(), found["provider_id"].as_str()), (Some("features.tailscale"), Some("n1")));
    assert_eq!(found["resource_type"], "tailscale_machine");
    let ended = process::end_of(&mut home.shell("echo n1 | repl orphans terminate n1 --force"));
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(deleted.recv().unwrap(), "DELETE /device/n1 HTTP/1.1");
    assert!(Api::of(&home).try_get("/pools").is_ok(), "what only lists is no pool of machines");
}

/// An imitation of the API that the example speaks: one device, until it is deleted.
fn tailnet() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (told, deleted) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut asked = [0; 2048];
            let read = stream.read(&mut asked).unwrap_or(0);
            let line = String::from_utf8_lossy(&asked[..read]).lines().next().unwrap_or_default().to_owned();
            let body = match line.starts_with("GET") {
                true => {
                    "{\"devices\": [{\"hostname\": \"repl-0therpln-7\", \"id\": \"n1\", \"created\": \"2025-01-01T00:00:00Z\", \
                         \"lastSeen\": \"2025-01-02T00:00:00Z\", \"addresses\": [\"100.64.0.1\"]}, {\"hostname\": \"laptop\", \"id\": \"n2\"}]}"
                }
                false => "{}",
            };
            if line.starts_with("DELETE") {
                let _ = told.send(line);
            }
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        }
    });
    (url, deleted)
}
