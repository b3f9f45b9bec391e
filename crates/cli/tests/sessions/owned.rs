//! A person and the control plane of their own home: how it is stopped with runs open, where its token is, which one commands go to,
//! and how a person signs in elsewhere.

use crate::session::Session;
use crate::told::{screen, typed};
use std::io::{BufRead as _, BufReader};

#[test]
fn a_stop_says_what_becomes_of_runs_and_ends_them_even_when_it_is_down() {
    let session = Session::new();
    let (code, _, said) = typed(&session, "repl control stop --all");
    assert!(code == Some(0) && said.contains("not running, and ") && !session.home().exists(), "{said}");
    session.quietly("repl run --detach --name long -c 'sleep 600'");
    session.wait_for("long", "job.started");
    let (code, _, said) = typed(&session, "repl control stop");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("; 1 run goes on, and ") && said.contains("`repl control stop --all` ends"), "{said}");
    let (code, _, said) = typed(&session, "repl control stop");
    assert!(
        code == Some(0) && said.contains("not running in ") && said.contains("`repl control stop --all`"),
        "{said}"
    );
    let (code, _, said) = typed(&session, "repl control stop --all");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("starting it to end the runs") && said.contains("has ended, 1 run cancelled\n"), "{said}");
    assert_eq!(session.json("repl status long --json")["run"]["status"], "cancelled");
    let (_, _, said) = typed(&session, "repl control stop --all");
    assert!(said.ends_with("has ended, no run was open\n"), "{said}");
}

#[test]
fn a_server_in_a_used_home_says_where_its_token_is() {
    let session = Session::new();
    session.quietly("repl run -c true && repl control stop");
    let mut server = session.begin("exec repl server --listen 127.0.0.1:0");
    let lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said: Vec<String> = lines.take_while(|line| !line.contains("repl: serving ")).collect();
    let said = said.join("\n");
    let file = session.home().join("token");
    for part in ["its admin token was made before", &file.display().to_string(), "repl control token"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains("rmd_"), "a token is shown once: {said}");
    session.quietly("repl control stop --all");
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_command_about_this_home_says_that_others_go_elsewhere() {
    let session = Session::new();
    let (_, out, _) = typed(&session, "REPL_URL=http://127.0.0.1:1 repl control status");
    assert!(out.contains("(commands go to http://127.0.0.1:1 (REPL_URL))"), "{out}");
    session.quietly("REPL_LISTEN=127.0.0.1:0 repl control start");
    let (_, out, _) = typed(&session, "REPL_URL=http://127.0.0.1:1 repl control status");
    assert!(out.contains("go to another one: http://127.0.0.1:1 (REPL_URL)"), "{out}");
    assert!(!session.quietly("repl control status").contains("commands"));
    let url = session.json("repl control status --json")["url"].as_str().unwrap().to_owned();
    let (_, out, _) = typed(&session, &format!("REPL_URL={url} repl doctor"));
    assert!(out.contains(&format!("at {url}")) && out.contains(", named by REPL_URL"), "{out}");
    assert!(session.quietly("repl doctor").contains(", of this home"));
    let (_, out, _) = typed(&session, "repl --url http://127.0.0.1:1 doctor");
    assert!(out.contains("is --url right, and is the control plane running there?"), "{out}");
}

#[test]
fn a_token_is_asked_for_where_somebody_can_check_it() {
    let session = Session::new();
    // No control plane answers there: the token is not read, so none needs to be given.
    let (code, _, said) = typed(&session, "repl login http://127.0.0.1:1");
    assert!(
        code == Some(2)
            && said.contains("cannot reach the control plane at http://127.0.0.1:1")
            && !said.contains("REPL_URL"),
        "{said}"
    );
    let (code, _, said) = typed(&session, "repl login");
    assert!(code == Some(2) && said.contains("needs the address") && said.contains("or set REPL_URL"), "{said}");
    session.quietly("REPL_LISTEN=127.0.0.1:0 repl control start");
    let url = session.json("repl control status --json")["url"].as_str().unwrap().to_owned();
    let line = format!("repl token create laptop | REPL_URL={url} repl login");
    let (code, _, said) = typed(&session, &line);
    assert!(code == Some(0) && said.contains(&format!("signed in at {url} as laptop")), "{said}");
    assert!(!said.contains("export REPL_URL"), "it is set: {said}");
    let (code, _, said) = typed(&session, "repl token delete laptop");
    assert!(code == Some(0) && said.starts_with("repl: deleted tok_"), "{said}");
    session.quietly("repl token create twice && repl token create twice");
    let (code, _, said) = typed(&session, "repl token rm twice");
    assert!(code == Some(1) && said.contains("2 tokens are called `twice`\n  fix: write its id: tok_"), "{said}");
}

#[test]
fn errors_break_between_words_and_a_waiting_run_takes_one_row() {
    let session = Session::new();
    let config = session.here().join("../.config/remuda");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[providers.local]\nmax_instances = 1\n").unwrap();
    for line in
        ["repl artifact get", "repl login", "repl run --memory 1 -c true", "REPL_URL=http://127.0.0.1:1 repl ps"]
    {
        let lines = screen(&session, line, 60);
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{line}: {lines:#?}");
    }
    session.quietly("repl run --detach --name first -c 'sleep 2'");
    let name = "a-run-with-a-name-that-is-rather-long";
    let lines = screen(&session, &format!("repl run --name {name} -c true"), 60);
    let frames: Vec<&str> = lines.iter().flat_map(|line| line.split('\r')).filter(|it| it.contains(" · ")).collect();
    assert!(frames.iter().any(|frame| frame.contains(" · is next in line and waits for")), "{frames:?}");
    for frame in frames.iter().filter(|frame| frame.contains("next in line")) {
        assert!(frame.chars().count() <= 60, "{frame}");
    }
}
