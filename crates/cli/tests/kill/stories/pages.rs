//! A person signs in to the pages and out again. A session is a row: it outlives the process that made it.

use crate::world::World;
use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use wire::model::time::SECOND;

pub(super) fn a_person_signs_in_and_out(world: &World) {
    let run = world.submit(&[], "echo 1", 0, "1\n");
    world.ends(&run);
    let token = std::fs::read_to_string(world.home.data().join("token")).unwrap();
    let cookie = RefCell::new(String::new());
    world.until("a person signs in", || {
        let answer = ask(world, "POST", "/login", "", &format!("token={}", token.trim())).unwrap_or_default();
        let set = answer.split("set-cookie: ").nth(1).and_then(|rest| rest.split(';').next());
        *cookie.borrow_mut() = set.unwrap_or_default().to_owned();
        answer.starts_with("HTTP/1.1 303") && set.is_some()
    });
    let (cookie, page) = (cookie.into_inner(), RefCell::new(String::new()));
    world.until("the session is good", || {
        *page.borrow_mut() = ask(world, "GET", "/runs", &cookie, "").unwrap_or_default();
        page.borrow().starts_with("HTTP/1.1 200")
    });
    let page = page.into_inner();
    let form = page.split(r#"name="csrf" value=""#).nth(1).unwrap().split('"').next().unwrap();
    world.until("the session is over", || {
        ask(world, "POST", "/logout", &cookie, &format!("csrf={form}"));
        ask(world, "GET", "/runs", &cookie, "").is_some_and(|answer| answer.starts_with("HTTP/1.1 303"))
    });
}

/// The answer, or none if the control plane is dead or dies.
fn ask(world: &World, method: &str, path: &str, cookie: &str, body: &str) -> Option<String> {
    let status = world.home.say(&["control", "status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
    let url = status["url"].as_str()?;
    let host = url.strip_prefix("http://")?;
    let mut stream = TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(10 * SECOND as u64))).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\norigin: {url}\r\ncookie: {cookie}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
