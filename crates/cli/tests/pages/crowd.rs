//! A thousand viewers of one run, as plain clients of the real binary: what a change costs them all in reads, and what they cost in memory.

use crate::api::Api;
use crate::gate::Gate;
use crate::home::Home;
use crate::process;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const VIEWERS: usize = 1_000;
/// Each with a token of its own: one token may ask 400 times at once, and each viewer asks twice.
const PEOPLE: usize = 10;
/// Reads of a run's end, of its renders, and of what the control plane does meanwhile by itself: far fewer than viewers.
const MOST_READS: u64 = 200;
/// Memory of an open stream in the control plane, in an unoptimised build.
const MOST_BYTES: u64 = 128 * 1024;

pub struct Pages {
    port: String,
    host: String,
    pub cookie: String,
}

impl Pages {
    /// Entered by the link of `repl ui`.
    pub fn enter(home: &Home) -> Pages {
        let link = String::from_utf8(home.done(&["ui", "--print"]).stdout).unwrap();
        let (host, path) = link.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
        let port = host.rsplit_once(':').unwrap().1.to_owned();
        let mut pages = Pages { port, host: host.to_owned(), cookie: String::new() };
        let answer = heard(&mut pages.ask(&format!("/{path}")), "\r\n\r\n");
        let cookie = answer.split("set-cookie: ").nth(1).unwrap_or_else(|| panic!("{answer}"));
        pages.cookie = cookie.split(';').next().unwrap().to_owned();
        pages
    }

    pub fn ask(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(process::HANGS_AFTER_MS.into()))).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\ncookie: {}\r\n\r\n", self.host, self.cookie);
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }
}

/// What comes, until this word was in it.
pub fn heard(stream: &mut TcpStream, word: &str) -> String {
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while !text.contains(word) {
        let length = stream.read(&mut piece).unwrap_or_else(|error| panic!("`{word}` was not heard: {error}: {text}"));
        assert!(length > 0, "the answer ended without `{word}`: {text}");
        text += &String::from_utf8_lossy(&piece[..length]);
    }
    text
}

fn token_of(home: &Home, person: usize) -> String {
    let made = home.json(&["token", "create", &format!("person-{person}"), "--scope", "read"]);
    made["token"].as_str().unwrap().to_owned()
}

fn reads(api: &Api) -> u64 {
    api.metrics().iter().filter(|(name, _)| name.starts_with("remuda_store_reads_total")).map(|(_, count)| count).sum()
}

#[test]
fn a_thousand_viewers_of_a_run_cost_no_read_each_and_little_memory() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let mut home = Home::new();
    let gate = Gate::new(&home, "gate");
    let run = home.detach(&[], &format!("echo begun; {}", gate.wait()));
    let api = Api::of(&home);
    let tokens: Vec<String> = (0..PEOPLE).map(|person| token_of(&home, person)).collect();
    let mut people = Vec::new();
    for token in &tokens {
        home.set("REPL_TOKEN", token);
        people.push(Pages::enter(&home));
    }
    home.unset("REPL_TOKEN");
    assert_eq!(api.first_bytes(&run), b"begun\n");
    let region = format!("/ui/runs/{run}/head");
    let follow = |viewer: usize| {
        let mut stream = people[viewer % PEOPLE].ask(&format!("/ui/live?r={region}"));
        heard(&mut stream, "event: v");
        stream
    };
    let mut streams = vec![follow(0)];
    let before = process::peak(home.control_plane());
    streams.extend((1..VIEWERS).map(follow));
    let after = process::peak(home.control_plane());
    let each = after.saturating_sub(before) / VIEWERS as u64;
    assert!(each <= MOST_BYTES, "{each} bytes for each viewer");

    let counted = reads(&api);
    gate.open();
    for stream in &mut streams {
        heard(stream, "event: v");
    }
    for viewer in 0..VIEWERS {
        heard(&mut people[viewer % PEOPLE].ask(&region), "x-version");
    }
    let cost = reads(&api) - counted;
    assert!(cost <= MOST_READS, "{cost} reads for {VIEWERS} viewers");
    println!("{VIEWERS} viewers: {cost} reads, {each} bytes each");
    drop(streams);
    home.stop();
}
