//! The real binary against a control plane that follows a script: what it sends, what it does when answers get lost,
//! which exit code it ends with. No database, no runner.

mod script;

use script::{Asked, Script, answer, frame, problem, run_view, stream};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Output, Stdio};
use wire::model::tree::Tree;

fn repl(script: &Script, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_repl"));
    command
        .args(words)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("REPL_HOME", script.home())
        .env("REPL_URL", &script.url)
        .env("REPL_TOKEN", "rmd_test")
        .current_dir(script.home());
    command
}

fn ended(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// A run whose log is one stream of events.
fn running(log: Vec<Vec<u8>>, end: serde_json::Value) -> Script {
    let logs = std::sync::Mutex::new(log.into_iter());
    Script::new(move |asked| match asked.route().as_str() {
        "POST /api/v1/runs" => answer(201, &run_view("run_1", json!({}))),
        "GET /api/v1/runs/run_1/logs" => logs.lock().unwrap().next().expect("no more streams were planned"),
        "GET /api/v1/runs/run_1" => answer(200, &run_view("run_1", end.clone())),
        other => problem(404, "not_found", other),
    })
}

#[test]
fn the_works_bytes_and_code_are_ours() {
    let frames = [frame(0, "stdout", b"he\xffllo"), frame(6, "stderr", b"oops\n"), frame(11, "runner", b"a note\n")];
    let script = running(
        vec![stream(&frames, Some("failed"))],
        json!({"status": "failed", "exit_code": 3, "duration_ms": 1500, "termination_reason": "job_failed"}),
    );
    let output = repl(&script, &["run", "-c", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"he\xffllo");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "oops\nrepl: a note\nrepl: run_1 failed: exit code 3 (1.5s, 0.000003 credits)\n");
    let submitted = script.asked("POST /api/v1/runs");
    assert_eq!(submitted[0].body["commands"], json!(["x"]));
    assert_eq!(submitted[0].body["start"], json!(true));
    assert_eq!(submitted[0].header("authorization"), "Bearer rmd_test");
}

#[test]
fn a_log_that_was_cut_says_so() {
    let whole = stream(&[frame(0, "stdout", b"half\n")], Some("failed"));
    let cut = String::from_utf8(whole.clone()).unwrap().replace(r#""cut":false"#, r#""cut":true"#).into_bytes();
    for (log, expected) in [(whole, false), (cut, true)] {
        let script = running(vec![log], json!({"status": "failed", "termination_reason": "instance_lost"}));
        let (_, stdout, stderr) = ended(repl(&script, &["run", "-c", "x"]));
        assert_eq!(stdout, "half\n");
        assert_eq!(stderr.contains("the end of this log is missing"), expected, "{stderr}");
    }
}

#[test]
fn a_broken_stream_goes_on_where_it_was_and_repeats_nothing() {
    let cut = stream(&[frame(0, "stdout", b"one "), frame(4, "stdout", b"two ")], None);
    // The server kept less than it had sent: the second frame comes again, longer.
    let rest = stream(&[frame(4, "stdout", b"two three\n")], Some("completed"));
    let script = running(vec![cut, Vec::new(), rest], json!({"status": "completed", "exit_code": 0}));
    let (code, stdout, _) = ended(repl(&script, &["run", "-c", "x"]));
    assert_eq!((code, stdout.as_str()), (0, "one two three\n"));
    let asked = script.asked("GET /api/v1/runs/run_1/logs");
    let resumed: Vec<&str> = asked.iter().map(|asked| asked.header("last-event-id")).collect();
    assert_eq!(resumed, ["", "job_1:8", "job_1:8"]);
}

#[test]
fn a_question_asked_again_carries_the_same_key() {
    let tries = std::sync::atomic::AtomicU32::new(0);
    let script = Script::new(move |asked| match asked.route().as_str() {
        "POST /api/v1/runs" => match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => Vec::new(), // the connection breaks: whether it was heard is unknown
            1 => problem(409, "idempotency_key_busy", "still under way"),
            _ => answer(201, &run_view("run_1", json!({}))),
        },
        other => problem(404, "not_found", other),
    });
    let (code, stdout, _) = ended(repl(&script, &["run", "--detach", "-c", "x"]));
    assert_eq!((code, stdout.as_str()), (0, "run_1\n"));
    let keys: Vec<String> =
        script.asked("POST /api/v1/runs").iter().map(|asked| asked.header("idempotency-key").to_owned()).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0] && key.len() == 36), "{keys:?}");
}

#[test]
fn ctrl_c_detaches_and_says_how_to_come_back() {
    // The stream stays open: the work is not done.
    let script = running(vec![stream(&[frame(0, "stdout", b"begun\n")], Some("open"))], json!({}));
    let mut child = repl(&script, &["run", "-c", "x"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "begun\n");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(said, "repl: detached; run_1 goes on. Come back: repl attach run_1 · end it: repl cancel run_1\n");
    assert!(script.asked("POST /api/v1/runs/run_1/cancel").is_empty());
}

#[test]
fn a_reader_that_has_gone_ends_us_quietly() {
    let frames: Vec<_> = (0..200).map(|at| frame(at * 60_000, "stdout", &[b'x'; 60_000])).collect();
    let script = running(vec![stream(&frames, Some("completed"))], json!({}));
    let mut child = repl(&script, &["logs", "run_1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!(said, "");
}

#[test]
fn only_missing_blobs_travel() {
    let missing = blake3::hash(b"new").to_hex().to_string();
    let answered = missing.clone();
    let script = Script::new(move |asked| match asked.route().as_str() {
        // Every folder is new, and of the files one.
        "POST /api/v1/blobs/missing" => {
            let files = asked.body["hashes"].as_array().unwrap();
            let hashes = if files.is_empty() { vec![] } else { vec![answered.clone()] };
            answer(200, &json!({"hashes": hashes, "trees": asked.body["trees"]}))
        }
        "POST /api/v1/runs" => answer(201, &run_view("run_1", json!({}))),
        route if route.starts_with("PUT /api/v1/") => answer(204, &json!(null)),
        other => problem(404, "not_found", other),
    });
    std::fs::write(script.home().join("old.txt"), "old").unwrap();
    std::fs::create_dir(script.home().join("folder")).unwrap();
    std::fs::write(script.home().join("folder/new.txt"), "new").unwrap();
    let (code, _, said) = ended(repl(&script, &["run", "-d", "-f", "old.txt", "-f", "folder", "-c", "x"]));
    assert_eq!((code, said.as_str()), (0, ""));
    let puts = script.all(|asked| asked.method == "PUT");
    assert_eq!(puts.len(), 2);
    assert_eq!((puts[0].path.as_str(), puts[0].raw.as_slice()), (&*format!("/api/v1/blobs/{missing}"), &b"new"[..]));
    let folders = wire::pack::Unpacker::default().feed(&puts[1].raw).unwrap();
    let names: Vec<Vec<String>> = folders
        .iter()
        .map(|folder| Tree::parse(&folder.bytes).unwrap().entries.into_iter().map(|entry| entry.name).collect())
        .collect();
    assert_eq!(names, [vec!["new.txt"], vec!["folder", "old.txt"]], "folders behind what they name");
    let files = &script.asked("POST /api/v1/runs")[0].body["files"];
    assert_eq!(*files, json!({"tree": folders[1].hash, "files": 2, "bytes": 6}));
    let dry: Vec<bool> = script.asked("POST /api/v1/runs").iter().map(|asked| asked.body["dry_run"] == true).collect();
    assert_eq!(dry, [true, false], "asked before anything travels, then submitted");
}

/// A control plane that has nothing yet, and what it says to a PUT.
fn empty(put: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> Script {
    Script::new(move |asked| match asked.route().as_str() {
        "POST /api/v1/blobs/missing" => {
            answer(200, &json!({"hashes": asked.body["hashes"], "trees": asked.body["trees"]}))
        }
        "POST /api/v1/runs" => answer(201, &run_view("run_1", json!({}))),
        route if route.starts_with("PUT /api/v1/") => put(asked),
        other => problem(404, "not_found", other),
    })
}

#[test]
fn small_files_travel_together_and_large_ones_alone() {
    let script = empty(|_| answer(204, &json!(null)));
    let large = vec![b'x'; wire::pack::BLOB_BYTES as usize + 1];
    for (name, bytes) in [("a", &b"one"[..]), ("b", b"two"), ("c", b"three"), ("large", &large)] {
        std::fs::create_dir_all(script.home().join("folder")).unwrap();
        std::fs::write(script.home().join("folder").join(name), bytes).unwrap();
    }
    let (code, _, said) = ended(repl(&script, &["run", "-d", "-f", "folder", "-c", "x"]));
    assert_eq!((code, said.as_str()), (0, ""));
    let packs: Vec<Vec<(bool, Vec<u8>)>> = script
        .asked("PUT /api/v1/packs")
        .iter()
        .map(|asked| wire::pack::Unpacker::default().feed(&asked.raw).unwrap())
        .map(|blobs| blobs.into_iter().map(|blob| (blob.is_tree, blob.bytes)).collect())
        .collect();
    assert_eq!(packs.len(), 2, "one of files and one of folders");
    let mut files = packs[0].clone();
    files.sort();
    assert_eq!(files, [&b"one"[..], b"three", b"two"].map(|bytes| (false, bytes.to_vec())));
    assert!(packs[1].len() == 2 && packs[1].iter().all(|(is_tree, _)| *is_tree), "the root and its folder");
    let alone = script.all(|asked| asked.method == "PUT" && asked.path.starts_with("/api/v1/blobs/"));
    assert_eq!(alone.len(), 1);
    assert_eq!(alone[0].path, format!("/api/v1/blobs/{}", blake3::hash(&large).to_hex()));
    assert_eq!(alone[0].raw, large);
}

/// Where requests wait until a second one is there.
#[derive(Default)]
struct Meeting(std::sync::Mutex<usize>, std::sync::Condvar);

impl Meeting {
    fn is_attended(&self) -> bool {
        let mut here = self.0.lock().unwrap();
        *here += 1;
        self.1.notify_all();
        let waited = self.1.wait_timeout_while(here, std::time::Duration::from_secs(30), |here| *here < 2).unwrap();
        !waited.1.timed_out()
    }
}

#[test]
fn uploads_go_in_parallel() {
    // No PUT of a kind is answered before a second one has arrived.
    let (packs, blobs) = (Meeting::default(), Meeting::default());
    let script = empty(move |asked| {
        let meeting = if asked.path == "/api/v1/packs" { &packs } else { &blobs };
        if meeting.is_attended() { answer(204, &json!(null)) } else { problem(400, "alone", "no second request came") }
    });
    std::fs::create_dir(script.home().join("folder")).unwrap();
    // More small files than one pack has room for, and two large ones.
    let (small, large) = (wire::pack::BLOB_BYTES as usize, wire::pack::BLOB_BYTES as usize + 1);
    let sizes = std::iter::repeat_n(small, wire::pack::PACK_BYTES / small + 2).chain([large, large]);
    for (number, size) in sizes.enumerate() {
        let mut bytes = vec![b'x'; size];
        bytes[0] = number as u8;
        std::fs::write(script.home().join(format!("folder/{number}")), bytes).unwrap();
    }
    let (code, _, said) = ended(repl(&script, &["run", "-d", "-f", "folder", "-c", "x"]));
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(script.asked("PUT /api/v1/packs").len() >= 2);
}

#[test]
fn what_is_refused_is_refused_before_the_first_byte_travels() {
    let script = Script::new(move |asked| match asked.route().as_str() {
        "POST /api/v1/blobs/missing" => {
            answer(200, &json!({"hashes": asked.body["hashes"], "trees": asked.body["trees"]}))
        }
        "POST /api/v1/runs" => problem(422, "does_not_fit", "too large"),
        other => problem(404, "not_found", other),
    });
    std::fs::write(script.home().join("large"), "x").unwrap();
    let (code, _, said) = ended(repl(&script, &["run", "-f", "large", "--memory", "100TB", "-c", "x"]));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("too large"), "{said}");
    assert!(script.all(|asked| asked.method == "PUT").is_empty(), "nothing was sent");
}

#[test]
fn refusals_have_a_sentence_a_fix_and_a_code() {
    let table: [(u16, &str, i32, &str); 4] = [
        (401, "unauthorized", 1, "or set REPL_TOKEN to a token of that server"),
        (402, "insufficient_credits", 1, "error: said"),
        (404, "not_found", 1, "error: no such run: run_7"),
        (409, "invalid_state_transition", 1, "error: said"),
    ];
    for (status, code, exit, said) in table {
        let script = Script::new(move |asked: &Asked| match asked.route().as_str() {
            "GET /api/v1/runs" => answer(200, &json!({"data": []})),
            _ => problem(status, code, "said"),
        });
        let (ended, stdout, stderr) = ended(repl(&script, &["cancel", "run_7"]));
        assert_eq!((ended, stdout.as_str()), (exit, ""), "{status}: {stderr}");
        assert!(stderr.contains(said), "{status}: {stderr}");
    }
}

#[test]
fn nobody_there_and_strangers_are_told_apart() {
    let script = Script::new(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>".to_vec());
    let (code, _, said) = ended(repl(&script, &["ps"]));
    assert_eq!(code, 2);
    assert!(said.contains("fix: is REPL_URL the address of a Remuda control plane?"), "{said}");
    let mut command = repl(&script, &["ps"]);
    // Nothing listens on port 1.
    command.env("REPL_URL", "http://127.0.0.1:1");
    let (code, _, said) = ended(command);
    assert_eq!(code, 2);
    assert!(said.starts_with("error: cannot reach the control plane"), "{said}");
}

/// A command in a shell with other privileges than the control plane would judge the wrong process.
#[test]
fn doctor_says_what_the_control_plane_finds_and_of_whom_it_speaks() {
    let found = json!({"check": "limits", "state": "limited", "detail": "not enforced there", "fix": "enforce"});
    for may in [true, false] {
        let found = found.clone();
        let script = Script::new(move |asked| match asked.route().as_str() {
            "GET /readyz" => answer(200, &json!({"status": "ready"})),
            "GET /api/v1/credits" => answer(
                200,
                &json!({"org": "default", "available": "1", "available_micro": 1, "reserved": "0", "reserved_micro": 0}),
            ),
            "GET /api/v1/doctor" if may => answer(200, &json!({"data": [found]})),
            "GET /api/v1/doctor" => problem(403, "forbidden", "it lacks the scope admin"),
            other => problem(404, "not_found", other),
        });
        let (_, stdout, stderr) = ended(repl(&script, &["doctor", "--json"]));
        let checks: Vec<serde_json::Value> = serde_json::from_str(&stdout).expect(&stderr);
        let detail = |name: &str| {
            let all: Vec<&str> =
                checks.iter().filter(|it| it["check"] == name).filter_map(|it| it["detail"].as_str()).collect();
            assert_eq!(all.len(), 1, "{name}: {stdout}");
            all[0]
        };
        assert_eq!(detail("limits") == "not enforced there", may);
        let by = detail("checked by");
        match may {
            true => assert!(by.starts_with(&format!("the control plane at {}", script.url)), "{by}"),
            false => assert!(by.starts_with("this command: ") && by.contains("scope admin"), "{by}"),
        }
    }
}

/// Whether a provider bills is for the control plane to know, and which names the user gave is for this command.
#[test]
fn a_provider_that_only_a_project_names_is_said_to_be_unasked() {
    let script = running(Vec::new(), json!({}));
    std::fs::write(script.home().join("repl.toml"), "[run]\nprovider = 'paid'\n").unwrap();
    for flags in [&[][..], &["--provider", "paid"]] {
        ended(repl(&script, &[&["run", "--detach", "-c", "x"], flags].concat()));
    }
    let asked = script.asked("POST /api/v1/runs");
    let [unasked, by_flag] = [&asked[0].body, &asked[1].body];
    assert_eq!((&unasked["provider"], &unasked["unasked"]), (&json!("paid"), &json!(["paid"])));
    assert_eq!((&by_flag["provider"], by_flag.get("unasked")), (&json!("paid"), None));
}
