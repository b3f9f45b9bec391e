//! What a person is told on a terminal of 80 columns, about attempts, about what is held, and when something cannot be done.

use crate::session::Session;
use std::io::Read as _;

pub fn typed(session: &Session, line: &str) -> (Option<i32>, String, String) {
    let output = session.shell(line).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The lines on a terminal of this many columns, without colours.
pub fn screen(session: &Session, line: &str, columns: u16) -> Vec<String> {
    watched(session, line, columns, |_| {})
}

/// The same; `seen` is called with all that was written so far whenever something was.
fn watched(session: &Session, line: &str, columns: u16, mut seen: impl FnMut(&str)) -> Vec<String> {
    let size = nix::pty::Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = nix::pty::openpty(Some(&size), None).unwrap();
    let mut child = session
        .shell(line)
        .env("TERM", "xterm-256color")
        .stdout(pty.slave.try_clone().unwrap())
        .stderr(pty.slave)
        .spawn()
        .unwrap();
    let (mut shown, mut bytes, mut piece) = (std::fs::File::from(pty.master), Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = shown.read(&mut piece) {
        bytes.extend_from_slice(&piece[..read]);
        seen(&String::from_utf8_lossy(&bytes));
    }
    child.wait().unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let mut plain = String::new();
    for (at, part) in text.split("\x1b[").enumerate() {
        let rest =
            if at == 0 { part } else { part.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |it| it.1) };
        plain.push_str(rest);
    }
    plain.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

#[test]
fn a_bar_shows_how_far_the_files_are() {
    let session = Session::new();
    let folder = session.here().join("many");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..300 {
        std::fs::write(folder.join(number.to_string()), format!("file {number}")).unwrap();
    }
    let frames = |line: &str| -> Vec<String> {
        let lines = screen(&session, line, 120);
        lines.iter().flat_map(|line| line.split('\r')).map(str::to_owned).collect()
    };
    let line = "repl run --detach --yes --file many -c true";
    let is_bar = |frame: &&String| frame.contains("sending") && frame.contains("/300 files") && frame.contains("/s");
    let first = frames(line);
    assert!(first.iter().any(|frame| is_bar(&frame)), "{first:?}");
    let again = frames(line);
    assert!(!again.iter().any(|frame| is_bar(&frame)), "nothing is sent a second time: {again:?}");
}

#[test]
fn what_is_shown_fits_into_80_columns() {
    let session = Session::new();
    session.quietly(
        "repl run --name a-run-with-a-name-that-is-rather-long --retry 2 -c 'echo one two three; exit 3' || true",
    );
    session.quietly("repl run --name other --artifact n -c 'echo x > n'");
    for line in [
        "repl ps -a",
        "repl instance ls",
        "repl allocation ls -a",
        "repl workflow ls",
        "repl manifest ls",
        "repl artifact ls other",
        "repl credits ledger",
        "repl events a-run-with-a-name-that-is-rather-long",
        "repl status -v a-run-with-a-name-that-is-rather-long",
        "repl why a-run-with-a-name-that-is-rather-long",
        "repl doctor",
        "repl token ls",
        "repl run --dry-run --memory 64MB -c 'echo a line of words that does not fit on one line of a terminal like this one'",
    ] {
        let lines = screen(&session, line, 80);
        assert!(lines.len() > 1, "{line}: {lines:?}");
        for shown in &lines {
            // A path is one word: it is not broken, so that it can be copied.
            let is_path = shown.trim_start().starts_with('/') || shown.contains(": /");
            assert!(shown.chars().count() <= 80 || is_path, "{line}: {shown}");
        }
    }
    let listed = screen(&session, "repl instance ls", 80);
    assert!(["ID", "STATUS", "RUN", "AGE", "HELD"].iter().all(|head| listed[0].contains(head)), "{listed:?}");
    assert!(session.quietly("repl instance ls").contains("NAME"), "a pipe gets everything");
}

#[test]
fn earlier_attempts_are_shown_and_told_apart() {
    let session = Session::new();
    let (code, ..) =
        typed(&session, "repl run --name tries --retry 3 -c 'printf $REPL_ATTEMPT; exit $((4 + REPL_ATTEMPT))'");
    assert_eq!(code, Some(7));
    let status = session.quietly("repl status tries");
    assert!(status.contains("3 of 3 (the earlier ones: -v)") && !status.contains("exit code 5"), "{status}");
    let status = session.quietly("repl status tries -v");
    for (number, code) in [(1, 5), (2, 6), (3, 7)] {
        assert!(status.contains(&format!("attempt {number} of 3 failed: exit code {code}, ")), "{status}");
    }
    let json = session.json("repl status tries --json");
    let codes: Vec<i64> =
        json["attempts"].as_array().unwrap().iter().map(|it| it["exit_code"].as_i64().unwrap()).collect();
    assert_eq!(codes, [5, 6, 7], "{json}");
    assert_eq!(json["attempts"][0]["reason"], "exited_with_error");
    assert_eq!(json["run"]["exit_code"], 7, "what was there stays where it was");
    // The marks are on stderr, each before the output of its attempt.
    let (_, out, said) = typed(&session, "repl logs tries");
    assert_eq!((out.as_str(), said.as_str()), ("123", "repl: attempt 2 of 3\nrepl: attempt 3 of 3\n"));
    assert_eq!(
        screen(&session, "repl logs tries", 80),
        ["1", "repl: attempt 2 of 3", "2", "repl: attempt 3 of 3", "3"],
        "on lines of their own"
    );
    let (_, out, said) = typed(&session, "repl logs tries --tail 1");
    assert_eq!((out.as_str(), said.as_str()), ("3", "repl: attempt 3 of 3\n"), "only what is shown is announced");
    assert_eq!(typed(&session, "repl logs tries --stream stderr"), (Some(0), String::new(), String::new()));
}

#[test]
fn extend_alone_is_about_what_is_held_now() {
    let session = Session::new();
    session.quietly("repl run --name kept -c true");
    session.quietly("repl run --name newer --hold 0s -c true");
    let (code, out, _) = typed(&session, "repl extend");
    let held = session.json("repl allocation show kept --json");
    let run = held["run"].as_str().unwrap();
    assert_eq!(code, Some(0));
    assert!(out.starts_with(&format!("the folder of {run} is kept for ")) && out.contains(", until 2"), "{out}");
    session.quietly("repl run --name gone -c true && repl delete gone");
    assert!(
        session.quietly("repl extend").starts_with(&format!("the folder of {run} is kept ")),
        "not of a deleted one"
    );
    let released = session.quietly("repl release kept");
    assert!(released.starts_with(&format!("the folder of {run} is no longer kept: ")), "{released}");
    session.quietly("repl release $(repl allocation ls --json | sed -n 's/.*\"id\": \"\\(alc_[^\"]*\\)\".*/\\1/p' | head -n 1) || true");
    let (code, out, said) = typed(&session, "repl extend");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(said.starts_with("error: no folder is kept now") && said.contains("\n  fix: "), "{said}");
}

#[test]
fn a_start_folder_that_nothing_is_sent_for_is_told() {
    let session = Session::new();
    std::fs::create_dir(session.here().join("src")).unwrap();
    std::fs::write(session.here().join("src/a.sh"), "echo a\n").unwrap();
    let hint = "repl: hint: no file that is sent is in `src`, so the run begins there in an empty folder";
    let (code, out, said) = typed(&session, "repl run --workdir src -c 'ls; echo end'");
    assert_eq!((code, out.as_str()), (Some(0), "end\n"));
    assert!(said.contains(&format!("{hint}; it is here: add --file src\n")), "{said}");
    let (_, out, said) = typed(&session, "repl run --file src --workdir src -c 'sh a.sh'");
    assert!(out == "a\n" && !said.contains("hint"), "{said}");
    std::fs::write(session.here().join("t.repl.yml"), "type: task\nworking_dir: new\ncommands: [pwd]\n").unwrap();
    assert!(typed(&session, "repl run t.repl.yml").2.contains("no file that is sent is in `new`"));
    let (code, _, said) = typed(&session, "repl run --file src --workdir src/a.sh -c true");
    assert!(code == Some(2) && said.contains("is a file among those that are sent") && said.contains("fix:"), "{said}");
}

#[test]
fn what_a_shell_was_meant_for_is_told_at_the_end_and_by_why() {
    let session = Session::new();
    for (line, typed_instead) in
        [("repl run -- 'echo hello'", "repl run -c 'echo hello'"), ("repl run -- cd src", "repl run -c 'cd src'")]
    {
        let (code, _, said) = typed(&session, line);
        assert_eq!(code, Some(127), "{said}");
        assert!(said.contains("hint: `") && said.ends_with(&format!("after -c: {typed_instead}\n")), "{said}");
        let why = session.quietly("repl why");
        assert!(why.contains("a line for a shell is written after -c: repl run -c 'LINE'"), "{why}");
    }
    std::fs::write(session.here().join("a.py"), "").unwrap();
    let (_, _, said) = typed(&session, "repl run -c 'cat a.py'");
    assert!(said.contains("hint: a.py is here but was not sent: add --file a.py"), "{said}");
    let why = session.quietly("repl why");
    assert!(why.contains("files of yours are there only if they were sent: submit it again with --file PATH"), "{why}");
    session.shell("repl run --max-duration 1s -c 'sleep 60'").output().unwrap();
    assert!(session.quietly("repl why").contains("with a longer --max-duration"));
}

#[test]
fn artifacts_that_nothing_matched_are_told_and_a_dry_run_names_them() {
    let session = Session::new();
    let shown = screen(&session, "repl run --artifact 'out/*' -c true", 80).join("\n");
    assert!(!shown.contains("artifact get") && shown.contains("no file matches the artifact glob out/*"), "{shown}");
    let shown = screen(&session, "repl run --artifact n -c 'echo x > n'", 80).join("\n");
    assert!(shown.contains("repl artifact get run_") && !shown.contains("no file matches"), "{shown}");
    let plan = session.quietly("repl run --dry-run --artifact 'out/*' --max-duration 2h -c true");
    assert!(plan.contains("runs for   2h at most\n") && plan.contains("kept       out/*\n"), "{plan}");
    assert!(session.quietly("repl run --dry-run -c true").contains("runs for   1d at most\n"));
}

#[test]
fn a_command_on_the_line_wins_over_the_one_of_the_file() {
    let session = Session::new();
    std::fs::write(session.here().join("t.repl.yml"), "type: task\nenv: {WHO: you}\ncommands: [echo file]\n").unwrap();
    assert_eq!(session.quietly("repl run t.repl.yml -c 'echo line for $WHO'"), "line for you\n");
    assert_eq!(session.quietly("repl run t.repl.yml -- echo words"), "words\n");
}

#[test]
fn a_budget_that_is_used_up_names_the_flag_that_raises_it() {
    let session = Session::new();
    std::fs::write(session.here().join("dear.toml"), "[prices]\nlocal = '36000'\n").unwrap();
    let (code, _, said) = typed(&session, "REPL_CONFIG=dear.toml repl run --budget 1 -c 'sleep 60'");
    assert_eq!(code, Some(143), "{said}");
    assert!(
        said.contains("failed: its budget of 1 credit is used up (") && said.contains("--budget above 1"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_done_again_says_how_to_submit_it_again() {
    let session = Session::new();
    session.quietly("repl run --name fine -c 'echo fine'");
    session.quietly("repl run --detach --name long -c 'sleep 600' && repl kill long && repl attach long || true");
    for (line, said) in [
        (
            "repl retry fine",
            "(fine) is completed: only a failed run is tried again\n  fix: submit it again: repl run -c 'echo fine'",
        ),
        (
            "repl start fine",
            "(fine) is completed: it was started before\n  fix: submit it again: repl run -c 'echo fine'",
        ),
        (
            "repl retry long",
            "(long) is cancelled: only a failed run is tried again\n  fix: submit it again: repl run -c 'sleep 600'",
        ),
        ("repl pause fine", "(fine) is completed: it cannot be paused\n  fix: possible now: repl delete run_"),
    ] {
        let (code, out, error) = typed(&session, line);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{line}: {error}");
        assert!(error.contains(said), "{line}: {error}");
    }
    std::fs::write(session.here().join("mid.repl.yml"), "type: task\ncommands: [x]\n").unwrap();
    let (code, _, error) = typed(&session, "repl run mid --detach");
    assert!(code == Some(2) && error.contains("\n  fix: repl run --detach mid.repl.yml\n"), "{error}");
}

#[test]
fn access_that_is_missing_is_told_with_the_way_to_it() {
    let session = Session::new();
    session.quietly("REPL_LISTEN=127.0.0.1:0 repl control start");
    let url = session.json("repl control status --json")["url"].as_str().unwrap().to_owned();
    let (_, _, said) = typed(&session, "REPL_TOKEN=$(repl token create r --scope read 2>/dev/null) repl run -c true");
    assert!(
        said.contains("lacks the scope write\n  fix: use a token with that scope") && said.contains("--scope write"),
        "{said}"
    );
    let (code, _, said) = typed(&session, &format!("REPL_URL={url} REPL_TOKEN=rmd_wrong repl ps"));
    assert_eq!(code, Some(1));
    assert!(said.contains(&format!("\n  fix: repl login {url}, or set REPL_TOKEN")), "{said}");
    let (_, out, said) = typed(&session, "REPL_URL=https://control.example repl control token");
    assert!(out.starts_with("rmd_"), "{out}");
    let home = session.home().display().to_string();
    for part in [home.as_str(), "not at https://control.example", "repl login https://control.example"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let secure = url.replace("http:", "https:");
    let (code, _, said) = typed(&session, &format!("REPL_URL={secure} REPL_TOKEN=x repl ps"));
    assert_eq!(code, Some(2));
    assert!(
        said.contains("this port speaks plain http, without TLS") && said.contains(&format!("fix: use {url}\n")),
        "{said}"
    );
}

#[test]
fn the_line_of_a_run_always_says_what_it_waits_for() {
    let session = Session::new();
    let lines = screen(&session, "repl run --name shown -c 'sleep 0.5'", 80);
    let frames: Vec<&str> =
        lines.iter().flat_map(|line| line.split('\r')).filter(|it| it.starts_with(is_spinner)).collect();
    assert!(!frames.is_empty(), "{lines:?}");
    assert!(frames.iter().all(|frame| frame.contains("run_") && frame.contains(" · ")), "{frames:?}");
}

#[test]
fn a_run_that_waits_behind_others_says_so_in_its_line() {
    let session = Session::new();
    let config = session.here().join("../.config/remuda");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[providers.local]\nmax_instances = 1\n").unwrap();
    session.quietly("repl run --detach --name first -c 'sleep 600'");
    session.wait_for("first", "job.started");
    session.quietly("repl run --detach --name second -c true");
    let mut was_said = false;
    let lines = watched(&session, "repl run --name third -c 'echo done'", 80, |so_far| {
        if !was_said && so_far.contains("waits behind 1 run on local") {
            was_said = true;
            session.quietly("repl cancel first");
        }
    });
    assert!(was_said && lines.iter().any(|line| line.contains("done")), "{lines:?}");
}

fn is_spinner(c: char) -> bool {
    ('\u{2800}'..='\u{28ff}').contains(&c)
}
