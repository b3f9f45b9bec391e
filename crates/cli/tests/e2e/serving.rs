//! `repl server` as an operator and its users meet it: the first token, TLS with an authority of one's own, the unix socket, and
//! output that cannot be written.

use crate::cluster::Cluster;
use crate::home::Home;
use crate::process::{self, Ended, Running};
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A server in the foreground, ended with the test.
struct Served {
    server: Running,
    url: String,
    said: Vec<String>,
}

impl Served {
    fn start(home: &Home, words: &[&str]) -> Served {
        let words = [&["server"], words].concat();
        let mut server = Running::start(&mut home.repl(&words));
        let mut said = Vec::new();
        let url = loop {
            let line = server.hear("repl: ");
            match line.trim().strip_prefix("repl: serving ") {
                Some(url) => break url.to_owned(),
                None => said.push(line.trim().to_owned()),
            }
        };
        Served { server, url, said }
    }

    fn end(self) -> Ended {
        process::signal(self.server.pid(), Signal::SIGTERM);
        self.server.end()
    }
}

/// An authority of one's own.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for this machine in two files, and the authority that signed it in a third.
fn certify(home: &Home, authority: &CertifiedIssuer<'static, KeyPair>) -> [PathBuf; 3] {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    let cert = params.signed_by(&key, authority).unwrap();
    [
        home.write("cert.pem", cert.pem()),
        home.write("key.pem", key.serialize_pem()),
        home.write("ca.pem", authority.pem()),
    ]
}

fn token(home: &Home) -> String {
    std::fs::read_to_string(home.data().join("token")).unwrap().trim().to_owned()
}

#[test]
fn the_first_token_is_shown_once_and_its_place_is_named() {
    let home = Home::new();
    let first = Served::start(&home, &["--listen", "127.0.0.1:0"]);
    let token = token(&home);
    assert!(first.said.iter().any(|line| line.ends_with(&token)), "{:?}", first.said);
    let place = home.data().join("token").display().to_string();
    assert!(first.said.iter().any(|line| line.contains(&place)), "{:?}", first.said);
    assert_eq!(first.end().code, 0);
    let again = Served::start(&home, &["--listen", "127.0.0.1:0"]);
    assert!(
        again.said.iter().any(|line| line.contains(&place) && line.contains("repl control token")),
        "{:?}",
        again.said
    );
    assert!(!again.said.iter().any(|line| line.contains(&token)), "{:?}", again.said);
    assert!(!again.end().stderr.contains(&token), "never again");
    // A control plane that a command starts by itself does not print its token.
    let home = Home::new();
    let ended = home.run(&[], "true");
    let token = std::fs::read_to_string(home.data().join("token")).unwrap();
    let log = std::fs::read_to_string(home.data().join("control.log")).unwrap();
    assert!(!ended.stderr.contains(token.trim()) && !log.contains(token.trim()));
    home.stop();
}

/// An older copy of a SQLite file, without the mark beside it.
#[test]
fn a_server_on_a_restored_file_numbers_from_the_present_time_on() {
    let home = Home::new();
    if home.is_many() {
        return; // the same on PostgreSQL is a test of its own
    }
    let number = || {
        let id = home.status("@last")["id"].as_str().unwrap().to_owned();
        i64::from_str_radix(id.strip_prefix("run_").unwrap(), 36).unwrap()
    };
    let began_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
    let plain: &[&str] = &["--listen", "127.0.0.1:0"];
    for (flags, is_above) in [(plain, false), (&[plain, &["--restored"]].concat(), true), (plain, true)] {
        let server = Served::start(&home, flags);
        assert_eq!(home.run(&["--hold", "0s"], "true").code, 0);
        assert_eq!(number() > began_ms, is_above, "{flags:?}");
        assert_eq!(server.end().code, 0);
        std::fs::remove_file(home.data().join("highest-id")).unwrap();
    }
    home.done(&["control", "stop", "--all"]);
}

#[test]
fn an_open_door_without_tls_is_said_loudly() {
    let home = Home::new();
    let open = Served::start(&home, &["--listen", "0.0.0.0:0"]);
    assert!(open.said.iter().any(|line| line.contains("WARNING") && line.contains("WITHOUT TLS")), "{:?}", open.said);
    assert_eq!(open.end().code, 0);
    let [cert, key, _] = certify(&home, &authority("ours"));
    let files = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let closed = Served::start(&home, &[&["--listen", "0.0.0.0:0"][..], &files].concat());
    assert!(
        !closed.said.iter().any(|line| line.contains("WARNING")) && closed.url.starts_with("https://"),
        "{} {:?}",
        closed.url,
        closed.said
    );
    assert_eq!(closed.end().code, 0);
    home.say(&["server", "--tls-cert", "cert.pem"]).refused(2, &["key", "--tls-key"]);
    home.say(&["server", "--tls-cert", "ca.pem", "--tls-key", "key.pem"]).refused(1, &["tls_key", "key.pem"]);
    home.say(&["server", "--tls-cert", "missing.pem", "--tls-key", "key.pem"]).refused(1, &["missing.pem"]);
    // The control plane that a command starts for itself: the command says it.
    let mut home = Home::new();
    home.set("REPL_LISTEN", "0.0.0.0:0");
    let first = home.done(&["ps"]);
    assert!(first.stderr.contains("WARNING") && first.stderr.contains("WITHOUT TLS"), "{first}");
    let second = home.done(&["ps"]);
    assert!(!second.stderr.contains("WITHOUT TLS"), "it was started by the command before: {second}");
    home.done(&["control", "stop"]);
    home.set("REPL_LISTEN", "127.0.0.1:0");
    let local = home.done(&["ps"]);
    assert!(!local.stderr.contains("WARNING"), "{local}");
}

#[test]
fn a_server_speaks_tls_to_those_who_trust_its_authority() {
    let mut home = Home::new();
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let [cert, key, ca] = certify(&home, &ours);
    let files = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let served = Served::start(&home, &[&["--listen", "127.0.0.1:0"][..], &files].concat());
    home.set("REPL_URL", &served.url);
    home.set("REPL_TOKEN", &token(&home));
    home.say(&["ps"]).refused(2, &["certificate"]);
    home.set("REPL_CA_CERT", ca.to_str().unwrap());
    home.set("REPL_URL", &served.url.replace("https:", "http:"));
    home.say(&["ps"]).refused(2, &["this port speaks TLS", &format!("fix: use {}", served.url)]);
    home.set("REPL_URL", &served.url);
    let ended = home.run(&[], "echo over tls");
    assert_eq!((ended.code, &*ended.out()), (0, "over tls\n"), "{ended}");
    // Another authority signs the next certificate: it is served without a restart, and only those who trust it go on.
    certify(&home, &theirs);
    home.write("ours.pem", ours.pem());
    home.done(&["ps"]);
    home.unset("REPL_CA_CERT");
    home.set("REPL_CA_CERT", home.here().join("ours.pem").to_str().unwrap());
    home.say(&["ps"]).refused(2, &["certificate"]);
    home.unset("REPL_CA_CERT");
    home.unset("REPL_URL");
    home.unset("REPL_TOKEN");
    home.say(&["control", "stop", "--all"]);
    assert_eq!(served.server.end().code, 0);
}

#[test]
fn runners_reach_a_server_on_postgres_over_tls() {
    let cluster = Cluster::start();
    let mut home = Home::new();
    let [cert, key, ca] = certify(&home, &authority("ours"));
    home.set("REPL_CA_CERT", ca.to_str().unwrap());
    home.set("REPL_DATABASE", &cluster.url());
    let files = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let served = Served::start(&home, &[&["--listen", "127.0.0.1:0"][..], &files].concat());
    home.set("REPL_URL", &served.url);
    home.set("REPL_TOKEN", &token(&home));
    let ended = home.run(&[], "echo there and back");
    assert_eq!((ended.code, &*ended.out()), (0, "there and back\n"), "{ended}");
    for machine in home.instances() {
        home.done(&["instance", "terminate", "--force", machine["id"].as_str().unwrap()]);
    }
    for runner in home.processes().into_iter().filter(|process| process.words.starts_with("repl runner")) {
        assert!(process::ends(runner.pid), "{runner:?} goes on");
    }
    assert_eq!(served.end().code, 0);
}

#[test]
fn the_unix_socket_speaks_http_to_whoever_has_the_token() {
    let home = Home::new();
    home.done(&["control", "start"]);
    let mut stream = UnixStream::connect(home.data().join("control.sock")).unwrap();
    let token = token(&home);
    let head = "GET /api/v1/credits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    write!(stream, "{head}authorization: bearer {token}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"available\""), "{answer}");
    home.stop();
}

#[test]
fn no_number_and_no_full_disk_makes_a_command_panic() {
    let home = Home::new();
    assert_eq!(home.run(&[], "echo one; echo two").code, 0);
    home.say(&["credits", "add", "9223372036854"]).refused(1, &["amount", "at most"]);
    let all = home.done(&["logs", "@last", "--tail", "18446744073709551615"]);
    assert_eq!(all.out(), "one\ntwo\n");
    for line in
        ["ps -a", "ps -a --json", "status @last", "logs @last", "events @last", "completion bash", "credits ledger"]
    {
        let ended = process::end_of(&mut home.shell(&format!("repl {line} > /dev/full")));
        assert!(matches!(ended.code, 1 | 2), "{line}: {ended}");
        assert!(
            ended.stderr.contains("cannot write the output") && !ended.stderr.contains("panicked"),
            "{line}: {ended}"
        );
        // No error is printed, and nothing else happens.
        let ended = process::end_of(&mut home.shell(&format!("repl {line} > /dev/full 2> /dev/full")));
        assert!(matches!(ended.code, 1 | 2), "{line}: {ended}");
    }
    home.adds_up();
    home.stop();
}
